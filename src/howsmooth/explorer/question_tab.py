"""A form about one question, of the components that all tabs share: inputs, button, tables, figures, a page to save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import gradio as gr

from howsmooth.explorer import html
from howsmooth.explorer.app import QUEUE, App, Cancellation
from howsmooth.explorer.html import message
from howsmooth.explorer.tabs import Form, Input, texts_of
from howsmooth.lazy import deferred
from howsmooth.questions import find_question
from howsmooth.questions.command_line import command_line, written
from howsmooth.questions.question import Question
from howsmooth.report.figure import draw_question
from howsmooth.studies.plan import Plan, prepare, prepare_model
from howsmooth.studies.run import records_of

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


def components_of(form: Form) -> dict[str, Any]:
    """Create the components of a form's inputs, in a row."""
    with gr.Row():
        return {name: _component(f"{form.question}-{name}", one) for name, one in form.inputs.items()}


def _component(name: str, one: Input) -> Any:
    value = one.read(written(one.value))
    settings: dict[str, Any] = {"value": value, "label": one.label, "info": one.info or None, "elem_id": name}
    if one.choices:
        return (gr.CheckboxGroup if one.most > 1 else gr.Dropdown)(list(one.choices), **settings)
    if one.step:
        return gr.Slider(one.low, one.high, step=one.step, min_width=240, **settings)
    if one.is_number:
        return gr.Number(precision=0, minimum=one.low, min_width=120, **settings)
    return gr.Textbox(max_lines=1, **settings)


def question_form(app: App, form: Form) -> None:
    """Add a form to a tab."""
    question = find_question(form.question)
    with gr.Accordion(form.title, open=True) if form.title else nullcontext():
        inputs = app.register(form, components_of(form))
        controls = run_and_cancel(form.question, form.button)
        shown, pictures, command, save = (
            output(f"{form.question}-{part}") for part in ("result", "pictures", "command", "save")
        )
    status, parameters = controls.status, list(app.components[form.question])
    figures = _figures(form, question)

    def compute(cancellation: Cancellation, *given: Any) -> Updates:
        values = texts_of(dict(zip(parameters, given, strict=True)))
        yield {status: html.progress(0, 1, "loading"), **dict.fromkeys((shown, pictures, command, save), "")}
        plan, line, note = _planned(app, form, values)
        yield {status: html.progress(0, plan.count, note or form.button), command: html.command_line(line)}
        found: list[dict[str, Any]] = []
        steps: list[dict[str, Any]] = [{}]
        last = None

        def watch(step: dict[str, Any]) -> None:
            cancellation.check()
            if "note" not in step:
                steps.append(step)

        for record in records_of(plan, progress=watch):
            cancellation.check()
            found.append(record)
            doing = question.describe(steps[-1])
            if form.asks_models:
                yield {
                    status: html.progress(len(found), plan.count, doing),
                    shown: _shown(form, question, found, live=True),
                }
            elif doing != last:
                last = doing
                yield {status: html.progress(len(found) - 1, plan.count, doing)}
        measured_on = f"Measured on {note}. " if note else ""
        yield {
            status: html.message(measured_on + form.done(found), "done"),
            shown: _shown(form, question, found),
            pictures: html.pictures(
                *(html.picture(partial(_drawn, draw, found), name or question.plots) for name, draw in figures.items())
            ),
        }
        yield {save: html.report_download(found)}

    event = run_on_click(app, controls, compute, inputs, [shown, pictures, command, save])
    cancel_on_click(app, controls, [event])


def _planned(app: App, form: Form, values: dict[str, str]) -> tuple[Plan, str, str]:
    """Return the plan for the values of a form, its command line, and which part of the text is measured."""
    if form.asks_models:
        work = app.work(form, values)
        return prepare_model(work.settings, work.model, work.text), work.command, work.note
    spec = form.spec(values)
    return prepare(spec), command_line(spec), ""


def _figures(form: Form, question: Question) -> dict[str, Any]:
    """Return the functions that draw records: none where the question has a page of its own, which is shown."""
    if form.figures is not None:
        return dict(form.figures)
    return {"": partial(draw_question, question)} if question.draws and question.page is None else {}


def _drawn(draw: Any, records: Sequence[dict[str, Any]], theme: str) -> Any:
    return draw(records, theme=theme)


def _shown(form: Form, question: Question, records: Sequence[dict[str, Any]], *, live: bool = False) -> str:
    if form.show is not None:
        return form.show(records)
    if question.page is not None:
        return html.sandboxed_frame(deferred(question.page)(records), form.button)
    return html.tables(((live and question.live_tables) or question.tables)(records))
