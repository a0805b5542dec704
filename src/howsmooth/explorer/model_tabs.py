"""Tabs for one model and one text: constants of layers, heads and tokens; growth with length; attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from typing import Any, TypeAlias

import gradio as gr

from howsmooth.attack.tokens import OBJECTIVES, Limits
from howsmooth.bounds import EVERY
from howsmooth.explorer import exports, html
from howsmooth.explorer.app import QUEUE, App, Cancellation, Session
from howsmooth.explorer.choice import MAPS, TOKENS, Choice, parse_numbers, prepare
from howsmooth.explorer.components import (
    PRIVATE,
    cancel_on_click,
    clickable_output,
    computing,
    output,
    run_and_cancel,
    run_on_click,
    run_with_cancel,
)
from howsmooth.explorer.links import LAYERS, checked, one_of, some_of, whole_number
from howsmooth.fits import Law, growth_laws
from howsmooth.report.attack_tables import diff_html
from howsmooth.report.figure import bounds_figure, growth_figure
from howsmooth.report.rows import confidence_text, interval, law_text, magnitude, model_name, number
from howsmooth.report.table import Column, Table
from howsmooth.report.token_figure import Colouring, gain_colouring, share_colouring, token_figure
from howsmooth.studies import bound, measure, move_each_token, move_one_token
from howsmooth.studies.layer_attacks import RelativeBudgets, feature_attacks, named_attack
from howsmooth.studies.token_attacks import ALL_METHODS, chunks_to_attack, methods_named, objective_named, token_attacks

Updates: TypeAlias = Iterator[dict[Any, Any]]  # new values of components, as gradio takes them

ATTACKS = ("noise", "sign", "singular", "ascent")
MAX_EDITS, MAX_CALLS = 5, 200
MAX_LAYER = 9999  # in a link; the model itself has fewer


def layers_tab(app: App) -> None:
    """Add the tab for the constants of layers, their heads and single tokens."""
    longest = app.catalog.limits.max_tokens
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
            list(TOKENS),
            value="all",
            label="Tokens that may move",
            elem_id="tokens",
            info="all, or without special or first ones",
        )
    length = gr.Slider(8, longest, value=64, step=1, label="Tokens of the text to measure", elem_id="length")
    wanted = gr.State(None)  # the layer to select after the next measurement; None for that of the largest constant
    controls = run_and_cancel("measure", "Measure")
    table = clickable_output("constants", "layer")
    words = clickable_output("words", "token")
    token = output("token")
    heads = output("heads")
    save = output("measure-save")
    command = output("command")
    app.download = gr.DownloadButton("Download the report of these results", visible=False, elem_id="download")
    status = controls.status
    app.register(
        "measure",
        "Layers",
        {
            **app.model_and_text,
            "layers": (layers, LAYERS),
            "map": (map_name, one_of(MAPS)),
            "tokens": (tokens, one_of(TOKENS)),
            "length": (length, whole_number(8, longest)),
            "layer": (wanted, whole_number(0, MAX_LAYER)),
        },
    )

    def measure_layers(cancellation: Cancellation, visitor: str | None, wanted: int | None, *values: Any) -> Updates:
        choice = Choice(*values)
        yield {
            status: html.progress(0, 1, f"loading {choice.model}"),
            **dict.fromkeys((table, words, token, heads, save, command), ""),
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
        session.layer = wanted if session.record(wanted) is not None else session.largest_layer
        yield {app.session: session, **selection(session), app.download: gr.update(**app.report(visitor, session))}
        yield from measure_gains(session)
        yield {
            status: html.message(
                f"Measured on {work.note}. Click a layer for its heads, a token for where its change arrives.", "done"
            )
        }

    def selection(session: Session, position: int | None = None) -> dict[Any, Any]:
        """Return the table and the text with the selected layer and token."""
        record, colourings = session.record(session.layer), colourings_of(session)
        shown = html.token_texts(session.words, colourings, position) if colourings else ""
        if len(colourings) > 1:
            shown += html.largest_gains(session.words, colourings[0], colourings[1])
        return {
            table: html.constants(session.records, session.layer),
            words: shown,
            wanted: None if record is None else session.layer,
        }

    def measure_gains(session: Session) -> Updates:
        """Measure the gains of all tokens at the selected layer, unless they are known; then offer the files."""
        layer, choice = session.layer, session.choice
        if layer is None or choice is None or not colourings_of(session):
            return
        if layer not in session.gains:
            yield {status: html.progress(0, 1, f"each token of layer {layer} alone")}
            work = prepare(choice, app.catalog).layer(layer)
            session.gains[layer] = move_each_token(work.model, work.text, work.settings)
        yield {app.session: session, **selection(session)}
        yield {save: save_layers(session)}

    def save_layers(session: Session) -> str:
        """Return the links to the files and the link of the view."""
        record = session.record(session.layer)
        if record is None or session.choice is None:
            return ""
        values = {**asdict(session.choice), "layer": session.layer}
        rows = exports.token_rows(record, session.gains.get(record["layer"]), session.words)
        title = f"{model_name(record['model'])}, layer {record['layer']}, n = {record['n']}"

        def draw(theme: str) -> Any:
            return token_figure(
                session.words,
                colourings_of(session),
                title=f"{title}: local Lipschitz constant {number(record['value'])}",
                theme=theme,
            )

        return html.save_line(
            [
                *html.figure_downloads(draw, "tokens", "Tokens"),
                html.text_download("Tokens CSV", "tokens.csv", exports.csv(rows, list(rows[0]))),
                html.text_download("Layers CSV", "layers.csv", exports.csv(session.records, exports.LAYER_FIELDS)),
                html.text_download("Python", "layers.py", exports.python_code("measure", values)),
            ],
            app.link("measure", values),
        )

    def select_layer(session: Session | None, event: gr.EventData) -> dict[Any, Any]:
        if session is None or session.record(event.index) is None:
            return {status: html.message("That layer is not measured yet.", "warn")}
        session.layer = event.index
        return {app.session: session, heads: "", token: "", save: "", **selection(session)}

    def measure_layer(session: Session | None, request: gr.Request) -> Updates:
        """Measure the gains of the tokens of the selected layer, and its heads."""
        if session is None or session.layer is None or session.choice is None:
            return
        layer, choice = session.layer, session.choice

        def compute(cancellation: Cancellation) -> Updates:
            yield from measure_gains(session)
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

        yield from run_with_cancel(app, controls, request.session_hash, compute)

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

        yield from run_with_cancel(app, controls, request.session_hash, compute)

    shown = [table, words, wanted]
    measured = run_on_click(
        app,
        controls,
        measure_layers,
        [wanted, app.model, app.text, layers, map_name, length, tokens],
        [*shown, token, heads, save, command, app.session, app.download],
    )
    layer_selected = table.select(
        select_layer, app.session, [status, *shown, token, heads, save, app.session], queue=False, **PRIVATE
    )
    layer_measured = layer_selected.then(
        measure_layer,
        app.session,
        [status, controls.cancel, *shown, heads, save, app.session, app.download],
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


def growth_tab(app: App) -> None:
    """Add the tab for the growth of one layer's constant with length, and its bounds."""
    longest = app.catalog.limits.max_tokens
    with gr.Row():
        layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="growth-layer", min_width=120)
        length = gr.Slider(
            16,
            longest,
            value=min(128, longest),
            step=1,
            label="Longest text, in tokens",
            elem_id="growth-length",
            scale=3,
        )
    controls = run_and_cancel("growth", "Follow the growth")
    status = controls.status
    table = output("growth-table")
    pictures = output("growth-pictures")
    save = output("growth-save")
    app.register(
        "growth",
        "Growth",
        {
            **app.model_and_text,
            "layer": (layer, whole_number(0, MAX_LAYER)),
            "length": (length, whole_number(16, longest)),
        },
    )

    def compute(
        cancellation: Cancellation,
        visitor: str | None,
        model: str,
        text: str,
        layer: float,
        longest: int,
        session: Session,
    ) -> Updates:
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", pictures: "", save: ""}
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

        def growth(theme: str) -> Any:
            return growth_figure(measured, fits, theme=theme)

        def bounds(theme: str) -> Any:
            return bounds_figure(found, theme=theme)

        yield {
            status: html.message(fit_text(fits), "done"),
            table: lengths_table(found),
            app.session: session,
            pictures: html.pictures(
                html.picture(growth, "Constant against length, with the fitted law"),
                html.picture(bounds, "The same between its bounds"),
            ),
            app.download: gr.update(**app.report(visitor, session)),
        }
        values = {"model": model, "text": text, "layer": int(layer or 0), "length": int(longest), "lengths": lengths}
        yield {
            save: html.save_line(
                [
                    *html.figure_downloads(growth, "growth", "Growth"),
                    *html.figure_downloads(bounds, "bounds", "Bounds"),
                    html.text_download("Growth CSV", "growth.csv", exports.csv(measured, exports.LAYER_FIELDS)),
                    html.text_download("Bounds CSV", "bounds.csv", exports.csv(found, exports.BOUND_FIELDS)),
                    html.text_download("Python", "growth.py", exports.python_code("growth", values)),
                ],
                app.link("growth", values),
            )
        }

    event = run_on_click(
        app,
        controls,
        compute,
        [app.model, app.text, layer, length, app.session],
        [table, pictures, save, app.session, app.download],
    )
    cancel_on_click(app, controls, [event])


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


def attack_tab(app: App) -> Any:
    """Add the tab for attacks on the input of a layer and on the tokens of the text.

    Returns:
        A function that makes an event offer the objectives that the model on the page has.
    """
    longest = app.catalog.limits.max_tokens
    with gr.Accordion("Perturb what enters a layer", open=True):
        with gr.Row():
            layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="attack-layer", min_width=120)
            sizes = gr.Textbox("0.001,0.01,0.1", label="Sizes, as shares of ‖X‖", elem_id="attack-sizes", max_lines=1)
            attacks = gr.CheckboxGroup(list(ATTACKS), value=list(ATTACKS), label="Attacks", elem_id="attack-names")
        layer_controls = run_and_cancel("attack", "Attack the layer")
        table = output("attacks")
        layer_save = output("attack-save")
    with gr.Accordion("Exchange words", open=True):
        with gr.Row():
            method = gr.Dropdown(list(ALL_METHODS), value="hotflip", label="Method", elem_id="words-method")
            objective = gr.Dropdown(list(OBJECTIVES), value="cosine", label="Objective", elem_id="words-objective")
            edits = gr.Slider(1, MAX_EDITS, value=2, step=1, label="Tokens that may be edited", elem_id="words-edits")
            calls = gr.Slider(10, MAX_CALLS, value=40, step=10, label="Calls of the model", elem_id="words-calls")
        words_controls = run_and_cancel("words-attack", "Attack the words")
        difference = output("difference")
        words_save = output("words-save")
    app.register(
        "attack",
        "Attacks",
        {
            **app.model_and_text,
            "layer": (layer, whole_number(0, MAX_LAYER)),
            "sizes": (sizes, checked(lambda value: parse_numbers(value, "the sizes"))),
            "attacks": (attacks, some_of(ATTACKS)),
        },
    )
    app.register(
        "words-attack",
        "Attacks",
        {
            **app.model_and_text,
            "method": (method, one_of(list(ALL_METHODS))),
            "objective": (objective, one_of(list(OBJECTIVES))),
            "edits": (edits, whole_number(1, MAX_EDITS)),
            "calls": (calls, whole_number(10, MAX_CALLS)),
        },
    )

    def attack_features(
        cancellation: Cancellation,
        _visitor: str | None,
        model: str,
        text: str,
        layer: float,
        sizes: str,
        names: list[str],
    ) -> Updates:
        status = layer_controls.status
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", layer_save: ""}
        budgets = RelativeBudgets(parse_numbers(sizes, "the sizes"))
        names = names or ["singular"]
        chosen = [named_attack(name) for name in names]
        work = prepare(Choice(model, text, str(int(layer or 0)), length=min(64, longest)), app.catalog)
        found, total = [], len(budgets.sizes) * len(chosen)
        for record in feature_attacks(
            work.model, work.text, work.settings, attacks=chosen, budgets=budgets, progress=cancellation.check
        ):
            cancellation.check()
            found.append(record)
            yield {status: html.progress(len(found), total, record["attack"]["name"]), table: gains_table(found)}
        values = {"model": model, "text": text, "layer": int(layer or 0), "sizes": sizes, "attacks": names}
        values["length"] = work.settings.lengths[0]
        yield {
            status: html.message(
                f"Attacked on {work.note}. Gain is change of the output over change of the input: σ₁ "
                "is its limit for small sizes.",
                "done",
            ),
            layer_save: html.save_line(
                [
                    html.text_download("CSV", "attacks.csv", exports.csv(found, exports.ATTACK_FIELDS)),
                    html.text_download("Python", "attacks.py", exports.python_code("attack", values)),
                ],
                app.link("attack", values),
            ),
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
        status = words_controls.status
        yield {status: html.progress(0, 1, f"loading {model}"), difference: "", words_save: ""}
        work = prepare(Choice(model, text, "0", length=min(128, longest)), app.catalog)
        methods, aim = methods_named([method]), objective_named(objective)
        edits, calls = min(int(edits), MAX_EDITS), min(int(calls), MAX_CALLS)
        limits, length = Limits(edits=edits), work.settings.lengths[0]
        chunks = chunks_to_attack(work.model, work.text, length, 1, aim, limits)
        yield {status: html.progress(0, 1, f"{method}, at most {calls} calls of the model")}
        values = {"model": model, "text": text, "method": method, "objective": objective, "edits": edits}
        values |= {"calls": calls, "length": length}
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
                status: html.message(
                    f"{work.note.capitalize()} were attacked; the value was evaluated again "
                    f"{'and holds' if record['verified'] else 'and DOES NOT HOLD'}.",
                    "done",
                ),
                difference: diff_with_values(record),
                words_save: html.save_line(
                    [html.text_download("Python", "words.py", exports.python_code("words-attack", values))],
                    app.link("words-attack", values),
                ),
            }

    attacked = run_on_click(
        app, layer_controls, attack_features, [app.model, app.text, layer, sizes, attacks], [table, layer_save]
    )
    cancel_on_click(app, layer_controls, [attacked])
    exchanged = run_on_click(
        app,
        words_controls,
        attack_tokens,
        [app.model, app.text, method, objective, edits, calls],
        [difference, words_save],
    )
    cancel_on_click(app, words_controls, [exchanged])

    def offer_objectives(model: str, chosen: str) -> Any:
        offered = app.catalog.objectives(model)
        return gr.update(choices=offered, value=chosen if chosen in offered else "cosine")

    return lambda event: event(offer_objectives, [app.model, objective], objective, **PRIVATE, concurrency_id=QUEUE)


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
