"""Buttons, clicks and outputs that all tabs have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from howsmooth.explorer.app import QUEUE, App
from howsmooth.explorer.html import said

PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}  # own bars instead of gradio's veil

# A click on a button inside tells its data; the button that took its place after the answer has the focus again.
CLICKS = """
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
    """How a computation is asked for: in the one queue, its place there and its seconds beside the status."""
    return {
        **PRIVATE,
        "concurrency_id": QUEUE,
        "concurrency_limit": 1,
        "show_progress": "minimal",
        "show_progress_on": status,
    }


def shown(name: str, **settings: Any) -> gr.HTML:
    """An output, in the explorer's own style."""
    return gr.HTML(elem_id=name, elem_classes="hs-out", apply_default_css=False, **settings)


def clickable(name: str, of: str) -> gr.HTML:
    """HTML whose buttons with data-OF are clicked; `select` gets {"index": …}."""
    return shown(name, js_on_load=CLICKS % (of, of, of))


def run_and_cancel(name: str, label: str) -> tuple[gr.Button, gr.Button, gr.HTML]:
    """The two buttons, and the line beneath them that says how it goes."""
    with gr.Row():
        run = gr.Button(
            label, variant="primary", elem_id=f"{name}-run", scale=0, min_width=190, elem_classes="hs-button"
        )
        cancel = gr.Button("Cancel", elem_id=f"{name}-cancel", scale=0, min_width=110, elem_classes="hs-button")
    return run, cancel, shown(f"{name}-status", min_height=28)


def cancelling(app: App, button: gr.Button, status: gr.HTML, events: Sequence[Any]) -> None:
    """Stop the worker before its next step, and what waits in the queue at once."""

    def stop(request: gr.Request) -> str:
        app.cancellations.stop(request.session_hash)
        return said("Cancelled. What was computed stays.")

    button.click(stop, None, status, cancels=list(events), queue=False, **PRIVATE)


def started(app: App, button: gr.Button, status: gr.HTML, compute: Callable, inputs: list, outputs: list) -> Any:
    """Run `compute(cancellation, request, *inputs)` in the queue when the button is clicked."""

    def listener(request: gr.Request, *values: Any):
        visitor = request.session_hash
        yield from app.run(visitor, status, lambda cancellation: compute(cancellation, visitor, *values))

    return button.click(listener, inputs, [status, *outputs], **computing(status))
