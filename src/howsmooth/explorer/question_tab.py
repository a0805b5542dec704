"""A form about one question: its inputs, the button that asks it, its tables and figures, and what can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import gradio as gr

from howsmooth.explorer import html
from howsmooth.explorer.app import App, Cancellation
from howsmooth.explorer.components import Updates, cancel_on_click, output, run_and_cancel, run_on_click
from howsmooth.explorer.forms import Form, Input, texts_of
from howsmooth.lazy import deferred
from howsmooth.questions import find_question
from howsmooth.questions.command_line import command_line, written
from howsmooth.questions.question import Question
from howsmooth.report.figure import draw_question
from howsmooth.studies.plan import Plan, prepare, prepare_model
from howsmooth.studies.run import records_of


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
