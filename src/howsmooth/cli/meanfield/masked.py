"""`howsmooth meanfield masked`: constants of masked attention in the conditional distance d_p."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import Count, NumberList, ascent_options, exponents_option, seed_option
from howsmooth.cli.runtime import runtime_options
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record


@click.command(
    name="masked",
    short_help="Masked attention in d_p: bounds that are proved, attained, and published.",
    help="Compare Lipschitz constants of masked attention in the conditional distance d_p: the bound that is proved, "
    "the values that gradient ascent and the running mean attain, and whether the published bound, that of unmasked "
    "attention, holds.\n\n"
    "    One head in d = 1 with A = −a and V = 1, tokens in [−1, 1]. At p = 1 there is no finite constant.",
)
@exponents_option("1.5,2,3,inf")
@click.option(
    "--sizes",
    type=NumberList(minimum=0, maximum=50, example="0,0.1,0.3,1,2"),
    default="0,0.1,0.3,1,2",
    show_default=True,
    help="Sizes a = ‖A‖R².",
)
@click.option(
    "--atoms",
    "n",
    type=Count(2, 512),
    metavar="COUNT",
    default=32,
    show_default=True,
    help="Number of atoms, one for each time.",
)
@ascent_options(restarts=6, steps=100)
@seed_option(0)
@output_options("json", "csv", "plot")
@runtime_options()
def command(
    exponents: tuple[float, ...],
    sizes: tuple[float, ...],
    n: int,
    restarts: int,
    steps: int,
    seed: int,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
) -> int:
    """Run `howsmooth meanfield masked` and return its exit code."""
    from howsmooth.cli.run import Computation, run_command

    masked_figure = deferred("howsmooth.report.mean_field_figures:masked_figure")
    masked_table = deferred("howsmooth.report.mean_field_tables:masked_table")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch

        load_torch(stderr)

        from howsmooth.studies import masked_constants

        return Computation(
            "masked attention",
            len(exponents) * len(sizes),
            lambda progress: masked_constants(exponents, sizes, n=n, restarts=restarts, steps=steps, seed=seed),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        table=masked_table,
        plot=masked_figure,
        record_noun="constant",
        prepare=prepare,
    )
