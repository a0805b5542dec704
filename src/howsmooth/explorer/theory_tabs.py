"""Tabs without a model: attention on measures (regimes, splitting) and tokens as particles.

A flow is a page of its own, in a frame that reaches nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import gradio as gr

from howsmooth.dynamics import integrate_example, read_example, trajectory_records
from howsmooth.dynamics.instruments.records import view_and_labels
from howsmooth.errors import InputError
from howsmooth.explorer import html
from howsmooth.explorer.app import App, Cancellation
from howsmooth.explorer.choice import numbers
from howsmooth.explorer.components import cancelling, run_and_cancel, shown, started
from howsmooth.lipschitz.criterion import line_splitting_grid
from howsmooth.report.flow_page import flow_page, particle_scene
from howsmooth.report.mean_field_figures import line_figure, regimes_figure, title
from howsmooth.report.mean_field_tables import scientific
from howsmooth.report.table import Column, Table
from howsmooth.studies import lengths_up_to, regimes

POINTS = 41  # lengths on each curve
CELLS = 240  # of each axis of the picture
EXAMPLES = {
    "A polytope": "polytope",
    "Hyperplanes": "hyperplanes",
    "A polytope times a subspace": "polytope_times_subspace",
    "Collapse": "collapse",
    "Low rank": "low_rank",
    "On the sphere": "sphere",
}
MOST_TOKENS = 200


def measures_tab(app: App) -> None:
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

    def curve(
        cancellation: Cancellation, _visitor: str | None, sizes: str, scores: str, power: float
    ) -> Iterator[dict]:
        chosen = numbers(sizes, "γR²")
        total, found = len(chosen) * POINTS, []
        for record in regimes(chosen, lengths_up_to(power, POINTS), scores, progress=cancellation.check):
            cancellation.check()
            found.append(record)
            if len(found) % POINTS == 1:
                yield {status: html.progress(len(found) - 1, total, f"γR² = {record['gamma_r2']:g}")}
        ends = {record["gamma_r2"]: record for record in found}
        ends_table = Table(
            "",
            [
                Column("γR²", lambda one: f"{one['gamma_r2']:g}"),
                Column("plateau", lambda one: html.strong(scientific(one["log_plateau"]))),
                Column("from n* on", lambda one: scientific(one["log_crossover"])),
                Column("bound for all n", lambda one: scientific(one["log_n_free"])),
            ],
            list(ends.values()),
        )
        yield {
            status: html.said("Exact for two places; grey is √n.", "done"),
            curves: html.pictures(html.picture(partial(_regimes, found), "Constant against length up to the plateau"))
            + html.table(ends_table),
        }

    def line(_flag: Cancellation, _visitor: str | None, a: float, masses: str, extent: float) -> Iterator[dict]:
        chosen = numbers(masses, "the masses", most=2)
        pair = tuple(float(piece) for piece in masses.split(","))
        if len(pair) != 2:
            raise InputError(f"expected two masses such as 1,3, got {len(chosen)}")
        if a == 0:
            raise InputError("expected a score a·x·y with a other than 0, got 0; move the slider")
        yield {split_status: html.progress(0, 1, "the plane")}
        axis, found = line_splitting_grid(extent, CELLS, a, pair)
        drawn = [{"title": title(a, pair), "axis": axis, "ratio": found.ratio}]
        share, top = float(found.splits.double().mean()), float(found.ratio.max())
        yield {
            split_status: html.said(
                f"{100 * share:.3g} % of the square splits; the largest ratio is {top:.4g}.", "done"
            ),
            plane: html.pictures(html.picture(partial(_line, drawn), "Where two atoms on a line split")),
        }

    cancelling(app, cancel, status, [started(app, run, status, curve, [sizes, scores, power], [curves])])
    cancelling(app, stop, split_status, [started(app, split, split_status, line, [a, masses, extent], [plane])])


def _regimes(records, theme: str):
    return regimes_figure(records, theme=theme)


def _line(drawn, theme: str):
    return line_figure(drawn, theme=theme)


def flow_tab(app: App) -> None:
    with gr.Row():
        example = gr.Dropdown(list(EXAMPLES.items()), value="sphere", label="What forms", elem_id="flow-example")
        count = gr.Slider(4, MOST_TOKENS, value=40, step=1, label="Tokens", elem_id="flow-tokens")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="flow-seed", min_width=120)
    run, cancel, status = run_and_cancel("flow", "Follow the flow")
    frame = shown("flow")

    def compute(
        cancellation: Cancellation, _visitor: str | None, example: str, count: float, seed: float
    ) -> Iterator[dict]:
        # Only names of the list: anything else would be read as the path of a file.
        name = example if example in EXAMPLES.values() else "sphere"
        declared = read_example(name).replace("tokens", count=min(int(count), MOST_TOKENS), seed=int(seed or 0))
        yield {status: html.progress(0, 2, "integrating")}
        trajectory, field = integrate_example(declared, progress=cancellation.check)
        yield {status: html.progress(1, 2, "looking at what forms")}
        records = []
        for record in trajectory_records(
            trajectory, field, tol=declared.watch.tol, renormalised=declared.flow.coordinates == "renormalised"
        ):
            cancellation.check()
            records.append(record)
        seen, labels = view_and_labels(trajectory, field, declared.watch.tol)
        title = declared.title or declared.name
        scene = particle_scene(
            records,
            seen(trajectory.tokens).numpy(),
            seen.names,
            labels,
            title=title,
            about=declared.about,
            facts=f"{trajectory.steps} steps of {trajectory.solver}.",
        )
        ending = f"{trajectory.ending}; {len(trajectory.times)} depths to play, pause and scrub."
        yield {status: html.said(ending[0].upper() + ending[1:], "done"), frame: html.framed(flow_page([scene]), title)}

    cancelling(app, cancel, status, [started(app, run, status, compute, [example, count, seed], [frame])])
