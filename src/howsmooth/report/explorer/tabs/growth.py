"""The constant against the length of the text: measured, fitted, and between which bounds it lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gradio as gr

from howsmooth.bounds import EVERY
from howsmooth.report.bound_figure import bounds_figure
from howsmooth.report.bound_rows import magnitude
from howsmooth.report.explorer import html
from howsmooth.report.explorer.choice import Choice, prepare
from howsmooth.report.explorer.desk import Desk
from howsmooth.report.explorer.screen import Screen
from howsmooth.report.explorer.stopping import Flag
from howsmooth.report.explorer.tabs.buttons import cancelling, run_and_cancel, shown, started
from howsmooth.report.figure import growth_figure
from howsmooth.report.rows import exponent, interval, law, number
from howsmooth.studies import bound, growth_of


def tab(desk: Desk) -> None:
    with gr.Row():
        layer = gr.Number(0, label="Layer", precision=0, minimum=0, elem_id="growth-layer", min_width=120)
        longest = gr.Slider(16, desk.shelf.limits.max_tokens, value=min(128, desk.shelf.limits.max_tokens), step=1,
                            label="Longest text, in tokens", elem_id="growth-length", scale=3)
    run, cancel, status = run_and_cancel("growth", "Follow the growth")
    table = shown("growth-table")
    pictures = shown("growth-pictures")

    def compute(flag: Flag, visitor: str | None, model: str, text: str, layer: float, longest: int, screen: Screen
                ) -> Iterator[dict]:
        yield {status: html.progress(0, 1, f"loading {model}"), table: "", pictures: ""}
        work = prepare(Choice(model, text, str(int(layer or 0)), length=longest), desk.shelf).lengths()
        lengths, found = work.settings.lengths, []
        for record in bound(work.model, work.text, work.settings, step=flag.check):
            found.append(record)
            if len(found) % len(EVERY) == 0:
                done = len(found) // len(EVERY)
                yield {status: html.progress(done, len(lengths), f"n = {record['n']}"), table: lengths_table(found)}
        screen = screen or Screen()
        screen.bounds = found
        measured = beside(found)
        fits = growth_of(measured)
        yield {status: html.said(fitted(fits), "done"), table: lengths_table(found), desk.screen: screen,
               pictures: html.pictures(
                   html.picture(partial(_growth, measured, fits), "Constant against length, with the fitted law"),
                   html.picture(partial(_bounds, found), "The same between its bounds")),
               desk.download: gr.update(**desk.report(visitor, screen))}

    event = started(desk, run, status, compute, [desk.model, desk.text, layer, longest, desk.screen],
                    [table, pictures, desk.screen, desk.download])
    cancelling(desk, cancel, status, [event])


def beside(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured constants that stand beside bounds, each once."""
    return list({record["n"]: {**record, **record["measured"]} for record in records}.values())


def lengths_table(records: Sequence[dict[str, Any]]) -> str:
    """One row per length: measured, and the sharpest bounds on the whole ball."""
    rows = []
    for one in beside(records):
        logs = {side: [r["log_value"] for r in records if r["n"] == one["n"] and r["side"] == side
                       and r["holds"] == "on B_R^n"] for side in ("lower", "upper")}
        rows.append([str(one["n"]), f"<b>{number(one['value'])}</b>", interval(one["lower"], one["upper"]),
                     magnitude(max(logs["lower"])) if logs["lower"] else "",
                     magnitude(min(logs["upper"])) if logs["upper"] else ""])
    return html.table([">n", ">constant", "interval, 99.9 %", ">sup on the ball ≥", ">sup on the ball ≤"], rows,
                      f"Layer {records[0]['layer']}; the ball is all that its normalisation can put out")


def fitted(fits: dict) -> str:
    """The fitted law in words."""
    if not fits:
        return "One length has no law: choose a longer text."
    (fit,) = fits.values()
    return f"Lip ≈ {law(fit)}, exponent {exponent(fit)}; theory allows √n at most."


def _growth(records, fits, theme: str):
    return growth_figure(records, fits, theme=theme)


def _bounds(records, theme: str):
    return bounds_figure(records, theme=theme)
