"""`howsmooth flow pde`: the continuity equation on a grid, and particles beside it."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import json_option
from howsmooth.cli.flow.attending import attention_options, declared_attention
from howsmooth.cli.parsing import Count, IntegerList, Number
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
              help="A standard Gaussian, or three bumps whose places --seed decides.")
@click.option("--slices", type=Count(2), metavar="COUNT",
              help="Masked attention: so many bumps, one for each time; a time sees those up to its own.")
@click.option("--cells", type=Count(4), metavar="COUNT", help="Along each axis.  [default: 256, or 64]")
@click.option("--radius", type=Number(0, open=True), metavar="NUMBER", default=8.0,
              show_default=True, help="The grid covers [−R, R] along each axis.")
@click.option("--order", type=click.Choice(["1", "2"]), default="2", show_default=True, help="Of the scheme.")
@click.option("--frames", type=Count(2), metavar="COUNT", default=41, show_default=True,
              help="Times to keep.")
@click.option("--particles", type=IntegerList(least=2, example="64,256,1024"),
              help="Numbers of tokens to compare with: two or more give the rate in W₂ (d₂ with --slices).")
@click.option("--repeats", type=Count(), metavar="COUNT", default=4, show_default=True,
              help="Draws of each number of tokens.")
@json_option
@click.option("--plot", "plot_path", metavar="FILE", help="The densities as a figure (png, svg, pdf).")
@click.option("--plot-rate", "rate_path", metavar="FILE", help="The distances of particles as a figure.")
@click.option("--animate", "animation_path", metavar="FILE", help="The densities in motion (gif, or mp4 with ffmpeg).")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Of pictures.")
def command(example, kind, a, v, dim, until, seed, start, slices, cells, radius, order, frames, particles, repeats,
            json_path, plot_path, rate_path, animation_path, theme) -> int:
    from howsmooth.cli.flow.drawing import check_pictures
    from howsmooth.cli.flow.following import bar_along
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console, say

    check_pictures(json_path, plot_path, animation_path, rate_path)
    if rate_path is not None and (particles is None or len(particles) < 2):
        raise InputError("expected --particles with two numbers or more for --plot-rate, got "
                         + ("none" if particles is None else str(particles[0])))
    if slices is not None and start == "gaussian":
        raise InputError("expected --start bumps with --slices, got gaussian: slices that are all alike")
    if slices is not None and any(count % slices for count in particles or ()):
        raise InputError(f"expected --particles in multiples of the {slices} slices, got "
                         f"{','.join(map(str, particles))}; change one of them")
    files = record_files(json_path, None)

    from howsmooth.dynamics import Grid, density_flow, integrate
    from howsmooth.dynamics.example import field_of
    from howsmooth.errors import NotConverged

    declared = declared_attention(example, kind=kind, a=a, v=v, dim=dim, until=until, seed=seed, default_dim=1)
    d, until = declared.tokens.dim, declared.flow.until
    if d > 2:
        raise InputError(f"expected dimension 1 or 2 for a grid, got {d}; use howsmooth flow particles")
    field = field_of(declared.attention, d)
    first = _first(Grid.square(d, radius, cells or (256 if d == 1 else 64)), start, slices, seed)
    shown, notes, late = console(), console(stderr=True), None
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
    quiet = json_path == "-"
    if not quiet:
        from howsmooth.report.gaussian_flow_table import moments_table

        shown.print(moments_table(record, title))
        say(shown, f"{flow.status} at t = {float(flow.times[-1]):.4g} on {flow.grid}, {flow.steps} steps of order "
            f"{order}, mass lost {flow.mass_error:.1g}, against the walls {flow.leaked:.1g}, {flow.seconds:.2g} s",
            style="dim")
    tokens = None
    if particles is not None and late is None and slices is None and (plot_path or animation_path):
        import torch

        x = first.sample(particles[-1], torch.Generator().manual_seed(seed))
        tokens = integrate(field, x, until, saves=flow.times.tolist()).tokens.numpy()
    _draw(flow, record, tokens, title, plot_path, animation_path, theme)  # comparing may take long
    if particles is not None and late is None:
        _compare(field, first, until, particles, repeats, seed, files, title, rate_path, theme, shown, notes, quiet)
    for file in files:
        file.close()
    if late is not None:
        raise InputError(str(late))
    return 0


def _first(grid, start, slices, seed):
    """The density to begin with."""
    import torch

    from howsmooth.dynamics import Density, GaussianState

    if start == "gaussian":
        return Density.gaussian(GaussianState.standard(grid.d), grid)
    generator = torch.Generator().manual_seed(seed)
    places = 4 * torch.rand(slices or 3, grid.d, dtype=torch.float64, generator=generator) - 2
    eye = torch.eye(grid.d, dtype=torch.float64)
    bumps = [Density.gaussian(GaussianState(place, 0.15 * eye), grid) for place in places]
    return Density.mixture(bumps) if slices is None else Density.slices(bumps)


def _compare(field, first, until, counts, repeats, seed, files, title, rate_path, theme, shown, notes, quiet) -> None:
    """Distances of particles to the density; every run is written the moment it is there."""
    from howsmooth.cli.running import say
    from howsmooth.dynamics.mean_field import convergence_runs, summarise

    runs = []
    for run in convergence_runs(field, first, until, counts, repeats=repeats, seed=seed):
        runs.append(run)
        for file in files:
            file.write({"record": "particles", **run})
    if len(counts) < 2:
        gap = sum(run["distance"] for run in runs) / len(runs)
        name = "d₂" if first.is_masked else "W₂"
        say(notes if quiet else shown, f"{counts[0]} particles: {name} to the density {gap:.3g}, mean of {len(runs)}")
        return
    summary = summarise(field, first, until, seed, runs)
    found = summary.as_record()
    for file in files:
        file.write({"record": "rate", **{key: value for key, value in found.items() if key != "runs"}})
    if not quiet:
        from howsmooth.report.gaussian_flow_table import rate_table
        from howsmooth.report.rows import exponent

        shown.print(rate_table(found, "Particles to the density, mean of "
                               f"{repeats} draw{'' if repeats == 1 else 's'}"))
        say(shown, f"{found['distance']} ≈ {summary.rate.constant:.3g} n^({exponent(summary.rate)})")
    if rate_path is not None:
        from howsmooth.report.density_figure import rate_figure
        from howsmooth.report.figure import save_figure

        save_figure(rate_figure([found], title=title, theme=theme), rate_path)


def _draw(flow, record, tokens, title, plot_path, animation_path, theme) -> None:
    from howsmooth.report.density_figure import density_figure, save_density_animation
    from howsmooth.report.figure import save_figure

    masses = flow.masses if record["slices"] is None else flow.masses.sum(1)
    volume = 1.0
    for width in flow.grid.widths:
        volume *= width
    values = (masses / volume).numpy()
    if plot_path is not None:
        save_figure(density_figure(record, values, tokens=tokens, title=title, theme=theme), plot_path)
    if animation_path is not None:
        save_density_animation(animation_path, record, values, tokens=tokens, title=title, theme=theme)
