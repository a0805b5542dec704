"""`howsmooth flow gaussian`: a Gaussian under attention, its mean and covariance."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.flow.protocol import MatrixText, attention_options, picture_options
from howsmooth.cli.options import output_options
from howsmooth.cli.parsing import LARGEST, Count, Number, NumberList


@click.command(
    name="gaussian",
    short_help="Gaussians stay Gaussian: mean, covariance, blow-up, limiting rank.",
    help="Follow N(mean, covariance) under x' = Γ(x): when it blows up and along what, and which rank it tends to.\n\n"
    "    EXAMPLE is a TOML file, or an example of `flow particles`, whose attention is taken (and followed in x); "
    "without it A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear"], 2)
@click.option("--mean", type=NumberList(example="0,1", least=-LARGEST, duplicates=True),
              help="Mean of the Gaussian at the start.  [default: 0]")
@click.option("--covariance", type=MatrixText(names=()), default="1", show_default=True,
              help="Covariance of the Gaussian at the start.")
@click.option("--particles", type=Count(2), metavar="COUNT", help="How many particles: they are followed beside it.")
@click.option("--frames", type=Count(11), metavar="COUNT", default=101, show_default=True, help="Depths to keep.")
@click.option("--rtol", type=Number(0, 1, open=True), metavar="NUMBER", default=1e-9, show_default=True,
              help="Relative tolerance of the integrator.")
@click.option("--max-solver-steps", "max_steps", type=Count(), metavar="COUNT", default=20_000, show_default=True,
              help="Steps of the integrator at most.")
@output_options("json", "plot", plot="ellipses and eigenvalues")
@picture_options(animate="ellipses and eigenvalues")
def command(example: str | None, mean: tuple[float, ...] | None, covariance: Any, particles: int | None, frames: int,
            rtol: float, max_steps: int, json_path: str | None, plot_path: str | None, animation_path: str | None,
            theme: str, **attention: Any) -> int:
    from howsmooth.cli.flow.protocol import check_files
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console, say

    check_files({"--json": json_path, "--plot": plot_path, "--animate": animation_path})
    files = record_files(json_path, None)

    from howsmooth.dynamics.runs import declared_attention, run_gaussian

    run = run_gaussian(declared_attention(example, default_dim=2, **attention), mean, covariance, frames=frames,
                       rtol=rtol, max_steps=max_steps, particles=particles, seed=attention["seed"])
    record, flow = run.as_record(), run.flow
    for file in files:
        file.write(record)
        file.close()
    title = (f"{run.declared.title or 'A Gaussian flow'}: {run.field.name} attention in dimension "
             f"{run.declared.tokens.dim}")
    if json_path != "-":
        from howsmooth.report.flow_tables import moments_table

        shown, exact, rank = console(), run.closed_form, run.rank
        shown.print(moments_table(record, title, record["particles"]))
        say(shown, f"{flow.ending}, {flow.steps} steps, {flow.seconds:.2g} s", style="dim")
        if exact is not None:
            say(shown, "V = I in closed form: " + (f"blow-up at t = {exact:.6g}" if exact < 1e300 else "no blow-up"))
        say(shown, "eigenvalues of the covariance: " + ", ".join(rank.fates) + f"; rank {rank.rank} in the limit, "
            f"{rank.shape_rank} in shape" + ("" if rank.settled else "; not settled yet, follow it for longer"))
    if flow.status != "finished":
        say(console(stderr=True), f"howsmooth: {flow.ending}; {flow.remedy}", style="yellow")
    tokens = None if run.beside is None else run.beside.tokens.numpy()
    if plot_path is not None:
        from howsmooth.report.density_figures import gaussian_flow_figure
        from howsmooth.report.figure import save_figure

        save_figure(gaussian_flow_figure(record, tokens, title=title, theme=theme), plot_path)
    if animation_path is not None:
        from howsmooth.report.density_figures import save_gaussian_animation

        save_gaussian_animation(animation_path, record, tokens, title=title, theme=theme)
    return 0
