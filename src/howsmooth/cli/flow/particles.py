"""`howsmooth flow particles`: tokens as particles under attention, from a named example or a TOML file."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import csv_option, json_option
from howsmooth.cli.parsing import Count, Number
from howsmooth.errors import InputError

_POSITIVE = Number(0, open=True)


@click.command(
    name="particles",
    short_help="Tokens as particles: clusters, hulls, growth of perturbations.",
    help="Follow tokens along depth, x' = Γ(x), and say what forms: clusters, a polytope, hyperplanes, a collapse.\n\n"
    "    EXAMPLE is polytope (the default), hyperplanes, polytope_times_subspace, collapse, low_rank, sphere, or a "
    "TOML file of your own; options change its values.",
)
@click.argument("example", required=False)
@click.option("--weights", metavar="MODEL:LAYER[/HEAD]",
              help="Follow a real model's attention instead: a layer, or a head of it, repeated, on its own tokens.")
@click.option("--depth-weights", metavar="MODEL", help="The same with all its attention layers one after the other.")
@click.option("--text", "text_path", metavar="FILE|-", help="Text for the model's tokens.  [default: the embedded one]")
@click.option("--tokens", "count", type=Count(), metavar="COUNT", help="How many tokens.")
@click.option("--dim", type=Count(), metavar="NUMBER", help="Their dimension; A and V must fit it.")
@click.option("--size", type=_POSITIVE, metavar="NUMBER", help="How far the first tokens are spread.")
@click.option("--seed", type=Count(0, 2**63 - 1), metavar="NUMBER", help="Of the first tokens and of noise.")
@click.option("--kind", type=click.Choice(["softmax", "l2", "sinkhorn", "linear", "sigmoid"]), help="Of attention.")
@click.option("--causal/--no-causal", default=None, help="Whether a token sees only those before it.")
@click.option("--coordinates", type=click.Choice(["tokens", "renormalised"]), help="x, or z with x = exp(tV) z.")
@click.option("--sphere/--no-sphere", default=None, help="Layer normalisation: tokens stay on the unit sphere.")
@click.option("--until", type=_POSITIVE, metavar="DEPTH", help="How deep.")
@click.option("--solver", metavar="NAME", help="rk45, dop853, lsoda, radau, torchdiffeq, rk4 or residual.")
@click.option("--steps", type=Count(), metavar="COUNT", help="Of rk4, or layers of residual.")
@click.option("--rtol", type=_POSITIVE, metavar="NUMBER", help="Relative tolerance of adaptive solvers.")
@click.option("--noise", type=Number(0), metavar="NUMBER",
              help="Brownian motion; with --solver residual.")
@click.option("--saves", type=Count(2), metavar="COUNT", help="Depths to keep and to look at.")
@click.option("--tol", type=_POSITIVE, metavar="DISTANCE", help="Tokens closer than this are together.")
@click.option("--lipschitz", is_flag=True, default=None, help="Also the local Lipschitz constant of Γ at each depth.")
@click.option("--growth", type=Count(), metavar="DEPTHS",
              help="Also how a perturbation grows, at so many depths, through residual layers (--layers).")
@click.option("--layers", type=Count(), metavar="COUNT", default=128, show_default=True,
              help="Residual layers for --growth.")
@json_option
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="Paths and instruments as a figure (png, svg, pdf).")
@click.option("--animate", "animation_path", metavar="FILE", help="The tokens in motion (gif, or mp4 with ffmpeg).")
@click.option("--page", "page_path", metavar="FILE", help="The same as one HTML page to play with.")
@click.option("--save", "save_path", metavar="FILE", help="Keep depths and tokens, as safetensors.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Of pictures.")
def command(example, weights, depth_weights, text_path, count, dim, size, seed, kind, causal, coordinates, sphere,
            until, solver, steps, rtol, noise,
            saves, tol, lipschitz, growth, layers, json_path, csv_path, plot_path, animation_path, page_path, save_path,
            theme) -> int:
    from pathlib import Path

    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice
    from howsmooth.cli.running import console, say
    from howsmooth.report.figure import check_plot_path
    from howsmooth.report.flow_animation import check_animation_path
    from howsmooth.report.flow_page import check_page_path
    from howsmooth.report.flow_table import flow_table

    _refuse_contradictions(example, weights, depth_weights, text_path, dim=dim, size=size, kind=kind, causal=causal,
                           coordinates=coordinates)
    outputs = {"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--animate": animation_path,
               "--page": page_path, "--save": save_path}
    read = {"EXAMPLE": example if (example or "").endswith(".toml") else None,
            "--text": None if text_path == "-" else text_path}
    refuse_one_file_twice(outputs | read)
    files = record_files(json_path, csv_path)
    for path, option, check in ((plot_path, "--plot", check_plot_path),
                                (animation_path, "--animate", check_animation_path),
                                (page_path, "--page", check_page_path), (save_path, "--save", _check_tokens_path)):
        if path is not None:
            check(path)
            check_writable(Path(path), option)

    from howsmooth.dynamics import read_example, watch
    from howsmooth.dynamics.example import unmet
    from howsmooth.dynamics.trajectory import INTERRUPTED

    given = {}
    if weights or depth_weights:
        declared, given = _from_model(weights, depth_weights, text_path, count)
        count = None
    else:
        declared = read_example(example or "polytope")
    declared = (declared.but("tokens", count=count, dim=dim, size=size, seed=seed)
                .but("attention", kind=kind, causal=causal)
                .but("flow", coordinates=coordinates, sphere=sphere, until=until, solver=solver, steps=steps, rtol=rtol,
                     noise=noise, saves=saves)
                .but("watch", tol=tol, lipschitz=lipschitz))
    if growth is not None and declared.flow.noise:
        raise InputError("expected --growth without noise, got both: a perturbation is followed through layers that "
                         "draw nothing; leave one out")
    renormalised = declared.flow.coordinates == "renormalised"
    notes, shown = console(stderr=True), console()
    trajectory, field = _follow(declared, given, notes)
    interrupted = trajectory.status == INTERRUPTED
    if save_path is not None:
        _save(save_path, trajectory, declared)
        say(notes, f"wrote {len(trajectory.times)} depths to {save_path}", style="dim")
    facts = {"example": declared.name, "kind": declared.attention.kind, "coordinates": declared.flow.coordinates,
             "sphere": declared.flow.sphere, "tol": declared.watch.tol, **trajectory.as_record(),
             "seed": declared.tokens.seed}
    records = []
    for seen in watch(trajectory, field, tol=declared.watch.tol, renormalised=renormalised,
                      lipschitz=declared.watch.lipschitz):
        records.append(seen)
        _write(files, {"record": "depth", **facts, **seen})
    title = declared.title or declared.name
    n, d = trajectory.last.shape
    if json_path != "-" and csv_path != "-":
        shown.print(flow_table(records, title, renormalised))
        say(shown, f"{n} tokens in dimension {d}, {'e^{−tV}x' if renormalised else 'x'}: {trajectory.ending}, "
            f"{trajectory.steps} steps of {trajectory.solver}, {trajectory.evaluations} evaluations, "
            f"{trajectory.seconds:.2g} s; tokens closer than {declared.watch.tol:g} are together", style="dim")
        for line in _forms(records):
            say(shown, line)
    if trajectory.status != "finished":
        say(notes, f"howsmooth: warning: {trajectory.ending}; {trajectory.remedy}", style="yellow")
    for line in unmet(declared.expect, records[-1]):
        say(notes, f"howsmooth: warning: {line} (stated in {declared.name})", style="yellow")
    if growth is not None and not interrupted:
        _grow(declared, field, trajectory, growth, layers, files, facts, shown,
              quiet=json_path == "-" or csv_path == "-")
    for file in files:
        file.close()
    if plot_path is not None or animation_path is not None:
        _draw(declared, field, trajectory, records, title, plot_path, animation_path, theme)
    if page_path is not None:
        _write_page(page_path, declared, field, trajectory, records, title)
        say(notes, f"wrote {page_path}", style="dim")
    return EXIT_INTERRUPTED if interrupted else 0


def _refuse_contradictions(example, weights, depth_weights, text_path, **declared) -> None:
    named = {"EXAMPLE": example, "--weights": weights, "--depth-weights": depth_weights}
    several = [name for name, value in named.items() if value is not None]
    if len(several) > 1:
        raise InputError(f"expected one of {', '.join(named)}, got {' and '.join(several)}; leave the others out")
    from_model = weights is not None or depth_weights is not None
    wrong = [f"--{name}" for name, value in declared.items() if value is not None] if from_model else []
    if wrong:
        raise InputError(f"expected the model to decide, got {wrong[0]} with its weights; leave it out")
    if text_path is not None and not from_model:
        raise InputError("expected --text only with --weights or --depth-weights, got it alone; leave it out")


def _from_model(weights, depth_weights, text_path, count):
    """A flow with a real model's weights, on its own tokens."""
    from howsmooth.cli.choosing import load_chosen, read_text
    from howsmooth.studies import model_flow, parse_weights

    name, layer, head = parse_weights(weights) if weights else (depth_weights, None, None)
    text = read_text(text_path)
    found = model_flow(load_chosen(name, "float32"), text, count or 32, layer, head)
    return found.example, {"layers": found.layers, "x": found.x}


def _follow(declared, given, notes):
    """Integrate, with a bar along depth; Ctrl-C leaves what there is until then."""
    from howsmooth.cli.flow.following import bar_along
    from howsmooth.dynamics import Interrupted, follow
    from howsmooth.dynamics.example import attention_behind

    try:
        with bar_along(notes, "depth ", declared.flow.until) as progress:
            return follow(declared, progress=progress, **given)
    except Interrupted as stopped:
        partial = stopped.partial
        return partial, attention_behind(declared, partial.last.shape[1], given.get("layers"))


def _forms(records) -> list[str]:
    """What forms, in words: plateaus of the cluster count."""
    from howsmooth.dynamics.instruments import plateaus

    if records[0]["clusters"] is None or len(records) < 3:
        return []
    found = plateaus([r["t"] for r in records], [r["clusters"] for r in records], least=0.1)
    return [f"{p.count} cluster{'s' if p.count > 1 else ''} from depth {p.start:.4g} to {p.end:.4g}"
            for p in found if p.count < (records[0]["clusters"] or 0)]


def _grow(declared, field, trajectory, depths, layers, files, facts, shown, quiet: bool) -> None:
    from howsmooth.dynamics import Velocity, perturbation_growth
    from howsmooth.report.flow_table import growth_of_perturbations_table

    if isinstance(field, list):  # no step may cross from one layer to the next
        layers = -(-layers // len(field)) * len(field)
    grown = perturbation_growth(Velocity(field, sphere=declared.flow.sphere), trajectory.tokens[0],
                                trajectory.reached, steps=layers, depths=min(depths, layers))
    records = [g.as_record() for g in grown]
    lines = [file for file in files if file.form == "json"]
    for record in records:
        _write(lines, {"record": "growth", "example": facts["example"], **record})
    if not quiet:
        shown.print(growth_of_perturbations_table(records, declared.flow.coordinates == "renormalised"))


def _draw(declared, field, trajectory, records, title, plot_path, animation_path, theme) -> None:
    from howsmooth.dynamics.watching import drawing
    from howsmooth.report.figure import save_figure
    from howsmooth.report.flow_animation import save_animation
    from howsmooth.report.flow_figure import flow_figure

    seen, labels = drawing(trajectory, field, declared.watch.tol)
    paths = seen(trajectory.tokens).numpy()
    if plot_path is not None:
        save_figure(flow_figure(records, paths, seen.names, labels, title=title, theme=theme), plot_path)
    if animation_path is not None:
        save_animation(animation_path, trajectory.times.tolist(), paths, seen.names, labels, title=title, theme=theme)


def _write_page(path: str, declared, field, trajectory, records, title) -> None:
    from pathlib import Path

    from howsmooth.dynamics.instruments import principal_view
    from howsmooth.dynamics.watching import drawing
    from howsmooth.report.flow_page import flow_page, particle_scene

    seen, labels = drawing(trajectory, field, declared.watch.tol)
    n, d = trajectory.last.shape
    if d > 2:  # a page can be turned
        seen = principal_view(trajectory.tokens, 3)
    facts = (f"{n} tokens in dimension {d}, {declared.flow.coordinates}: {trajectory.ending}, {trajectory.steps} steps "
             f"of {trajectory.solver}; tokens closer than {declared.watch.tol:g} are together. Seed "
             f"{declared.tokens.seed}.")
    scene = particle_scene(records, seen(trajectory.tokens).numpy(), seen.names, labels, title=title,
                           about=declared.about, facts=facts)
    Path(path).write_text(flow_page([scene]), encoding="utf-8")


def _write(files, record: dict) -> None:
    for file in files:
        file.write(record)


def _check_tokens_path(path: str) -> None:
    if not path.endswith(".safetensors"):
        raise InputError(f"expected a file ending in .safetensors for --save, got {path!r}")


def _save(path: str, trajectory, declared) -> None:
    from safetensors.torch import save_file

    facts = {key: str(value) for key, value in trajectory.as_record().items()} | {
        "example": declared.name, "coordinates": declared.flow.coordinates}
    save_file({"times": trajectory.times, "tokens": trajectory.tokens.contiguous()}, path, metadata=facts)
