"""Attention on measures: from √n to the plateau, and where two atoms on a line split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import gradio as gr

from howsmooth.errors import InputError
from howsmooth.lipschitz.line import picture
from howsmooth.report.explorer import html
from howsmooth.report.explorer.choice import numbers
from howsmooth.report.explorer.desk import Desk
from howsmooth.report.explorer.stopping import Flag
from howsmooth.report.explorer.tabs.buttons import cancelling, run_and_cancel, shown, started
from howsmooth.report.mean_field_figure import regimes_figure
from howsmooth.report.mean_field_table import scientific
from howsmooth.report.splitting_figure import line_figure, title
from howsmooth.studies import lengths_up_to, regimes

POINTS = 41  # lengths on each curve
CELLS = 240  # of each axis of the picture


def tab(desk: Desk) -> None:
    with gr.Accordion("Regimes: from √n to the plateau", open=True):
        with gr.Row():
            sizes = gr.Textbox("0.5,2,8,32", label="γR², one curve for each", elem_id="sizes", max_lines=1)
            scores = gr.Radio(["negative", "positive"], value="negative", label="Sign of A", elem_id="scores")
            power = gr.Slider(2, 60, value=40, step=1, label="Lengths up to 10 to the power of", elem_id="power")
        run, cancel, status = run_and_cancel("regimes", "Draw the regimes")
        curves = shown("regimes")
    with gr.Accordion("Splitting: two atoms on a line", open=True):
        with gr.Row():
            a = gr.Slider(-2, 2, value=-1, step=0.1, label="a, of the score a·x·y", elem_id="split-a")
            masses = gr.Textbox("1,1", label="Masses of the two atoms", elem_id="split-masses", max_lines=1)
            extent = gr.Slider(1, 12, value=4, step=0.5, label="Half the width of the picture", elem_id="split-extent")
        split, stop, split_status = run_and_cancel("split", "Draw where they split")
        plane = shown("splitting")

    def curve(flag: Flag, _visitor: str | None, sizes: str, scores: str, power: float) -> Iterator[dict]:
        chosen = numbers(sizes, "γR²")
        total, found = len(chosen) * POINTS, []
        for record in regimes(chosen, lengths_up_to(power, POINTS), scores, step=flag.check):
            flag.check()
            found.append(record)
            if len(found) % POINTS == 1:
                yield {status: html.progress(len(found) - 1, total, f"γR² = {record['gamma_r2']:g}")}
        ends = {record["gamma_r2"]: record for record in found}
        rows = [[f"{size:g}", f"<b>{scientific(one['log_plateau'])}</b>", scientific(one["log_crossover"]),
                 scientific(one["log_n_free"])] for size, one in ends.items()]
        yield {status: html.said("Exact for two places; grey is √n.", "done"),
               curves: html.pictures(
                   html.picture(partial(_regimes, found), "Constant against length up to the plateau"))
               + html.table([">γR²", ">plateau", ">from n* on", ">bound for all n"], rows)}

    def line(_flag: Flag, _visitor: str | None, a: float, masses: str, extent: float) -> Iterator[dict]:
        chosen = numbers(masses, "the masses", most=2)
        pair = tuple(float(piece) for piece in masses.split(","))
        if len(pair) != 2:
            raise InputError(f"expected two masses such as 1,3, got {len(chosen)}")
        if a == 0:
            raise InputError("expected a score a·x·y with a other than 0, got 0; move the slider")
        yield {split_status: html.progress(0, 1, "the plane")}
        axis, found = picture(extent, CELLS, a, pair)
        drawn = [{"title": title(a, pair), "axis": axis, "ratio": found.ratio}]
        share, top = float(found.splits.double().mean()), float(found.ratio.max())
        yield {split_status: html.said(f"{100 * share:.3g} % of the square splits; the largest ratio is {top:.4g}.",
                                       "done"),
               plane: html.pictures(html.picture(partial(_line, drawn), "Where two atoms on a line split"))}

    cancelling(desk, cancel, status, [started(desk, run, status, curve, [sizes, scores, power], [curves])])
    cancelling(desk, stop, split_status, [started(desk, split, split_status, line, [a, masses, extent], [plane])])


def _regimes(records, theme: str):
    return regimes_figure(records, theme=theme)


def _line(drawn, theme: str):
    return line_figure(drawn, theme=theme)
