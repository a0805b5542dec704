"""Tabs about one model and one text: constants of layers, heads and tokens; growth with length; attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from howsmooth.attack.tokens import OBJECTIVES, Limits
from howsmooth.bounds import EVERY
from howsmooth.explorer import html
from howsmooth.explorer.app import App, Cancellation, Session
from howsmooth.explorer.choice import MAPS, Choice, numbers, prepare
from howsmooth.explorer.components import PRIVATE, cancelling, clickable, computing, run_and_cancel, shown, started
from howsmooth.fits import growth_laws
from howsmooth.report.attack_tables import diff_html
from howsmooth.report.figure import bounds_figure, growth_figure
from howsmooth.report.rows import confidence_text, interval, law_text, magnitude, number
from howsmooth.report.table import Column, Table
from howsmooth.studies import bound, measure, move_one_token
from howsmooth.studies.layer_attacks import RelativeBudgets, feature_attacks, named_attack
from howsmooth.studies.token_attacks import ALL_METHODS, chunks_to_attack, methods_named, objective_named, token_attacks

ATTACKS = ("noise", "sign", "singular", "ascent")
MOST_EDITS, MOST_CALLS = 5, 200


def layers_tab(app: App) -> None:
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
    table = clickable("constants", "layer")
    words = clickable("words", "token")
    token = shown("token")
    heads = shown("heads")
    command = shown("command")
    app.download = gr.DownloadButton(
        "Download the report of what is on the screen", interactive=False, elem_id="download"
    )

    def layers_of(cancellation: Cancellation, visitor: str | None, *values) -> Iterator[dict]:
        choice = Choice(values[0], values[1], *values[2:])
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
        yield {status: html.progress(0, total, f"{work.note}"), command: html.command_line(work.choice.command)}
        for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
            session.records.append(record)
            yield {
                status: html.progress(len(session.records), total, f"layer {record['layer']}, n = {record['n']}"),
                table: html.constants(session.records),
                app.session: session,
            }
        session.layer = session.roughest
        yield {
            status: html.said(
                f"Measured on {work.note}. Click a layer for its heads, a token for what moving it does.", "done"
            ),
            app.session: session,
            **looked_at(session),
            app.download: gr.update(**app.report(visitor, session)),
        }

    def looked_at(session: Session, position: int | None = None) -> dict:
        record = session.record(session.layer)
        caption = f"Where the worst direction of layer {session.layer} sits: the darker, the larger a token's share."
        return {
            table: html.constants(session.records, session.layer),
            words: html.words(session.words, record["shares"], position, caption) if record["shares"] else "",
        }

    def look_into(session: Session, event: gr.EventData) -> dict:
        if session is None or session.record(event.index) is None:
            return {status: html.said("That layer is not measured yet.", "warn")}
        session.layer = event.index
        return {app.session: session, heads: "", token: "", **looked_at(session)}

    def heads_of(session: Session, request: gr.Request) -> Iterator[dict]:
        if session is None or session.layer is None:
            return

        def compute(cancellation: Cancellation) -> Iterator[dict]:
            layer = session.layer
            work = prepare(session.choice, app.catalog).layer(layer, heads="all")
            found = session.heads.setdefault(layer, [])
            found.clear()
            for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
                found.append(record)
                yield {
                    status: html.progress(len(found), work.settings.estimates, f"heads of layer {layer}"),
                    heads: html.constants(found, heads=True),
                }
            yield {
                status: html.said(f"All heads of layer {layer} are measured.", "done"),
                app.session: session,
                app.download: gr.update(**app.report(request.session_hash, session)),
            }

        yield from app.run(request.session_hash, status, compute)

    def move(session: Session, request: gr.Request, event: gr.EventData) -> Iterator[dict]:
        if session is None or session.layer is None:
            return

        def compute(cancellation: Cancellation) -> Iterator[dict]:
            record = session.record(session.layer)
            yield {status: html.progress(0, 1, f"moving token {event.index} alone"), **looked_at(session, event.index)}
            work = prepare(replace(session.choice, tokens="all"), app.catalog).layer(session.layer)
            found = move_one_token(work.model, work.text, work.settings, event.index)
            yield {
                token: html.moved(found, record["shares"][event.index], record["value"]),
                status: html.said(f"Token {event.index} was moved alone.", "done"),
            }

        yield from app.run(request.session_hash, status, compute)

    measured = started(
        app,
        run,
        status,
        layers_of,
        [app.model, app.text, layers, map_name, length, tokens],
        [table, words, token, heads, command, app.session, app.download],
    )
    looked = table.select(
        look_into, app.session, [status, table, words, token, heads, app.session], queue=False, **PRIVATE
    )
    opened = looked.then(heads_of, app.session, [status, heads, app.session, app.download], **computing(status))
    one = words.select(move, app.session, [status, table, words, token], **computing(status))
    cancelling(app, cancel, status, [measured, opened, one])


def growth_tab(app: App) -> None:
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
    table = shown("growth-table")
    pictures = shown("growth-pictures")

    def compute(
        cancellation: Cancellation,
        visitor: str | None,
        model: str,
        text: str,
        layer: float,
        longest: int,
        session: Session,
    ) -> Iterator[dict]:
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
        measured = beside(found)
        fits = growth_laws(measured)
        yield {
            status: html.said(fitted(fits), "done"),
            table: lengths_table(found),
            app.session: session,
            pictures: html.pictures(
                html.picture(partial(_growth, measured, fits), "Constant against length, with the fitted law"),
                html.picture(partial(_bounds, found), "The same between its bounds"),
            ),
            app.download: gr.update(**app.report(visitor, session)),
        }

    event = started(
        app,
        run,
        status,
        compute,
        [app.model, app.text, layer, longest, app.session],
        [table, pictures, app.session, app.download],
    )
    cancelling(app, cancel, status, [event])


def beside(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured constants that stand beside bounds, each once."""
    return list({record["n"]: {**record, **record["measured"]} for record in records}.values())


def lengths_table(records: Sequence[dict[str, Any]]) -> str:
    """One row per length: measured, and the sharpest bounds on the whole ball."""

    def sharpest(side: str, which: Callable) -> Callable[[dict[str, Any]], str]:
        def cell(one: dict[str, Any]) -> str:
            logs = [r["log_value"] for r in records if (r["n"], r["side"], r["holds"]) == (one["n"], side, "on B_R^n")]
            return magnitude(which(logs)) if logs else ""

        return cell

    rows = beside(records)
    return html.table(
        Table(
            f"Layer {records[0]['layer']}; the ball is all that its normalisation can put out",
            [
                Column("n", lambda one: one["n"]),
                Column("constant", lambda one: html.strong(number(one["value"]))),
                Column(f"interval, {confidence_text(rows)}", lambda one: interval(one["lower"], one["upper"]), "left"),
                Column("sup on the ball ≥", sharpest("lower", max)),
                Column("sup on the ball ≤", sharpest("upper", min)),
            ],
            rows,
        )
    )


def fitted(fits: dict) -> str:
    """The fitted law in words."""
    if not fits:
        return "No constant is positive, so that there is no law."
    (law,) = fits.values()
    return f"Lip ≈ {law_text(law)}: {law.verdict}; theory allows √n at most." if law.shown else f"{law.verdict}."


def _growth(records, fits, theme: str):
    return growth_figure(records, fits, theme=theme)


def _bounds(records, theme: str):
    return bounds_figure(records, theme=theme)


def attack_tab(app: App) -> None:
    longest = app.catalog.limits.max_tokens
    with gr.Accordion("Perturb what enters a layer", open=True):
        with gr.Row():
            layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="attack-layer", min_width=120)
            sizes = gr.Textbox("0.001,0.01,0.1", label="Sizes, as shares of ‖X‖", elem_id="attack-sizes", max_lines=1)
            attacks = gr.CheckboxGroup(list(ATTACKS), value=list(ATTACKS), label="Attacks", elem_id="attack-names")
        run, cancel, status = run_and_cancel("attack", "Attack the layer")
        table = shown("attacks")
    with gr.Accordion("Exchange words", open=True):
        with gr.Row():
            method = gr.Dropdown(list(ALL_METHODS), value="hotflip", label="Method", elem_id="words-method")
            objective = gr.Dropdown(
                list(OBJECTIVES),
                value="cosine",
                label="Objective",
                elem_id="words-objective",
                info="flip and kl need a model that says what comes next",
            )
            edits = gr.Slider(1, MOST_EDITS, value=2, step=1, label="Tokens that may be edited", elem_id="words-edits")
            calls = gr.Slider(10, MOST_CALLS, value=40, step=10, label="Calls of the model", elem_id="words-calls")
        exchange, stop, words_status = run_and_cancel("words-attack", "Attack the words")
        difference = shown("difference")

    def features(
        cancellation: Cancellation,
        _visitor: str | None,
        model: str,
        text: str,
        layer: float,
        sizes: str,
        names: list[str],
    ) -> Iterator[dict]:
        yield {status: html.progress(0, 1, f"loading {model}"), table: ""}
        budgets = RelativeBudgets(numbers(sizes, "the sizes"))
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
            status: html.said(
                f"Attacked on {work.note}. Gain is change of the output over change of the input: σ₁ "
                "is its limit for small sizes.",
                "done",
            )
        }

    def exchanged(
        cancellation: Cancellation,
        _visitor: str | None,
        model: str,
        text: str,
        method: str,
        objective: str,
        edits: int,
        calls: int,
    ) -> Iterator[dict]:
        yield {words_status: html.progress(0, 1, f"loading {model}"), difference: ""}
        work = prepare(Choice(model, text, "0", length=min(128, longest)), app.catalog)
        methods, aim = methods_named([method]), objective_named(objective)
        limits, calls = Limits(edits=min(int(edits), MOST_EDITS)), min(int(calls), MOST_CALLS)
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
                words_status: html.said(
                    f"{work.note.capitalize()} were attacked; the value was evaluated again "
                    f"{'and holds' if record['verified'] else 'and DOES NOT HOLD'}.",
                    "done",
                ),
                difference: diff_with_values(record),
            }

    cancelling(
        app,
        cancel,
        status,
        [started(app, run, status, features, [app.model, app.text, layer, sizes, attacks], [table])],
    )
    cancelling(
        app,
        stop,
        words_status,
        [
            started(
                app,
                exchange,
                words_status,
                exchanged,
                [app.model, app.text, method, objective, edits, calls],
                [difference],
            )
        ],
    )


def gains_table(records: Sequence[dict[str, Any]]) -> str:
    """One row per size and attack."""
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
    """The text with what went and what came, above it what that did."""
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
