"""`howsmooth flow pde`: the continuity equation on a grid, compared with particles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.options import POSITIVE, animation_options, attention_options
from howsmooth.cli.options import chosen_style, output_options
from howsmooth.cli.parameter_types import Count, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import ProgressCallback
    from howsmooth.dynamics.runs import DensityRun


@click.command(
    name="pde",
    short_help="Densities under attention on a grid, d = 1 or 2.",
    help="Integrate a density under ∂μ/∂t + div(μ Γ) = 0 on a grid; the scheme conserves mass and positivity.\n\n"
    "    EXAMPLE is a TOML file or an example of `flow particles`, whose attention is used (in the coordinates x); "
    "by default A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear", "sigmoid"], 1, largest_dim=2)
@click.option(
    "--start",
    type=click.Choice(["gaussian", "bumps"]),
    default="bumps",
    show_default=True,
    help="Initial density: a standard Gaussian, or three bumps at random positions (--seed).",
)
@click.option(
    "--slices",
    type=Count(2),
    metavar="COUNT",
    help="Number of slices of masked attention: one bump for each time; a slice attends to those up to its own time.",
)
@click.option(
    "--cells",
    type=Count(4),
    metavar="COUNT",
    help="Cells of the grid along each axis.  [default: 256, or 64 in dimension 2]",
)
@click.option(
    "--extent",
    type=POSITIVE,
    metavar="NUMBER",
    default=8.0,
    show_default=True,
    help="Half the width of the domain: [−extent, extent] along each axis.",
)
@click.option("--order", type=click.Choice(["1", "2"]), default="2", show_default=True, help="Order of the scheme.")
@click.option(
    "--frames", type=Count(2), metavar="COUNT", default=41, show_default=True, help="Number of depths to keep."
)
@click.option(
    "--particles",
    type=NumberList(integer=True, minimum=2, example="64,256,1024"),
    help="Number of particles: compare this many with the density; two numbers or more give the rate in W₂ (d₂ with "
    "--slices).",
)
@click.option(
    "--repeats", type=Count(), metavar="COUNT", default=4, show_default=True, help="Draws for each number of particles."
)
@output_options("json", "plot", plot="the densities")
@click.option(
    "--plot-rate", "rate_path", metavar="FILE", help="A figure of the distances between particles and density."
)
@animation_options(animate="the densities")
@runtime_options()
def command(
    example: str | None,
    start: str,
    slices: int | None,
    cells: int | None,
    extent: float,
    order: str,
    frames: int,
    particles: tuple[int, ...] | None,
    repeats: int,
    json_path: str | None,
    plot_path: str | None,
    rate_path: str | None,
    animation_path: str | None,
    theme: str,
    **attention: Any,
) -> int:
    """Run `howsmooth flow pde` and return its exit code."""
    from howsmooth.cli.run import Computation, run_command

    density_figure = deferred("howsmooth.report.density_figures:density_figure")
    save_density_animation = deferred("howsmooth.report.density_figures:save_density_animation")
    save_rate_figure = deferred("howsmooth.report.density_figures:save_rate_figure")
    density_tables = deferred("howsmooth.report.flow_tables:density_tables")

    _check_option_combinations(start, slices, particles, rate_path)
    runs: list[DensityRun] = []

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch
        from howsmooth.dynamics.overrides import declared_attention

        is_random = "random" in (attention["a"], attention["v"])
        if is_random:  # the matrices are drawn with torch
            load_torch(stderr)
        flow_example = declared_attention(example, default_dim=1, **attention)
        if not is_random:
            load_torch(stderr)

        from howsmooth.dynamics.runs import run_density

        def records(progress: ProgressCallback) -> Iterator[Record]:
            runs.append(
                run_density(
                    flow_example,
                    start=start,
                    slices=slices,
                    cells=cells,
                    extent=extent,
                    order=int(order),
                    frames=frames,
                    seed=attention["seed"],
                    progress=lambda t: progress(f"t = {t:.4g} of {flow_example.flow.until:g}"),
                )
            )
            yield from runs[0].records(particles, repeats)

        comparisons = repeats * len(particles or ())
        return Computation(flow_example.name, 1 + comparisons + (len(particles or ()) > 1), records)

    def figure_arguments() -> dict[str, Any]:
        return {
            "values": runs[0].flow.densities.numpy(),
            "tokens": runs[0].particle_tokens(particles),
            "title": runs[0].title,
            "theme": theme,
        }

    return run_command(
        outputs={"--json": json_path, "--plot": plot_path, "--plot-rate": rate_path, "--animate": animation_path},
        prepare=prepare,
        record_noun="record",
        describe=str,
        table=lambda records: density_tables(runs[0], records),
        plot=lambda records: density_figure(records[0], **figure_arguments()),
        caveats=lambda _: (),
        writers={
            "--animate": lambda path, records: save_density_animation(path, records[0], **figure_arguments()),
            "--plot-rate": lambda path, records: save_rate_figure(
                path, records, title=runs[0].title, theme=theme, style=chosen_style()
            ),
        },
    )


def _check_option_combinations(
    start: str, slices: int | None, particles: tuple[int, ...] | None, rate_path: str | None
) -> None:
    """Raise InputError for options that exclude or require each other."""
    if rate_path is not None and (particles is None or len(particles) < 2):
        raise InputError(
            "expected --particles with two numbers or more for --plot-rate, got "
            + ("none" if particles is None else str(particles[0]))
        )
    if slices is not None and start == "gaussian":
        raise InputError("expected --start bumps with --slices, got gaussian, which makes all slices equal")
    if slices is not None and any(count % slices for count in particles or ()):
        raise InputError(
            f"expected --particles in multiples of the {slices} slices, got "
            f"{','.join(map(str, particles or ()))}; change one of them"
        )
