"""`howsmooth flow pde`: the continuity equation on a grid, and particles beside it."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.flow.protocol import POSITIVE, attention_options, picture_options
from howsmooth.cli.options import output_options
from howsmooth.cli.parsing import Count, NumberList
from howsmooth.errors import InputError


@click.command(
    name="pde",
    short_help="Densities under attention on a grid, d = 1 or 2.",
    help="Follow a density under ∂μ/∂t + div(μ Γ) = 0 on a grid; no mass is lost and none is negative.\n\n"
    "    EXAMPLE is a TOML file, or an example of `flow particles`, whose attention is taken (and followed in x); "
    "without it A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear", "sigmoid"], 1)
@click.option("--start", type=click.Choice(["gaussian", "bumps"]), default="bumps", show_default=True,
              help="The first density: a standard Gaussian, or three bumps whose places --seed decides.")
@click.option("--slices", type=Count(2), metavar="COUNT",
              help="Slices of masked attention: so many bumps, one for each time; a time sees those up to its own.")
@click.option("--cells", type=Count(4), metavar="COUNT",
              help="Cells of the grid along each axis.  [default: 256, or 64 in dimension 2]")
@click.option("--extent", type=POSITIVE, metavar="NUMBER", default=8.0, show_default=True,
              help="Half the width of the plane or line that is covered: [−extent, extent] along each axis.")
@click.option("--order", type=click.Choice(["1", "2"]), default="2", show_default=True, help="Order of the scheme.")
@click.option("--frames", type=Count(2), metavar="COUNT", default=41, show_default=True, help="Depths to keep.")
@click.option("--particles", type=NumberList(integer=True, least=2, example="64,256,1024"),
              help="How many particles: they are compared with the density, and two numbers or more give the rate in "
              "W₂ (d₂ with --slices).")
@click.option("--repeats", type=Count(), metavar="COUNT", default=4, show_default=True,
              help="Draws for each number of particles.")
@output_options("json", "plot", plot="the densities")
@click.option("--plot-rate", "rate_path", metavar="FILE", help="A figure of the distances of particles.")
@picture_options(animate="the densities")
def command(example: str | None, start: str, slices: int | None, cells: int | None, extent: float, order: str,
            frames: int, particles: tuple[int, ...] | None, repeats: int, json_path: str | None, plot_path: str | None,
            rate_path: str | None, animation_path: str | None, theme: str, **attention: Any) -> int:
    from howsmooth.cli.flow.protocol import bar_along, check_files
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console, say

    check_files({"--json": json_path, "--plot": plot_path, "--plot-rate": rate_path, "--animate": animation_path})
    _refuse_contradictions(start, slices, particles, rate_path)
    files, seed = record_files(json_path, None), attention["seed"]

    from howsmooth.dynamics import Grid, density_flow
    from howsmooth.dynamics.example import field_of
    from howsmooth.dynamics.runs import declared_attention, first_density
    from howsmooth.errors import NotConverged

    declared = declared_attention(example, default_dim=1, **attention)
    d, until = declared.tokens.dim, declared.flow.until
    if d > 2:
        raise InputError(f"expected dimension 1 or 2 for a grid, got {d}; use howsmooth flow particles")
    field = field_of(declared.attention, d)
    first = first_density(Grid.square(d, extent, cells or (256 if d == 1 else 64)), start, slices, seed)
    quiet, notes, late = json_path == "-", console(stderr=True), None
    try:
        with bar_along(notes, "t = ", until) as progress:
            flow = density_flow(field, first, until, order=int(order), frames=frames, progress=progress)
    except NotConverged as error:  # what there is until then is shown all the same
        flow, late = error.partial, error
    record = {"record": "density flow", "example": declared.name, "kind": declared.attention.kind, "seed": seed,
              "start": start, **flow.as_record()}
    for file in files:
        file.write(record)
    title = f"{declared.title or 'A density'}: {field.name} attention" + (f", {slices} times" if slices else "")
    if not quiet:
        from howsmooth.report.flow_tables import moments_table

        console().print(moments_table(record, title))
        say(console(), f"{flow.status} at t = {float(flow.times[-1]):.4g} on {flow.grid}, {flow.steps} steps of order "
            f"{order}, mass lost {flow.mass_error:.1g}, against the walls {flow.leaked:.1g}, {flow.seconds:.2g} s",
            style="dim")
    beside = particles if late is None and slices is None else None
    _draw(flow, record, field, first, beside, title, plot_path, animation_path, theme)  # comparing may take long
    if particles is not None and late is None:
        _compare(field, first, until, particles, repeats, seed, files, title, rate_path, theme, notes, quiet)
    for file in files:
        file.close()
    if late is not None:
        raise InputError(str(late))
    return 0


def _refuse_contradictions(start: str, slices: int | None, particles: tuple[int, ...] | None, rate_path: str | None
                           ) -> None:
    if rate_path is not None and (particles is None or len(particles) < 2):
        raise InputError("expected --particles with two numbers or more for --plot-rate, got "
                         + ("none" if particles is None else str(particles[0])))
    if slices is not None and start == "gaussian":
        raise InputError("expected --start bumps with --slices, got gaussian: slices that are all alike")
    if slices is not None and any(count % slices for count in particles or ()):
        raise InputError(f"expected --particles in multiples of the {slices} slices, got "
                         f"{','.join(map(str, particles or ()))}; change one of them")


def _compare(field, first, until, counts, repeats, seed, files, title, rate_path, theme, notes, quiet) -> None:
    """Distances of particles to the density; every run is written the moment it is there."""
    from howsmooth.cli.running import console, say
    from howsmooth.dynamics.mean_field import convergence_runs, summarise

    runs, shown = [], notes if quiet else console()
    for run in convergence_runs(field, first, until, counts, repeats=repeats, seed=seed):
        runs.append(run)
        for file in files:
            file.write({"record": "particles", **run})
    if len(counts) < 2:
        gap = sum(run["distance"] for run in runs) / len(runs)
        name = "d₂" if first.is_masked else "W₂"
        say(shown, f"{counts[0]} particles: {name} to the density {gap:.3g}, mean of {len(runs)}")
        return
    summary = summarise(field, first, until, seed, runs)
    found = summary.as_record()
    for file in files:
        file.write({"record": "rate", **{key: value for key, value in found.items() if key != "runs"}})
    if not quiet:
        from howsmooth.report.flow_tables import rate_table
        from howsmooth.report.rows import counted

        shown.print(rate_table(found, f"Particles to the density, mean of {counted(repeats, 'draw')}"))
        say(shown, f"{found['distance']} ≈ {summary.rate.constant:.3g} n^({round(summary.rate.exponent, 2) + 0.0:.2f})")
    if rate_path is not None:
        from howsmooth.report.density_figures import rate_figure
        from howsmooth.report.figure import save_figure

        save_figure(rate_figure([found], title=title, theme=theme), rate_path)


def _draw(flow, record, field, first, particles, title, plot_path, animation_path, theme) -> None:
    """The densities, with the largest number of particles beside them where some were asked for."""
    if plot_path is None and animation_path is None:
        return
    import torch

    from howsmooth.dynamics import integrate
    from howsmooth.report.density_figures import density_figure, save_density_animation
    from howsmooth.report.figure import save_figure

    tokens = None
    if particles is not None:
        x = first.sample(particles[-1], torch.Generator().manual_seed(record["seed"]))
        tokens = integrate(field, x, flow.until, saves=flow.times.tolist()).tokens.numpy()
    values = flow.densities.numpy()
    if plot_path is not None:
        save_figure(density_figure(record, values, tokens=tokens, title=title, theme=theme), plot_path)
    if animation_path is not None:
        save_density_animation(animation_path, record, values, tokens=tokens, title=title, theme=theme)
