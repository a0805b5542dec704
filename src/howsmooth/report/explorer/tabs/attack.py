"""Attacks on the features that enter a layer, and on the words themselves, with what was exchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import gradio as gr

from howsmooth.attack.tokens import OBJECTIVES, Limits
from howsmooth.report.bound_rows import magnitude
from howsmooth.report.diff import diff_html
from howsmooth.report.explorer import html
from howsmooth.report.explorer.choice import Choice, numbers, prepare
from howsmooth.report.explorer.desk import Desk
from howsmooth.report.explorer.stopping import Flag
from howsmooth.report.explorer.tabs.buttons import cancelling, run_and_cancel, shown, started
from howsmooth.report.rows import number
from howsmooth.studies.perturbing import Shares, feature_attacks, named_attack
from howsmooth.studies.token_attacks import ALL_METHODS, check, methods_named, objective_named, pieces, token_attacks

ATTACKS = ("noise", "sign", "singular", "ascent")
MOST_EDITS, MOST_CALLS = 5, 200


def tab(desk: Desk) -> None:
    longest = desk.shelf.limits.max_tokens
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
            objective = gr.Dropdown(list(OBJECTIVES), value="cosine", label="Objective", elem_id="words-objective",
                                    info="flip and kl need a model that says what comes next")
            edits = gr.Slider(1, MOST_EDITS, value=2, step=1, label="Tokens that may be edited", elem_id="words-edits")
            calls = gr.Slider(10, MOST_CALLS, value=40, step=10, label="Calls of the model", elem_id="words-calls")
        exchange, stop, words_status = run_and_cancel("words-attack", "Attack the words")
        difference = shown("difference")

    def features(flag: Flag, _visitor: str | None, model: str, text: str, layer: float, sizes: str, names: list[str]
                 ) -> Iterator[dict]:
        yield {status: html.progress(0, 1, f"loading {model}"), table: ""}
        shares = Shares(numbers(sizes, "the sizes"))
        chosen = [named_attack(name) for name in names] or [named_attack("singular")]
        work = prepare(Choice(model, text, str(int(layer or 0)), length=min(64, longest)), desk.shelf)
        found, total = [], len(shares.sizes) * len(chosen)
        for record in feature_attacks(work.model, work.text, work.settings, attacks=chosen, shares=shares,
                                      step=flag.check):
            flag.check()
            found.append(record)
            yield {status: html.progress(len(found), total, record["attack"]["name"]), table: gains_table(found)}
        yield {status: html.said(f"Attacked on {work.note}. Gain is change of the output over change of the input: σ₁ "
                                 "is its limit for small sizes.", "done")}

    def exchanged(flag: Flag, _visitor: str | None, model: str, text: str, method: str, objective: str, edits: int,
                  calls: int) -> Iterator[dict]:
        yield {words_status: html.progress(0, 1, f"loading {model}"), difference: ""}
        work = prepare(Choice(model, text, "0", length=min(128, longest)), desk.shelf)
        methods, aim = methods_named([method]), objective_named(objective)
        limits, calls = Limits(edits=min(int(edits), MOST_EDITS)), min(int(calls), MOST_CALLS)
        chunks = pieces(work.model, work.text, work.settings.lengths[0], 1)
        check(work.model, chunks, aim, limits)
        yield {words_status: html.progress(0, 1, f"{method}, at most {calls} calls of the model")}
        for record, _ in token_attacks(work.model, work.text, chunks, methods, objective=aim, limits=limits,
                                       calls=calls, step=flag.check):
            yield {words_status: html.said(f"{work.note.capitalize()} were attacked; the value was evaluated again "
                                           f"{'and holds' if record['verified'] else 'and DOES NOT HOLD'}.", "done"),
                   difference: diff_with_values(record)}

    cancelling(desk, cancel, status, [
        started(desk, run, status, features, [desk.model, desk.text, layer, sizes, attacks], [table])])
    cancelling(desk, stop, words_status, [
        started(desk, exchange, words_status, exchanged, [desk.model, desk.text, method, objective, edits, calls],
                [difference])])


def gains_table(records: Sequence[dict[str, Any]]) -> str:
    """One row per size and attack."""
    rows = []
    for record in records:
        sigma = record["sigma"]["value"]
        rows.append([f"{record['share']:g}", escape(record["attack"]["name"]), f"<b>{number(record['gain'])}</b>",
                     f"{100 * record['gain'] / sigma:.0f} %" if sigma else "", number(sigma),
                     "" if record["certified"] is None else magnitude(math.log(record["certified"]))])
    return html.table([">size", "attack", ">gain", ">of σ₁", "~>σ₁", ">certified ≤"], rows,
                      f"Layer {records[0]['layer']}, n = {records[0]['n']}")


def diff_with_values(record: dict[str, Any]) -> str:
    """The text with what went and what came, above it what that did."""
    says = "" if not record["says"] else "; next: <code>{}</code> → <code>{}</code>".format(
        *(escape(str(word)) for word in record["says"]))
    return (f'<p><b>{number(record["clean"], 3)} → {number(record["value"], 3)}</b> '
            f'({escape(record["objective"]["name"])}) in {record["calls"]} calls{says}</p>'
            f'<p class="hs-diff">{diff_html(record)}</p>')
