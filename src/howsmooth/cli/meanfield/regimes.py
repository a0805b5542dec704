"""`howsmooth meanfield regimes`: the constant against n, from two tokens to lengths that no machine will see."""

from __future__ import annotations

import click

from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import Count, Number, NumberList


@click.command(
    name="regimes",
    short_help="Lip against n, exactly: √n, √n·log n, and the plateau of mean field.",
    help="The largest Lipschitz constant of n tokens at two places of the ball, exactly, for lengths of any size: it "
    "grows like √n·log n up to n* ≈ 3e^{2γR²} and not at all from there on. Beside it the bounds.\n\n"
    "    One head in d = 1 with V = 1; γ is |A| where A is negative, A/8 where it is positive.",
)
@click.option(
    "--gamma-r2",
    type=NumberList(least=0, most=1e5, example="0.5,2,8,32"),
    default="0.5,2,8,32",
    show_default=True,
    help="γR²: one curve for each.",
)
@click.option(
    "--scores",
    type=click.Choice(["negative", "positive"]),
    default="negative",
    show_default=True,
    help="The sign of A.",
)
@click.option(
    "--to", "power", type=Number(1, 1e6), metavar="POWER", default=40, show_default=True, help="Lengths up to 10^POWER."
)
@click.option("--points", type=Count(2), metavar="COUNT", default=61, show_default=True, help="Lengths on each curve.")
@output_options("json", "csv", "plot")
def command(gamma_r2, scores, power, points, json_path, csv_path, plot_path) -> int:
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.mean_field_figures import regimes_figure
    from howsmooth.report.mean_field_tables import regimes_table
    from howsmooth.studies import lengths_up_to, regimes

    lengths = lengths_up_to(power, points)
    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        table=regimes_table,
        plot=regimes_figure,
        thing="point",
        work=lambda notes, kept: (
            "two places",
            len(gamma_r2) * len(lengths),
            lambda progress: regimes(gamma_r2, lengths, scores),
        ),
    )
