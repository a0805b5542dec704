"""The tab for attacks: perturb what enters a layer, or exchange words of the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr

from howsmooth.attack.tokens import METHODS, OBJECTIVES
from howsmooth.explorer import exports, html
from howsmooth.explorer.app import QUEUE, App, Cancellation
from howsmooth.explorer.choice import Choice, parse_numbers, prepare
from howsmooth.explorer.components import PRIVATE, Updates, cancel_on_click, output, run_and_cancel, run_on_click
from howsmooth.explorer.links import MAX_LAYER, checked, one_of, some_of, whole_number
from howsmooth.questions.spec import spec_of
from howsmooth.report.attack_tables import diff_html
from howsmooth.report.rows import magnitude, number
from howsmooth.report.table import Column, Table
from howsmooth.studies.run import measure

ATTACKS = ("noise", "sign", "singular", "ascent")
MAX_EDITS, MAX_CALLS = 5, 200


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
            method = gr.Dropdown(list(METHODS), value="hotflip", label="Method", elem_id="words-method")
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
            "method": (method, one_of(list(METHODS))),
            "objective": (objective, one_of(list(OBJECTIVES))),
            "edits": (edits, whole_number(1, MAX_EDITS)),
            "calls": (calls, whole_number(10, MAX_CALLS)),
        },
    )

    def attack_features(
        cancellation: Cancellation, model: str, text: str, layer: float, sizes: str, names: list[str]
    ) -> Updates:
        status = layer_controls.status
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", layer_save: ""}
        shares, names = parse_numbers(sizes, "the sizes"), names or ["singular"]
        work = prepare(Choice(model, text, str(int(layer or 0)), length=min(64, longest)), app.catalog)
        spec = work.settings.asking("layer-attack", budget=shares, attacks=names)
        found, total = [], len(shares) * len(names)
        for record in measure(work.model, work.text, spec, progress=cancellation.check):
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
        cancellation: Cancellation, model: str, text: str, method: str, objective: str, edits: int, calls: int
    ) -> Updates:
        status = words_controls.status
        yield {status: html.progress(0, 1, f"loading {model}"), difference: "", words_save: ""}
        work = prepare(Choice(model, text, "0", length=min(128, longest)), app.catalog)
        edits, calls, length = min(int(edits), MAX_EDITS), min(int(calls), MAX_CALLS), work.settings.lengths[0]
        asked = {"methods": [method], "objective": objective, "edits": edits, "calls": calls}
        spec = spec_of({"question": "token-attack", **asked, "lengths": [length], "samples": 1})
        yield {status: html.progress(0, 1, f"{method}, at most {calls} calls of the model")}
        values = {"model": model, "text": text, "method": method, "objective": objective, "edits": edits}
        values |= {"calls": calls, "length": length}
        for record in measure(work.model, work.text, spec, progress=cancellation.check):
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
