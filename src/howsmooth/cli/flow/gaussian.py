"""`howsmooth flow gaussian`: a Gaussian under attention, its mean and covariance."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import json_option
from howsmooth.cli.flow.attending import MatrixText, Numbers, attention_options, declared_attention
from howsmooth.cli.parsing import Count, Number
from howsmooth.errors import InputError


@click.command(
    name="gaussian",
    short_help="Gaussians stay Gaussian: mean, covariance, blow-up, limiting rank.",
    help="Follow N(mean, covariance) under x' = Γ(x): when it blows up and along what, and which rank it tends to.\n\n"
    "    EXAMPLE is a TOML file, or an example of `flow particles`, whose attention is taken (and followed in x); "
    "without it A = V = I.",
)
@attention_options(["softmax", "l2", "sinkhorn", "linear"], 2)
@click.option("--mean", type=Numbers(), metavar="NUMBERS", help="Of the start.  [default: 0]")
@click.option("--covariance", type=MatrixText(names=()), default="1", show_default=True, help="Of the start.")
@click.option("--particles", type=Count(2), metavar="COUNT", help="Tokens to follow beside it.")
@click.option("--runs", type=Count(), metavar="COUNT",
              help="A census: so many flows with random A and V, and the rank that each tends to.")
@click.option("--frames", type=Count(11), metavar="COUNT", default=101, show_default=True,
              help="Times to keep.")
@click.option("--rtol", type=Number(0, 1, open=True), default=1e-9, show_default=True,
              help="Relative tolerance.")
@click.option("--max-steps", type=Count(), metavar="COUNT", default=20_000, show_default=True,
              help="Of the integrator.")
@json_option
@click.option("--plot", "plot_path", metavar="FILE", help="Ellipses and eigenvalues as a figure (png, svg, pdf).")
@click.option("--animate", "animation_path", metavar="FILE", help="The same in motion (gif, or mp4 with ffmpeg).")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Of pictures.")
def command(example, kind, a, v, dim, until, seed, mean, covariance, particles, runs, frames, rtol, max_steps,
            json_path, plot_path, animation_path, theme) -> int:
    from howsmooth.cli.flow.drawing import check_pictures
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console, say

    check_pictures(json_path, plot_path, animation_path)
    if runs is not None and (plot_path or animation_path or particles):
        raise InputError("expected --runs without --plot, --animate or --particles, got them together; a census has "
                         "a table and records alone")
    if runs is not None and (example or a is not None or v is not None):
        raise InputError("expected --runs without a file, --A or --V, got them together; its matrices are drawn")
    ignored = [option for option, given in (("--rtol", _given("rtol")), ("--frames", _given("frames"))) if given]
    if runs is not None and ignored:
        raise InputError(f"expected --runs without {ignored[0]}, got them together; a census has its own")
    files = record_files(json_path, None)

    from howsmooth.dynamics import GaussianState, gaussian_flow, limiting_rank
    from howsmooth.dynamics.example import field_of, matrix

    declared = declared_attention(example, kind=kind, a=a, v=v, dim=dim, until=until, seed=seed, default_dim=2)
    d, until = declared.tokens.dim, declared.flow.until
    if mean is not None and len(mean) != d:
        raise InputError(f"expected a --mean of {d} numbers, got {len(mean)}; --dim says how many")
    start = GaussianState.of(mean or [0.0] * d, matrix(covariance, d, "--covariance"))
    shown, notes = console(), console(stderr=True)
    if runs is not None:
        return _census(declared, start, runs, seed, max_steps, files, shown, notes, json_path == "-")
    field = field_of(declared.attention, d)
    flow = gaussian_flow(field, start, until, frames=frames, rtol=rtol, max_steps=max_steps)
    rank, beside = limiting_rank(flow), None
    if particles is not None:
        from howsmooth.dynamics.gaussian_particles import particles_beside

        beside = particles_beside(flow, field, particles, seed=seed)
    exact = _closed_form(declared, start)
    record = {"record": "gaussian flow", "example": declared.name, "kind": declared.attention.kind,
              "A": matrix(declared.attention.A, d, "A").tolist(), "V": matrix(declared.attention.V, d, "V").tolist(),
              "heads": len(declared.attention.heads) or 1, "seed": seed, **flow.as_record(),
              "closed_form_blow_up": exact, "limiting_rank": rank.as_record(),
              "particles": None if beside is None else beside.as_record()}
    for file in files:
        file.write(record)
        file.close()
    title = f"{declared.title or 'A Gaussian flow'}: {field.name} attention in dimension {d}"
    if json_path != "-":
        from howsmooth.report.gaussian_flow_table import moments_table

        shown.print(moments_table(record, title, record["particles"]))
        say(shown, f"{flow.ending}, {flow.steps} steps, {flow.seconds:.2g} s", style="dim")
        if exact is not None:
            say(shown, "V = I in closed form: " + (f"blow-up at t = {exact:.6g}" if exact < 1e300 else "no blow-up"))
        say(shown, "eigenvalues of the covariance: " + ", ".join(rank.fates) + f"; rank {rank.rank} in the limit, "
            f"{rank.shape_rank} in shape" + ("" if rank.settled else "; not settled yet, follow it for longer"))
    if flow.status != "finished":
        say(notes, f"howsmooth: {flow.ending}; {flow.remedy}", style="yellow")
    tokens = None if beside is None else beside.tokens.numpy()
    if plot_path is not None:
        from howsmooth.report.figure import save_figure
        from howsmooth.report.gaussian_flow_figure import gaussian_flow_figure

        save_figure(gaussian_flow_figure(record, tokens, title=title, theme=theme), plot_path)
    if animation_path is not None:
        from howsmooth.report.gaussian_flow_figure import save_gaussian_animation

        save_gaussian_animation(animation_path, record, tokens, title=title, theme=theme)
    return 0


def _given(name: str) -> bool:
    """Whether an option stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _closed_form(declared, start) -> float | None:
    """The blow-up time where it is known: softmax attention of one head with V = I."""
    import torch

    from howsmooth.dynamics import blow_up_time
    from howsmooth.dynamics.example import matrix

    attention, d = declared.attention, start.d
    if attention.kind != "softmax" or attention.heads:
        return None
    if not torch.equal(matrix(attention.V, d, "V"), torch.eye(d, dtype=torch.float64)):
        return None
    return blow_up_time(matrix(attention.A, d, "A"), start)


def _census(declared, start, runs, seed, max_steps, files, shown, notes, quiet) -> int:
    """Random matrices, run after run; each record is written the moment it is there."""
    import torch
    from rich.progress import track

    from howsmooth.cli.flow.attending import named_matrix
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.dynamics import limiting_ranks
    from howsmooth.dynamics.example import field_of
    from howsmooth.report.gaussian_flow_table import census_table

    d, records, code = start.d, [], 0
    try:
        for run in track(range(runs), "flows", console=notes, disable=not notes.is_terminal, transient=True):
            drawn = int(torch.randint(2**40, (), generator=torch.Generator().manual_seed(seed + run)))
            attention = declared.but("attention", A=named_matrix("random", d, drawn),
                                     V=named_matrix("random", d, drawn + 1)).attention
            found, = limiting_ranks(lambda _, a=attention: field_of(a, d), start, declared.flow.until, 1,
                                    max_steps=max_steps)
            record = {"record": "limiting rank", "run": run, "kind": attention.kind, "d": d, "A": attention.A,
                      "V": attention.V, **found.as_record()}
            records.append(record)
            for file in files:
                file.write(record)
    except KeyboardInterrupt:  # the runs so far are a census too
        code = EXIT_INTERRUPTED
    for file in files:
        file.close()
    if records and not quiet:
        shown.print(census_table(records, f"{len(records)} Gaussian flows of {declared.attention.kind} attention, "
                                 f"d = {d}, random A and V, up to t = {declared.flow.until:g}"))
    return code
