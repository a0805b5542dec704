"""Tokens as particles, to play, pause and scrub: a page of its own in a frame that reaches nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr

from howsmooth.dynamics import follow, read_example, watch
from howsmooth.dynamics.watching import drawing
from howsmooth.report.explorer import html
from howsmooth.report.explorer.desk import Desk
from howsmooth.report.explorer.stopping import Flag
from howsmooth.report.explorer.tabs.buttons import cancelling, run_and_cancel, shown, started
from howsmooth.report.flow_page import flow_page, particle_scene

EXAMPLES = {"A polytope": "polytope", "Hyperplanes": "hyperplanes", "A polytope times a subspace":
            "polytope_times_subspace", "Collapse": "collapse", "Low rank": "low_rank", "On the sphere": "sphere"}
MOST_TOKENS = 200


def tab(desk: Desk) -> None:
    with gr.Row():
        example = gr.Dropdown(list(EXAMPLES.items()), value="sphere", label="What forms", elem_id="flow-example")
        count = gr.Slider(4, MOST_TOKENS, value=40, step=1, label="Tokens", elem_id="flow-tokens")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="flow-seed", min_width=120)
    run, cancel, status = run_and_cancel("flow", "Follow the flow")
    frame = shown("flow")

    def compute(flag: Flag, _visitor: str | None, example: str, count: float, seed: float) -> Iterator[dict]:
        # Only names of the list: anything else would be read as the path of a file.
        name = example if example in EXAMPLES.values() else "sphere"
        declared = read_example(name).but("tokens", count=min(int(count), MOST_TOKENS), seed=int(seed or 0))
        yield {status: html.progress(0, 2, "integrating")}
        trajectory, field = follow(declared, progress=flag.check)
        yield {status: html.progress(1, 2, "looking at what forms")}
        records = []
        for record in watch(trajectory, field, tol=declared.watch.tol,
                            renormalised=declared.flow.coordinates == "renormalised"):
            flag.check()
            records.append(record)
        seen, labels = drawing(trajectory, field, declared.watch.tol)
        title = declared.title or declared.name
        scene = particle_scene(records, seen(trajectory.tokens).numpy(), seen.names, labels, title=title,
                               about=declared.about, facts=f"{trajectory.steps} steps of {trajectory.solver}.")
        ending = f"{trajectory.ending}; {len(trajectory.times)} depths to play, pause and scrub."
        yield {status: html.said(ending[0].upper() + ending[1:], "done"), frame: html.framed(flow_page([scene]), title)}

    cancelling(desk, cancel, status, [started(desk, run, status, compute, [example, count, seed], [frame])])
