"""Tabs for one model and one text: constants of layers, heads and tokens; growth with length; attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any, TypeAlias

import gradio as gr

from howsmooth.attack.tokens import OBJECTIVES, Limits
from howsmooth.bounds import EVERY
from howsmooth.explorer import html
from howsmooth.explorer.app import App, Cancellation, Session
from howsmooth.explorer.choice import MAPS, Choice, parse_numbers, prepare
from howsmooth.explorer.components import (
    PRIVATE,
    cancel_on_click,
    clickable_output,
    computing,
    output,
    run_and_cancel,
    run_on_click,
)
from howsmooth.fits import Law, growth_laws
from howsmooth.report.attack_tables import diff_html
from howsmooth.report.figure import bounds_figure, growth_figure
from howsmooth.report.rows import confidence_text, interval, law_text, magnitude, number
from howsmooth.report.table import Column, Table
from howsmooth.studies import bound, measure, move_one_token
from howsmooth.studies.layer_attacks import RelativeBudgets, feature_attacks, named_attack
from howsmooth.studies.token_attacks import ALL_METHODS, chunks_to_attack, methods_named, objective_named, token_attacks

Updates: TypeAlias = Iterator[dict[Any, Any]]  # new values of components, as gradio takes them

ATTACKS = ("noise", "sign", "singular", "ascent")
MAX_EDITS, MAX_CALLS = 5, 200


def layers_tab(app: App) -> None:
    """Add the tab for the constants of layers, their heads and single tokens."""
    with gr.Row():
        layers = gr.Textbox("all", label="Layers", info="all, or numbers such as 0,2,5", elem_id="layers", max_lines=1)
        map_name = gr.Dropdown(
            list(MAPS),
            value="attention",
            label="Map",
            elem_id="map",
            info="attention alone, with norm, with residual, or the layer",
        )
        tokens = gr.Dropdown(
            ["all", "no-special", "no-first"],
            value="all",
            label="Tokens that may move",
            elem_id="tokens",
            info="all, or without special or first ones",
        )
    length = gr.Slider(
        8, app.catalog.limits.max_tokens, value=64, step=1, label="Tokens of the text to measure", elem_id="length"
    )
    run, cancel, status = run_and_cancel("measure", "Measure")
    table = clickable_output("constants", "layer")
    words = clickable_output("words", "token")
    token = output("token")
    heads = output("heads")
    command = output("command")
    app.download = gr.DownloadButton("Download the report of these results", interactive=False, elem_id="download")

    def measure_layers(cancellation: Cancellation, visitor: str | None, *values: Any) -> Updates:
        choice = Choice(*values)
        yield {
            status: html.progress(0, 1, f"loading {choice.model}"),
            table: "",
            words: "",
            token: "",
            heads: "",
            command: "",
        }
        work = prepare(choice, app.catalog)
        session = Session(work.choice)
        total = work.settings.estimates
        yield {status: html.progress(0, total, work.note), command: html.command_line(work.choice.command)}
        for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
            session.records.append(record)
            yield {
                status: html.progress(len(session.records), total, f"layer {record['layer']}, n = {record['n']}"),
                table: html.constants(session.records),
                app.session: session,
            }
        session.layer = session.largest_layer
        yield {
            status: html.message(
                f"Measured on {work.note}. Click a layer for its heads, a token for what moving it does.", "done"
            ),
            app.session: session,
            **selection(session),
            app.download: gr.update(**app.report(visitor, session)),
        }

    def selection(session: Session, position: int | None = None) -> dict[Any, Any]:
        """Return the table and the text with the selected layer and token."""
        record = session.record(session.layer)
        caption = f"The worst direction of layer {session.layer}: the darker a token, the larger its share."
        shares = record["shares"] if record is not None else None
        return {
            table: html.constants(session.records, session.layer),
            words: html.token_buttons(session.words, shares, position, caption) if shares else "",
        }

    def select_layer(session: Session | None, event: gr.EventData) -> dict[Any, Any]:
        if session is None or session.record(event.index) is None:
            return {status: html.message("That layer is not measured yet.", "warn")}
        session.layer = event.index
        return {app.session: session, heads: "", token: "", **selection(session)}

    def measure_heads(session: Session | None, request: gr.Request) -> Updates:
        if session is None or session.layer is None or session.choice is None:
            return
        layer, choice = session.layer, session.choice

        def compute(cancellation: Cancellation) -> Updates:
            work = prepare(choice, app.catalog).layer(layer, each_head=True)
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
                app.download: gr.update(**app.report(request.session_hash, session)),
            }

        yield from app.run(request.session_hash, status, compute)

    def perturb_token(session: Session | None, request: gr.Request, event: gr.EventData) -> Updates:
        if session is None or session.layer is None or session.choice is None:
            return
        layer, choice, record = session.layer, session.choice, session.record(session.layer)
        if record is None:
            return

        def compute(cancellation: Cancellation) -> Updates:
            yield {status: html.progress(0, 1, f"moving token {event.index} alone"), **selection(session, event.index)}
            work = prepare(replace(choice, tokens="all"), app.catalog).layer(layer)
            found = move_one_token(work.model, work.text, work.settings, event.index)
            yield {
                token: html.token_effect(found, record["shares"][event.index], record["value"]),
                status: html.message(f"Token {event.index} was moved alone.", "done"),
            }

        yield from app.run(request.session_hash, status, compute)

    measured = run_on_click(
        app,
        run,
        status,
        measure_layers,
        [app.model, app.text, layers, map_name, length, tokens],
        [table, words, token, heads, command, app.session, app.download],
    )
    layer_selected = table.select(
        select_layer, app.session, [status, table, words, token, heads, app.session], queue=False, **PRIVATE
    )
    heads_measured = layer_selected.then(
        measure_heads, app.session, [status, heads, app.session, app.download], **computing(status)
    )
    token_perturbed = words.select(perturb_token, app.session, [status, table, words, token], **computing(status))
    cancel_on_click(app, cancel, status, [measured, heads_measured, token_perturbed])


def growth_tab(app: App) -> None:
    """Add the tab for the growth of one layer's constant with length, and its bounds."""
    with gr.Row():
        layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="growth-layer", min_width=120)
        longest = gr.Slider(
            16,
            app.catalog.limits.max_tokens,
            value=min(128, app.catalog.limits.max_tokens),
            step=1,
            label="Longest text, in tokens",
            elem_id="growth-length",
            scale=3,
        )
    run, cancel, status = run_and_cancel("growth", "Follow the growth")
    table = output("growth-table")
    pictures = output("growth-pictures")

    def compute(
        cancellation: Cancellation,
        visitor: str | None,
        model: str,
        text: str,
        layer: float,
        longest: int,
        session: Session,
    ) -> Updates:
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", pictures: ""}
        work = prepare(Choice(model, text, str(int(layer or 0)), length=longest), app.catalog).lengths()
        lengths, found = work.settings.lengths, []
        for record in bound(work.model, work.text, work.settings, progress=cancellation.check):
            found.append(record)
            if len(found) % len(EVERY) == 0:
                done = len(found) // len(EVERY)
                yield {status: html.progress(done, len(lengths), f"n = {record['n']}"), table: lengths_table(found)}
        session = session or Session()
        session.bounds = found
        measured = measured_constants(found)
        fits = growth_laws(measured)
        yield {
            status: html.message(fit_text(fits), "done"),
            table: lengths_table(found),
            app.session: session,
            pictures: html.pictures(
                html.picture(
                    lambda theme: growth_figure(measured, fits, theme=theme),
                    "Constant against length, with the fitted law",
                ),
                html.picture(lambda theme: bounds_figure(found, theme=theme), "The same between its bounds"),
            ),
            app.download: gr.update(**app.report(visitor, session)),
        }

    event = run_on_click(
        app,
        run,
        status,
        compute,
        [app.model, app.text, layer, longest, app.session],
        [table, pictures, app.session, app.download],
    )
    cancel_on_click(app, cancel, status, [event])


def measured_constants(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the measured constant at each length from the records of bounds."""
    return list({record["n"]: {**record, **record["measured"]} for record in records}.values())


def lengths_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of measured constants and the tightest bounds on the whole ball, a row for each length."""

    def tightest(side: str, reduce: Callable[[list[float]], float]) -> Callable[[dict[str, Any]], str]:
        def cell(one: dict[str, Any]) -> str:
            logs = [r["log_value"] for r in records if (r["n"], r["side"], r["holds"]) == (one["n"], side, "on B_R^n")]
            return magnitude(reduce(logs)) if logs else ""

        return cell

    rows = measured_constants(records)
    return html.table(
        Table(
            f"Layer {records[0]['layer']}; the ball is all that its normalisation can put out",
            [
                Column("n", lambda one: one["n"]),
                Column("constant", lambda one: html.strong(number(one["value"]))),
                Column(f"interval, {confidence_text(rows)}", lambda one: interval(one["lower"], one["upper"]), "left"),
                Column("sup on the ball ≥", tightest("lower", max)),
                Column("sup on the ball ≤", tightest("upper", min)),
            ],
            rows,
        )
    )


def fit_text(fits: dict[tuple, Law]) -> str:
    """Describe the fitted law."""
    if not fits:
        return "No constant is positive, so there is no law."
    (law,) = fits.values()
    return f"Lip ≈ {law_text(law)}: {law.verdict}; theory allows √n at most." if law.shown else f"{law.verdict}."


def attack_tab(app: App) -> None:
    """Add the tab for attacks on the input of a layer and on the tokens of the text."""
    longest = app.catalog.limits.max_tokens
    with gr.Accordion("Perturb what enters a layer", open=True):
        with gr.Row():
            layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="attack-layer", min_width=120)
            sizes = gr.Textbox("0.001,0.01,0.1", label="Sizes, as shares of ‖X‖", elem_id="attack-sizes", max_lines=1)
            attacks = gr.CheckboxGroup(list(ATTACKS), value=list(ATTACKS), label="Attacks", elem_id="attack-names")
        run, cancel, status = run_and_cancel("attack", "Attack the layer")
        table = output("attacks")
    with gr.Accordion("Exchange words", open=True):
        with gr.Row():
            method = gr.Dropdown(list(ALL_METHODS), value="hotflip", label="Method", elem_id="words-method")
            objective = gr.Dropdown(
                list(OBJECTIVES),
                value="cosine",
                label="Objective",
                elem_id="words-objective",
                info="flip and kl need a model that predicts the next token",
            )
            edits = gr.Slider(1, MAX_EDITS, value=2, step=1, label="Tokens that may be edited", elem_id="words-edits")
            calls = gr.Slider(10, MAX_CALLS, value=40, step=10, label="Calls of the model", elem_id="words-calls")
        exchange, stop, words_status = run_and_cancel("words-attack", "Attack the words")
        difference = output("difference")

    def attack_features(
        cancellation: Cancellation,
        _visitor: str | None,
        model: str,
        text: str,
        layer: float,
        sizes: str,
        names: list[str],
    ) -> Updates:
        yield {status: html.progress(0, 1, f"loading {model}"), table: ""}
        budgets = RelativeBudgets(parse_numbers(sizes, "the sizes"))
        chosen = [named_attack(name) for name in names] or [named_attack("singular")]
        work = prepare(Choice(model, text, str(int(layer or 0)), length=min(64, longest)), app.catalog)
        found, total = [], len(budgets.sizes) * len(chosen)
        for record in feature_attacks(
            work.model, work.text, work.settings, attacks=chosen, budgets=budgets, progress=cancellation.check
        ):
            cancellation.check()
            found.append(record)
            yield {status: html.progress(len(found), total, record["attack"]["name"]), table: gains_table(found)}
        yield {
            status: html.message(
                f"Attacked on {work.note}. Gain is change of the output over change of the input: σ₁ "
                "is its limit for small sizes.",
                "done",
            )
        }

    def attack_tokens(
        cancellation: Cancellation,
        _visitor: str | None,
        model: str,
        text: str,
        method: str,
        objective: str,
        edits: int,
        calls: int,
    ) -> Updates:
        yield {words_status: html.progress(0, 1, f"loading {model}"), difference: ""}
        work = prepare(Choice(model, text, "0", length=min(128, longest)), app.catalog)
        methods, aim = methods_named([method]), objective_named(objective)
        limits, calls = Limits(edits=min(int(edits), MAX_EDITS)), min(int(calls), MAX_CALLS)
        chunks = chunks_to_attack(work.model, work.text, work.settings.lengths[0], 1, aim, limits)
        yield {words_status: html.progress(0, 1, f"{method}, at most {calls} calls of the model")}
        for record in token_attacks(
            work.model,
            work.text,
            chunks,
            methods,
            objective=aim,
            limits=limits,
            calls=calls,
            progress=cancellation.check,
        ):
            yield {
                words_status: html.message(
                    f"{work.note.capitalize()} were attacked; the value was evaluated again "
                    f"{'and holds' if record['verified'] else 'and DOES NOT HOLD'}.",
                    "done",
                ),
                difference: diff_with_values(record),
            }

    cancel_on_click(
        app,
        cancel,
        status,
        [run_on_click(app, run, status, attack_features, [app.model, app.text, layer, sizes, attacks], [table])],
    )
    cancel_on_click(
        app,
        stop,
        words_status,
        [
            run_on_click(
                app,
                exchange,
                words_status,
                attack_tokens,
                [app.model, app.text, method, objective, edits, calls],
                [difference],
            )
        ],
    )


def gains_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of attacks with a row for each size and attack."""
    return html.table(
        Table(
            f"Layer {records[0]['layer']}, n = {records[0]['n']}",
            [
                Column("size", lambda r: f"{r['share']:g}"),
                Column("attack", lambda r: r["attack"]["name"], "left"),
                Column("gain", lambda r: html.strong(number(r["gain"]))),
                Column(
                    "of σ₁", lambda r: f"{100 * r['gain'] / r['sigma']['value']:.0f} %" if r["sigma"]["value"] else ""
                ),
                Column("σ₁", lambda r: number(r["sigma"]["value"]), css="hs-wide"),
                Column("certified ≤", lambda r: "" if r["certified"] is None else magnitude(math.log(r["certified"]))),
            ],
            records,
        )
    )


def diff_with_values(record: dict[str, Any]) -> str:
    """Return the difference of the texts, with the values before and after the edits above it."""
    says = (
        ""
        if not record["says"]
        else "; next: <code>{}</code> → <code>{}</code>".format(*(escape(str(word)) for word in record["says"]))
    )
    return (
        f"<p><b>{number(record['clean'], 3)} → {number(record['value'], 3)}</b> "
        f"({escape(record['objective']['name'])}) in {record['calls']} calls{says}</p>"
        f'<p class="hs-diff">{diff_html(record)}</p>'
    )
