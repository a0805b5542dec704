"""Tabs without a model: attention on measures (regimes, splitting) and tokens as particles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from howsmooth.errors import InputError
from howsmooth.explorer import exports, html
from howsmooth.explorer.app import App, Cancellation
from howsmooth.explorer.choice import parse_numbers
from howsmooth.explorer.components import cancel_on_click, output, run_and_cancel, run_on_click
from howsmooth.explorer.links import checked, one_of, real_number, whole_number
from howsmooth.lipschitz.criterion import line_splitting_grid
from howsmooth.questions.spec import spec_of
from howsmooth.records import PER_TOKEN
from howsmooth.report.flow_page import flow_page, particle_scene
from howsmooth.report.mean_field_figures import line_figure, regimes_figure
from howsmooth.report.mean_field_tables import scientific
from howsmooth.report.table import Column, Table
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import records_of

SCORES = ("negative", "positive")
N_LENGTHS = 41  # on each curve
N_CELLS = 240  # of each axis of the picture
EXAMPLES = {
    "A polytope": "polytope",
    "Hyperplanes": "hyperplanes",
    "A polytope times a subspace": "polytope_times_subspace",
    "Collapse": "collapse",
    "Low rank": "low_rank",
    "On the sphere": "sphere",
}
MAX_TOKENS = 200


def measures_tab(app: App) -> None:
    """Add the tab for attention on measures: regimes of growth, and splitting of two atoms."""
    with gr.Accordion("Regimes: from √n to the plateau", open=True):
        with gr.Row():
            sizes = gr.Textbox(
                "0.5,2,8,32",
                label="γR², one curve for each",
                elem_id="sizes",
                max_lines=1,
                info="γ: strength of the scores, |A| or A/8; R: radius of the ball of tokens",
            )
            scores = gr.Radio(
                list(SCORES),
                value="negative",
                label="Sign of A",
                elem_id="scores",
                info="of the scores A·x·y of one head in dimension 1, with V = 1",
            )
            power = gr.Slider(2, 60, value=40, step=1, label="Lengths up to 10 to the power of", elem_id="power")
        regimes_controls = run_and_cancel("regimes", "Draw the regimes")
        curves = output("regimes")
        regimes_save = output("regimes-save")
    with gr.Accordion("Splitting: two atoms on a line", open=True):
        with gr.Row():
            a = gr.Slider(
                -2,
                2,
                value=-1,
                step=0.1,
                label="a, of the score a·x·y",
                elem_id="split-a",
                info="of one head in dimension 1, with V = 1",
            )
            masses = gr.Textbox(
                "1,1",
                label="Masses of the two atoms",
                elem_id="split-masses",
                max_lines=1,
                info="two numbers such as 1,3: how often each token occurs",
            )
            extent = gr.Slider(1, 12, value=4, step=0.5, label="Half the width of the picture", elem_id="split-extent")
        split_controls = run_and_cancel("split", "Draw where they split")
        plane = output("splitting")
        split_save = output("split-save")
    app.register(
        "regimes",
        "Measures",
        {
            "sizes": (sizes, checked(lambda value: parse_numbers(value, "γR²"))),
            "scores": (scores, one_of(SCORES)),
            "power": (power, whole_number(2, 60)),
        },
    )
    app.register(
        "split",
        "Measures",
        {"a": (a, real_number(-2, 2)), "masses": (masses, checked(two_masses)), "extent": (extent, real_number(1, 12))},
    )

    def draw_regimes(cancellation: Cancellation, sizes: str, scores: str, power: float) -> Iterator[dict[Any, Any]]:
        status = regimes_controls.status
        chosen = parse_numbers(sizes, "γR²")
        plan = prepare(
            spec_of(
                {"question": "regimes", "gamma_r2": list(chosen), "scores": scores, "to": power, "points": N_LENGTHS}
            )
        )
        total, found = plan.count, []
        yield {regimes_save: ""}
        for record in records_of(plan, progress=cancellation.check):
            cancellation.check()
            found.append(record)
            if len(found) % N_LENGTHS == 1:
                yield {status: html.progress(len(found) - 1, total, f"γR² = {record['gamma_r2']:g}")}
        ends = {record["gamma_r2"]: record for record in found}
        ends_table = Table(
            "",
            [
                Column("γR²", lambda one: f"{one['gamma_r2']:g}"),
                Column("plateau", lambda one: html.strong(scientific(one["log_plateau"]))),
                Column("from n* on", lambda one: scientific(one["log_crossover"])),
                Column("three points attain", lambda one: scientific(one["log_three_points"]), css="hs-wide"),
                Column("bound for all n", lambda one: scientific(one["log_n_free"]), css="hs-wide"),
            ],
            list(ends.values()),
        )

        def draw(theme: str) -> Any:
            return regimes_figure(found, theme=theme)

        yield {
            status: html.message(
                "Largest constant of n tokens at two points of the ball, exact. It grows up to n* and is constant from "
                "there on, at the plateau.",
                "done",
            ),
            curves: html.pictures(html.picture(draw, "Constant against length up to the plateau"))
            + html.table(ends_table),
        }
        values = {"sizes": sizes, "scores": scores, "power": int(power), "count": N_LENGTHS}
        yield {
            regimes_save: html.save_line(
                [
                    *html.figure_downloads(draw, "regimes"),
                    html.text_download("CSV", "regimes.csv", exports.csv(found, list(found[0]))),
                    html.text_download("Python", "regimes.py", exports.python_code("regimes", values)),
                ],
                app.link("regimes", values),
            )
        }

    def draw_splitting(_cancellation: Cancellation, a: float, masses: str, extent: float) -> Iterator[dict[Any, Any]]:
        status, pair = split_controls.status, two_masses(masses)
        if a == 0:
            raise InputError("expected a score a·x·y with a other than 0, got 0; move the slider")
        yield {status: html.progress(0, 1, "the plane"), split_save: ""}
        asked = {"question": "splitting-line", "a": a, "masses": list(pair), "extent": extent, "resolution": N_CELLS}
        (record,) = records_of(prepare(spec_of(asked)))

        def draw(theme: str) -> Any:
            return line_figure([record], theme=theme)

        yield {
            status: html.message(
                f"{100 * record['share']:.3g} % of the square splits; the largest ratio is {record['ratio']:.4g}.",
                "done",
            ),
            plane: html.pictures(html.picture(draw, "Where two atoms on a line split")),
        }
        values = {"a": a, "masses": masses, "extent": extent, "cells": N_CELLS}
        axis, found = line_splitting_grid(extent, N_CELLS, a, pair)
        points, ratio = axis.tolist(), found.ratio.tolist()
        ratios = [{"y": y, **dict(zip(points, row, strict=True))} for y, row in zip(points, ratio, strict=True)]
        yield {
            split_save: html.save_line(
                [
                    *html.figure_downloads(draw, "splitting"),
                    html.text_download("CSV", "splitting.csv", exports.csv(ratios, list(ratios[0]))),
                    html.text_download("Python", "splitting.py", exports.python_code("split", values)),
                ],
                app.link("split", values),
            )
        }

    drawn = run_on_click(app, regimes_controls, draw_regimes, [sizes, scores, power], [curves, regimes_save])
    cancel_on_click(app, regimes_controls, [drawn])
    split = run_on_click(app, split_controls, draw_splitting, [a, masses, extent], [plane, split_save])
    cancel_on_click(app, split_controls, [split])


def two_masses(text: str) -> tuple[float, float]:
    """Parse the masses of two atoms, which may be equal; raise InputError for anything else."""
    parse_numbers(text, "the masses", limit=2)
    parts = [float(part) for part in text.split(",")]
    if len(parts) != 2:
        raise InputError(f"expected two masses such as 1,3, got {len(parts)}")
    return parts[0], parts[1]


def flow_tab(app: App) -> None:
    """Add the tab for flows of particles, each shown as a page in a sandboxed frame."""
    with gr.Row():
        example = gr.Dropdown(
            list(EXAMPLES.items()), value="sphere", label="What forms", elem_id="flow-example", min_width=240
        )
        count = gr.Slider(4, MAX_TOKENS, value=40, step=1, label="Tokens", elem_id="flow-tokens")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="flow-seed", min_width=120)
    controls = run_and_cancel("flow", "Follow the flow")
    frame = output("flow")
    save = output("flow-save")
    app.register(
        "flow",
        "Flows",
        {
            "example": (example, one_of(list(EXAMPLES.values()))),
            "tokens": (count, whole_number(4, MAX_TOKENS)),
            "seed": (seed, whole_number(0, 10**9 - 1)),
        },
    )

    def compute(cancellation: Cancellation, example: str, count: float, seed: float) -> Iterator[dict[Any, Any]]:
        status = controls.status
        # Accept only names in the list: any other would be used as a path.
        name = example if example in EXAMPLES.values() else "sphere"
        values = {"example": name, "tokens": min(int(count), MAX_TOKENS), "seed": int(seed or 0)}
        yield {status: html.progress(0, 2, "integrating"), save: ""}
        spec = spec_of({"example": name, "particles": values["tokens"], "seed": values["seed"]}, question="particles")
        records: list[dict[str, Any]] = []
        for record in records_of(prepare(spec), progress=cancellation.check):
            cancellation.check()
            if not records:
                yield {status: html.progress(1, 2, "computing statistics")}
            records.append(record)
        scene = particle_scene(records)
        ending = f"{records[-1]['ending']}; {len(records)} depths to play, pause and scrub."
        yield {
            status: html.message(ending[0].upper() + ending[1:], "done"),
            frame: html.sandboxed_frame(flow_page([scene]), scene["title"]),
            save: html.save_line(
                [
                    html.text_download(
                        "CSV", "flow.csv", exports.csv(records, [name for name in records[0] if name not in PER_TOKEN])
                    ),
                    html.text_download("Python", "flow.py", exports.python_code("flow", values)),
                ],
                app.link("flow", values),
            ),
        }

    cancel_on_click(app, controls, [run_on_click(app, controls, compute, [example, count, seed], [frame, save])])
