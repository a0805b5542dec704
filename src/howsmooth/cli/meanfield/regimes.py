"""`howsmooth meanfield regimes`: the constant against n, from two tokens to lengths that no computer can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import Count, Number, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record


@click.command(
    name="regimes",
    short_help="Lip against n, exactly: √n, √n·log n, and the plateau of mean field.",
    help="Compute the largest Lipschitz constant of n tokens at two points of the ball, exactly, for any n: it grows "
    "like √n·log n up to n* ≈ 3e^{2γR²} and is constant from there on. The bounds are shown beside it.\n\n"
    "    One head in d = 1 with V = 1; γ is |A| where A is negative, A/8 where it is positive.",
)
@click.option(
    "--gamma-r2",
    type=NumberList(minimum=0, maximum=1e5, example="0.5,2,8,32"),
    default="0.5,2,8,32",
    show_default=True,
    help="Values of γR²: one curve for each.",
)
@click.option(
    "--scores", type=click.Choice(["negative", "positive"]), default="negative", show_default=True, help="Sign of A."
)
@click.option(
    "--to",
    "power",
    type=Number(1, 1e6),
    metavar="POWER",
    default=40,
    show_default=True,
    help="Largest length, 10^POWER.",
)
@click.option(
    "--points", type=Count(2), metavar="COUNT", default=61, show_default=True, help="Number of lengths on each curve."
)
@output_options("json", "csv", "plot")
@runtime_options()
def command(
    gamma_r2: tuple[float, ...],
    scores: str,
    power: float,
    points: int,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
) -> int:
    """Run `howsmooth meanfield regimes` and return its exit code."""
    from howsmooth.cli.run import Computation, run_command

    regimes_figure = deferred("howsmooth.report.mean_field_figures:regimes_figure")
    regimes_table = deferred("howsmooth.report.mean_field_tables:regimes_table")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch

        load_torch(stderr)

        from howsmooth.studies import lengths_up_to, regimes

        lengths = lengths_up_to(power, points)
        return Computation(
            "two points", len(gamma_r2) * len(lengths), lambda progress: regimes(gamma_r2, lengths, scores)
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        table=regimes_table,
        plot=regimes_figure,
        record_noun="point",
        prepare=prepare,
    )
