"""`howsmooth meanfield masked`: constants of masked attention in the conditional distance d_p."""

from __future__ import annotations

import click

from howsmooth.cli.attack.searching import restarts_option, steps_option
from howsmooth.cli.choosing import csv_option, json_option
from howsmooth.cli.meanfield.numbers import Numbers, plot_option, run_and_show
from howsmooth.cli.parsing import Count


@click.command(
    name="masked",
    short_help="Masked attention in d_p: proved, attained, and what was stated.",
    help="Lipschitz constants of masked attention in the conditional distance d_p: what is proved, what ascent and the "
    "running mean attain, and whether \"the same bound as unmasked\" holds.\n\n"
    "    One head in d = 1 with A = −a and V = 1, tokens in [−1, 1]. At p = 1 there is no constant.",
)
@click.option("--p", "exponents", type=Numbers(least=1, infinite=True, example="1.5,2,3,inf"), default="1.5,2,3,inf",
              show_default=True, help="Exponents of d_p.")
@click.option("--sizes", type=Numbers(least=0, most=50, example="0,0.1,0.3,1,2"), default="0,0.1,0.3,1,2",
              show_default=True, help="a = ‖A‖R².")
@click.option("--atoms", "n", type=Count(2, 512), metavar="COUNT", default=32, show_default=True,
              help="Atoms, one for each time.")
@restarts_option(6)
@steps_option(100)
@click.option("--seed", type=Count(0, 2**63 - 1), metavar="NUMBER", default=0, show_default=True,
              help="Of everything that is drawn.")
@json_option
@csv_option
@plot_option
def command(exponents, sizes, n, restarts, steps, seed, json_path, csv_path, plot_path) -> int:
    from howsmooth.report.mean_field_figure import masked_figure
    from howsmooth.report.mean_field_table import masked_table
    from howsmooth.studies import masked_constants

    return run_and_show(json_path, csv_path, plot_path, table=masked_table, figure=masked_figure, thing="constant",
                        work=lambda: ("masked attention", len(exponents) * len(sizes),
                                      lambda _step: masked_constants(exponents, sizes, n=n, restarts=restarts,
                                                                     steps=steps, seed=seed)))
