"""The tab for one model and one text: constants of its layers and heads, and what single tokens do."""

from __future__ import annotations

from typing import Any

import gradio as gr

from howsmooth.explorer import html
from howsmooth.explorer.app import App, Cancellation, Session
from howsmooth.explorer.question_tab import (
    PRIVATE,
    Updates,
    cancel_on_click,
    clickable_output,
    components_of,
    computing,
    output,
    run_and_cancel,
    run_on_click,
    run_with_cancel,
)
from howsmooth.explorer.tabs import layers_form, texts_of
from howsmooth.report.style import Colouring, gain_colouring, share_colouring
from howsmooth.studies.run import measure
from howsmooth.studies.token_effects import move_each_token, move_one_token, moves_tokens_in_one_pass


def layers_tab(app: App) -> None:
    """Add the tab for the constants of layers, their heads and single tokens."""
    form = layers_form(app.catalog.limits)
    components = components_of(form)
    controls = run_and_cancel("measure", "Measure")
    table = clickable_output("constants", "layer")
    words = clickable_output("words", "token")
    token = output("token")
    heads = output("heads")
    command = output("command")
    app.download = output("download")
    status = controls.status
    inputs = app.register(form, components)
    parameters = list(app.components["measure"])

    def measure_layers(cancellation: Cancellation, before: Session, *given: Any) -> Updates:
        session = Session(texts_of(dict(zip(parameters, given, strict=True))))
        yield {
            status: html.progress(0, 1, "loading the model"),
            **dict.fromkeys((table, words, token, heads, command), ""),
        }
        work = app.work(form, session.values or {})
        total = work.settings.estimates
        yield {status: html.progress(0, total, work.note), command: html.command_line(work.command)}
        for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
            session.records.append(record)
            yield {
                status: html.progress(len(session.records), total, f"layer {record['layer']}, n = {record['n']}"),
                table: html.constants(session.records),
                app.session: session,
            }
        session.layer = before.layer if session.record(before.layer) is not None else session.largest_layer
        yield {app.session: session, **selection(session), app.download: html.report_download(session.all_records)}
        yield from measure_gains(session)
        yield {
            status: html.message(
                f"Measured on {work.note}. Click a layer for its heads, a token for where its change arrives.", "done"
            )
        }

    def selection(session: Session, position: int | None = None) -> dict[Any, Any]:
        """Return the table and the text with the selected layer and token."""
        colourings = colourings_of(session)
        shown = html.token_texts(session.words, colourings, position) if colourings else ""
        if len(colourings) > 1:
            shown += html.largest_gains(session.words, colourings[0], colourings[1])
        elif colourings and not session.one_pass:
            shown += html.message(
                "Click a token to measure its gain. Those of all tokens at once are computed only for the map "
                "attention, and only where howsmooth reads its weights: elsewhere that takes minutes."
            )
        return {table: html.constants(session.records, session.layer), words: shown}

    def measure_gains(session: Session) -> Updates:
        """Measure the gains of all tokens at the selected layer, if one pass does that."""
        layer, values = session.layer, session.values
        if layer is None or values is None or not colourings_of(session):
            return
        work = app.work(form, values).layer(layer)
        session.one_pass = moves_tokens_in_one_pass(work.model, work.settings)
        if layer not in session.gains and session.one_pass:
            yield {status: html.progress(0, 1, f"each token of layer {layer} alone")}
            session.gains[layer] = move_each_token(work.model, work.text, work.settings)
        yield {app.session: session, **selection(session)}

    def select_layer(session: Session | None, event: gr.EventData) -> dict[Any, Any]:
        if session is None or session.record(event.index) is None:
            return {status: html.message("That layer is not measured yet.", "warn")}
        session.layer = event.index
        return {app.session: session, heads: "", token: "", **selection(session)}

    def measure_layer(session: Session | None, request: gr.Request) -> Updates:
        """Measure the gains of the tokens of the selected layer, and its heads."""
        if session is None or session.layer is None or session.values is None:
            return
        layer, values = session.layer, session.values

        def compute(cancellation: Cancellation) -> Updates:
            yield from measure_gains(session)
            work = app.work(form, values).layer(layer, each_head=True)
            found = session.heads.setdefault(layer, [])
            found.clear()
            for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
                found.append(record)
                yield {
                    status: html.progress(len(found), work.settings.estimates, f"heads of layer {layer}"),
                    heads: html.constants(found, heads=True),
                }
            yield {
                status: html.message(f"All heads of layer {layer} are measured.", "done"),
                app.session: session,
                app.download: html.report_download(session.all_records),
            }

        yield from run_with_cancel(app, controls, request.session_hash, compute)

    def perturb_token(session: Session | None, request: gr.Request, event: gr.EventData) -> Updates:
        if session is None or session.layer is None or session.values is None:
            return
        layer, values, record = session.layer, session.values, session.record(session.layer)
        if record is None:
            return

        def compute(cancellation: Cancellation) -> Updates:
            yield {status: html.progress(0, 1, f"moving token {event.index} alone"), **selection(session, event.index)}
            work = app.work(form, {**values, "tokens": "all"}).layer(layer)
            found = move_one_token(work.model, work.text, work.settings, event.index)
            yield {
                token: html.token_effect(found, record["shares"][event.index], record["value"]),
                status: html.message(f"Token {event.index} was moved alone.", "done"),
            }

        yield from run_with_cancel(app, controls, request.session_hash, compute)

    shown = [table, words]
    measured = run_on_click(
        app,
        controls,
        measure_layers,
        [app.session, *inputs],
        [*shown, token, heads, command, app.session, app.download],
    )
    layer_selected = table.select(
        select_layer, app.session, [status, *shown, token, heads, app.session], queue=False, **PRIVATE
    )
    layer_measured = layer_selected.then(
        measure_layer,
        app.session,
        [status, controls.cancel, *shown, heads, app.session, app.download],
        **computing(status),
    )
    token_perturbed = words.select(
        perturb_token, app.session, [status, controls.cancel, *shown, token], **computing(status)
    )
    cancel_on_click(app, controls, [measured, layer_measured, token_perturbed])


def colourings_of(session: Session) -> list[Colouring]:
    """Return what the colours of the tokens show: the shares at the selected layer, and the gains if they are known."""
    record = session.record(session.layer)
    if record is None or not record["shares"]:
        return []
    gains = session.gains.get(record["layer"])
    shares = [share_colouring(record["shares"])]
    return shares if gains is None else [*shares, gain_colouring(gains["gains"], record["value"])]
