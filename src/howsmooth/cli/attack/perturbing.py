"""What the commands that perturb features share: budgets, attacks, and the loop with its files and its table."""

from __future__ import annotations

from collections.abc import Callable

import click

from howsmooth.cli.choosing import load_chosen, read_text
from howsmooth.cli.parsing import Count, NumberList
from howsmooth.errors import InputError

ATTACKS = ("noise", "sign", "singular", "ascent", "ascent-noise", "split", "split-ascent")


class Attacks(click.ParamType):
    """Comma-separated names of attacks."""

    name = "attacks"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "NAME,…"

    def convert(self, value, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        names = tuple(dict.fromkeys(piece.strip() for piece in value.split(",")))
        if unknown := [name for name in names if name not in ATTACKS]:
            self.fail(f"expected attacks among {', '.join(ATTACKS)}, got {unknown[0]!r}", param, ctx)
        return names


def budget_options(command: Callable) -> Callable:
    """The options of a budget and of the attacks, in the order that help shows."""
    options = (
        click.option("--budget", "sizes", type=NumberList(example="0.001,0.01,0.1"), default="0.01", show_default=True,
                     help="Sizes of the perturbation: shares of ‖X‖, or of the mean |x_i| with --norm token."),
        click.option("--norm", type=click.Choice(["frobenius", "token"]), default="frobenius", show_default=True,
                     help="Whether the budget is for all tokens together, or for each."),
        click.option("--touch", type=Count(), metavar="COUNT", help="Touch at most so many tokens."),
        click.option("--attack", "attacks", type=Attacks(), default="noise,sign,singular,ascent", show_default=True,
                     help=f"Among {', '.join(ATTACKS)}; split duplicates every token first."),
        click.option("--steps", type=Count(), metavar="COUNT", default=20, show_default=True,
                     help="Steps of ascent."),
        click.option("--save", "folder", metavar="DIR",
                     help="Keep each attack as safetensors; what is there already is not computed again."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def run_attacks(model, text_path, json_path, csv_path, sizes, norm, touch, attacks, steps, folder, *, kind, objective,
                layers, heads, lengths, samples, special_tokens, tol, confidence, seed, **loading) -> int:
    """Files, model, progress and table around the attacks."""
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice, writable_folder
    from howsmooth.cli.running import Run, console

    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, "--json": json_path, "--csv": csv_path})
    files = record_files(json_path, csv_path)
    text = read_text(text_path)
    folder = None if folder is None else writable_folder(folder, "--save")

    from howsmooth.report.feature_table import feature_table
    from howsmooth.studies import resolve
    from howsmooth.studies.perturbing import Shares, feature_attacks, named_attack, named_objective

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(loaded, text, layers=layers, heads=heads, lengths=lengths, samples=samples,
                       special_tokens=special_tokens == "add", tol=tol, confidence=confidence, seed=seed)
    if touch is not None and touch > min(settings.lengths):
        raise InputError(f"expected --touch up to the shortest length, {min(settings.lengths)}, got {touch}; touch "
                         "fewer")
    chosen = [named_attack(name, steps, tol) for name in attacks]
    aim = named_objective(objective, loaded)
    run = Run(files, notes, thing="attack")
    places = settings.estimates if kind != "model" else len(settings.lengths) * settings.samples
    try:
        run.collect(loaded.name, places * len(sizes) * len(chosen), lambda step: feature_attacks(
            loaded, text, settings, attacks=chosen, shares=Shares(sizes, norm, touch), kind=kind, objective=aim,
            folder=folder, step=step), describe=_place)
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(feature_table(run.records))
        code = run.finish()
    return code


def _place(n: int, layer: int | None, head: int | None) -> str:
    where = "" if layer is None else f"layer {layer}, " if head is None else f"layer {layer} head {head}, "
    return f"{where}n = {n}"
