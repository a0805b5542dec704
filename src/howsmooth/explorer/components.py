"""Gradio components and events that all tabs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from howsmooth.explorer.app import QUEUE, App
from howsmooth.explorer.html import message

PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}  # the page has its own progress bars

# Forwards clicks on inner buttons as `select` events; an update moves the focus to the new button in the same place.
_CLICK_SCRIPT = """
let pressed = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-%s]');
  if (!button) return;
  pressed = button.dataset.%s;
  trigger('select', {index: Number(pressed)});
});
watch('value', () => {
  const again = pressed === null ? null : element.querySelector(`[data-%s="${pressed}"]`);
  pressed = null;
  if (again) again.focus({preventScroll: true});
});
"""


def computing(status: gr.HTML) -> dict[str, Any]:
    """Return the options of an event that computes: in the shared queue, with its progress next to the status."""
    return {
        **PRIVATE,
        "concurrency_id": QUEUE,
        "concurrency_limit": 1,
        "show_progress": "minimal",
        "show_progress_on": status,
    }


def output(name: str, **settings: Any) -> gr.HTML:
    """Create an HTML output in the style of the explorer."""
    return gr.HTML(elem_id=name, elem_classes="hs-out", apply_default_css=False, **settings)


def clickable_output(name: str, attribute: str) -> gr.HTML:
    """Create an HTML output whose buttons with a `data-ATTRIBUTE` trigger `select` with `{"index": value}`."""
    return output(name, js_on_load=_CLICK_SCRIPT % (attribute, attribute, attribute))


def run_and_cancel(name: str, label: str) -> tuple[gr.Button, gr.Button, gr.HTML]:
    """Create the run and cancel buttons and the status line below them."""
    with gr.Row():
        run = gr.Button(
            label, variant="primary", elem_id=f"{name}-run", scale=0, min_width=190, elem_classes="hs-button"
        )
        cancel = gr.Button("Cancel", elem_id=f"{name}-cancel", scale=0, min_width=110, elem_classes="hs-button")
    return run, cancel, output(f"{name}-status", min_height=28)


def cancel_on_click(app: App, button: gr.Button, status: gr.HTML, events: Sequence[Any]) -> None:
    """Make a button stop the worker before its next step, and remove waiting events from the queue."""

    def stop(request: gr.Request) -> str:
        app.cancellations.stop(request.session_hash)
        return message("Cancelled. What was computed stays.")

    button.click(stop, None, status, cancels=list(events), queue=False, **PRIVATE)


def run_on_click(
    app: App,
    button: gr.Button,
    status: gr.HTML,
    compute: Callable[..., Iterator[dict[Any, Any]]],
    inputs: list[Any],
    outputs: list[Any],
) -> Any:
    """Run `compute(cancellation, visitor, *inputs)` in the queue when the button is clicked; return the event."""

    def listener(request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        visitor = request.session_hash
        yield from app.run(visitor, status, lambda cancellation: compute(cancellation, visitor, *values))

    return button.click(listener, inputs, [status, *outputs], **computing(status))
