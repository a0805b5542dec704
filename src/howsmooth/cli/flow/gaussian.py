"""`howsmooth flow gaussian`: a Gaussian under attention, its mean and covariance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.options import MatrixText, attention_options, picture_options
from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import LARGEST, Count, Number, NumberList

if TYPE_CHECKING:
    from howsmooth.dynamics.runs import GaussianRun


@click.command(
    name="gaussian",
    short_help="Gaussians stay Gaussian: mean, covariance, blow-up, limiting rank.",
    help="Follow N(mean, covariance) under x' = Γ(x): when it blows up and along what, and which rank it tends to.\n\n"
    "    EXAMPLE is a TOML file, or an example of `flow particles`, whose attention is taken (and followed in x); "
    "without it A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear"], 2)
@click.option(
    "--mean",
    type=NumberList(example="0,1", least=-LARGEST, duplicates=True),
    help="Mean of the Gaussian at the start.  [default: 0]",
)
@click.option(
    "--covariance",
    type=MatrixText(names=()),
    default="1",
    show_default=True,
    help="Covariance of the Gaussian at the start.",
)
@click.option("--particles", type=Count(2), metavar="COUNT", help="How many particles: they are followed beside it.")
@click.option("--frames", type=Count(11), metavar="COUNT", default=101, show_default=True, help="Depths to keep.")
@click.option(
    "--rtol",
    type=Number(0, 1, open=True),
    metavar="NUMBER",
    default=1e-9,
    show_default=True,
    help="Relative tolerance of the integrator.",
)
@click.option(
    "--max-solver-steps",
    "max_steps",
    type=Count(),
    metavar="COUNT",
    default=20_000,
    show_default=True,
    help="Steps of the integrator at most.",
)
@output_options("json", "plot", plot="ellipses and eigenvalues")
@picture_options(animate="ellipses and eigenvalues")
def command(
    example: str | None,
    mean: tuple[float, ...] | None,
    covariance: Any,
    particles: int | None,
    frames: int,
    rtol: float,
    max_steps: int,
    json_path: str | None,
    plot_path: str | None,
    animation_path: str | None,
    theme: str,
    **attention: Any,
) -> int:
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.density_figures import gaussian_flow_figure, save_gaussian_animation
    from howsmooth.report.flow_tables import gaussian_tables

    runs: list[GaussianRun] = []

    def work(notes, kept):
        from howsmooth.dynamics.runs import declared_attention, run_gaussian

        declared = declared_attention(example, default_dim=2, **attention)

        def produce(progress):
            runs.append(
                run_gaussian(
                    declared,
                    mean,
                    covariance,
                    frames=frames,
                    rtol=rtol,
                    max_steps=max_steps,
                    particles=particles,
                    seed=attention["seed"],
                )
            )
            yield runs[0].as_record()

        return declared.name, 1, produce

    def picture():
        return {"tokens": runs[0].tokens, "title": runs[0].title, "theme": theme}

    return run_and_show(
        {"--json": json_path, "--plot": plot_path, "--animate": animation_path},
        work=work,
        thing="record",
        table=lambda records: gaussian_tables(runs[0], records[0]),
        doubts=lambda _: runs[0].caveats(),
        plot=lambda records: gaussian_flow_figure(records[0], **picture()),
        also={"--animate": lambda path, records: save_gaussian_animation(path, records[0], **picture())},
    )
