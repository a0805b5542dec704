"""Gradio components and events that all tabs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gradio as gr

from howsmooth.explorer.app import QUEUE, App, Cancellation
from howsmooth.explorer.html import message

Updates: TypeAlias = Iterator[dict[Any, Any]]  # new values of components, as gradio takes them

PRIVATE = {"api_visibility": "private", "show_progress": "hidden"}  # the page has its own progress bars

# Forwards clicks on inner buttons as `select` events; an update moves the focus to the new button in the same place.
_CLICK_SCRIPT = """
let pressed = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-%s]');
  if (!button) return;
  pressed = button.dataset.place;
  trigger('select', {index: Number(button.dataset.%s)});
});
watch('value', () => {
  const again = pressed === null ? null : element.querySelector(`[data-place="${pressed}"]`);
  pressed = null;
  if (again) again.focus({preventScroll: true});
});
"""


@dataclass(frozen=True)
class Controls:
    """The run and cancel buttons of a form, and the status line below them."""

    run: gr.Button
    cancel: gr.Button
    status: gr.HTML


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
    return output(name, js_on_load=_CLICK_SCRIPT % (attribute, attribute))


def run_and_cancel(name: str, label: str) -> Controls:
    """Create the run button of a form, the cancel button, which is shown while it runs, and the status line."""
    with gr.Row(elem_classes="hs-buttons"):
        run = gr.Button(
            label, variant="primary", elem_id=f"{name}-run", scale=0, min_width=120, elem_classes="hs-button"
        )
        cancel = gr.Button(
            "Cancel", elem_id=f"{name}-cancel", scale=0, min_width=90, elem_classes="hs-button", visible=False
        )
    return Controls(run, cancel, output(f"{name}-status", min_height=28))


def run_with_cancel(
    app: App, controls: Controls, visitor: str | None, compute: Callable[[Cancellation], Iterator[dict[Any, Any]]]
) -> Iterator[dict[Any, Any]]:
    """Yield the updates of `App.run`, with the cancel button visible until they end."""
    yield {controls.cancel: gr.update(visible=True)}
    try:
        yield from app.run(visitor, controls.status, compute)
    except Exception:
        yield {controls.cancel: gr.update(visible=False)}
        raise
    yield {controls.cancel: gr.update(visible=False)}


def cancel_on_click(app: App, controls: Controls, events: Sequence[Any]) -> None:
    """Make the cancel button stop the worker before its next product, and remove waiting events from the queue."""

    def stop(request: gr.Request) -> tuple[str, Any]:
        app.cancellations.stop(request.session_hash)
        return message("Cancelled. What was computed stays."), gr.update(visible=False)

    controls.cancel.click(stop, None, [controls.status, controls.cancel], cancels=list(events), queue=False, **PRIVATE)


def run_on_click(
    app: App,
    controls: Controls,
    compute: Callable[..., Iterator[dict[Any, Any]]],
    inputs: list[Any],
    outputs: list[Any],
) -> Any:
    """Run `compute(cancellation, *inputs)` in the queue when the button is clicked; return the event."""

    def listener(request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        yield from run_with_cancel(
            app, controls, request.session_hash, lambda cancellation: compute(cancellation, *values)
        )

    # The cancel button is also there while the computation waits in the queue.
    clicked = controls.run.click(lambda: gr.update(visible=True), None, controls.cancel, queue=False, **PRIVATE)
    return clicked.then(listener, inputs, [controls.status, controls.cancel, *outputs], **computing(controls.status))


def offer_objectives(app: App, tab: gr.Tab) -> None:
    """Offer the objectives of attacks on tokens that the model on the page has, when the tab or a model is selected."""
    objective = app.components["token-attack"]["objective"]

    def offer(model: str, chosen: str) -> Any:
        offered = app.catalog.objectives(model)
        return gr.update(choices=offered, value=chosen if chosen in offered else "cosine")

    for event in (tab.select, app.model.change):
        event(offer, [app.model, objective], objective, **PRIVATE, concurrency_id=QUEUE)
