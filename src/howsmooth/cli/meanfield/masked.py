"""`howsmooth meanfield masked`: constants of masked attention in the conditional distance d_p."""

from __future__ import annotations

import click

from howsmooth.cli.options import output_options
from howsmooth.cli.parameter_types import Count, NumberList, ascent_options, exponents_option, seed_option


@click.command(
    name="masked",
    short_help="Masked attention in d_p: proved, attained, and what was stated.",
    help="Lipschitz constants of masked attention in the conditional distance d_p: what is proved, what ascent and the "
    'running mean attain, and whether "the same bound as unmasked" holds.\n\n'
    "    One head in d = 1 with A = −a and V = 1, tokens in [−1, 1]. At p = 1 there is no constant.",
)
@exponents_option("1.5,2,3,inf")
@click.option(
    "--sizes",
    type=NumberList(least=0, most=50, example="0,0.1,0.3,1,2"),
    default="0,0.1,0.3,1,2",
    show_default=True,
    help="Sizes a = ‖A‖R².",
)
@click.option(
    "--atoms", "n", type=Count(2, 512), metavar="COUNT", default=32, show_default=True, help="Atoms, one for each time."
)
@ascent_options(restarts=6, steps=100)
@seed_option(0)
@output_options("json", "csv", "plot")
def command(exponents, sizes, n, restarts, steps, seed, json_path, csv_path, plot_path) -> int:
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.mean_field_figures import masked_figure
    from howsmooth.report.mean_field_tables import masked_table
    from howsmooth.studies import masked_constants

    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        table=masked_table,
        plot=masked_figure,
        thing="constant",
        work=lambda notes, kept: (
            "masked attention",
            len(exponents) * len(sizes),
            lambda progress: masked_constants(exponents, sizes, n=n, restarts=restarts, steps=steps, seed=seed),
        ),
    )
