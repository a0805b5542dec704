"""`howsmooth plan`: what a study, or a measurement, would take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.choosing import (
    choose_inputs,
    inputs_option,
    json_option,
    load_weights,
    loading_options,
    max_steps_option,
    products_option,
    stop_option,
)
from howsmooth.cli.overriding import override_options
from howsmooth.cli.parsing import Bytes, IntegerList
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.studies.forecasting import Forecast

_MEASURE = ("layers", "heads", "lengths", "samples", "map", "tokens", "tol", "confidence", "max_memory", "engine",
            "workers", "threads")
_ENGINE = ("engine", "workers", "threads")


@click.command(name="plan", short_help="What a study or a measurement would take.")
@click.argument("what", metavar="STUDY.toml|MODEL", default="minilm")
@click.option("--text", "text_path", metavar="FILE|-", help="As for measure.")
@click.option("--special-tokens", type=click.Choice(["add", "none"]), help="As for measure.")
@inputs_option
@products_option
@stop_option
@max_steps_option
@override_options(*_MEASURE)
@loading_options
@json_option
def command(what, text_path, special_tokens, inputs, products, stop, max_steps, settings, seed, json_path, dtype,
            device, revision, tokenizer, trust_remote_code, allow_pickle, **flags) -> None:
    """Say how much time and memory a study or a measurement takes, and what that is known from.

    Give a study file, or a model with the options of `howsmooth measure`: then a short solve and a few products are
    timed on the device, and what does not fit in its memory is refused.
    """
    if what.endswith(".toml"):
        _study(what, text_path, special_tokens, settings, flags, trust_remote_code=trust_remote_code,
               allow_pickle=allow_pickle)
        return
    given = [name for name in _ENGINE if flags[name] is not None] + ["set"] * bool(settings)
    if given:
        raise InputError(f"expected --{given[0]} only with a study file, got the model {what}; leave it out")
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console
    from howsmooth.studies import forecast, resolve

    files = record_files(json_path, None)
    began = time.perf_counter()
    tokens = choose_inputs(inputs, text_path, what, seed)
    model = load_weights(what, dtype=dtype, device=device, seed=seed, revision=revision, tokenizer=tokenizer,
                         trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    loading = time.perf_counter() - began
    asked = _asked(flags)
    wanted = resolve(model, tokens, special_tokens=special_tokens != "none", stop=stop, max_steps=max_steps, seed=seed,
                     products=None if products == "float64" or asked["kind"] else products, **asked)
    found = forecast(model, tokens, wanted, loading=loading)
    for file in files:
        file.write({"model": what, **found.as_record(), "tol": wanted.tol, "confidence": wanted.confidence})
        file.close()
    show_forecast(found, console(stderr=json_path == "-"))


def _asked(flags: dict[str, str | None]) -> dict[str, Any]:
    """Measure's options, with measure's defaults."""
    def number(name: str, kind: type, default: float) -> float:
        try:
            return default if flags[name] is None else kind(flags[name])
        except ValueError:
            raise InputError(f"expected a number for --{name}, got {flags[name]!r}") from None

    heads = flags["heads"] or ("all" if flags["map"] == "head" else None)
    kind = flags["map"] if flags["map"] not in (None, "attention", "head") else None
    return {
        "layers": IntegerList(word="all", example="0,6").convert(flags["layers"] or "all", None, None),
        "heads": None if heads is None else IntegerList(word="all", example="0,3").convert(heads, None, None),
        "lengths": IntegerList(least=1, example="64,128").convert(flags["lengths"] or "64,128,256", None, None),
        "samples": number("samples", int, 4), "tol": number("tol", float, 1e-3),
        "confidence": number("confidence", float, 0.999), "tokens": flags["tokens"] or "all", "kind": kind,
        "max_memory": None if flags["max_memory"] is None else Bytes().convert(flags["max_memory"], None, None),
    }


def _study(path: str, text_path: str | None, special_tokens: str | None, settings: tuple[str, ...],
           flags: dict[str, str | None], *, trust_remote_code: bool, allow_pickle: bool) -> None:
    from howsmooth.cli.overriding import overrides_of, show_plan
    from howsmooth.cli.running import console
    from howsmooth.studies.config import read_study
    from howsmooth.studies.planning import prepare

    overrides = overrides_of(settings, **flags)
    if text_path is not None:
        overrides["corpora"] = [text_path]
    if special_tokens is not None:
        overrides["special_tokens"] = special_tokens == "add"
    study = read_study(path, overrides)
    show_plan(prepare(study, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle), console())


def show_forecast(found: Forecast, shown: Console) -> None:
    """A row per length, and what it all comes to."""
    from rich.table import Table

    from howsmooth.cli.overriding import duration
    from howsmooth.cli.parsing import show_bytes

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("n", "solves", "steps", "time", "memory", "vectors", "workspace", "known from"):
        table.add_column(name, justify="left" if name == "known from" else "right", no_wrap=name != "known from")
    for cost in found.costs:
        pair = f"{cost.pairs[cost.n]:.3g} s a pair of products" if cost.measured_pair else (
            f"products up to n = {max(cost.pairs)}, by n²")
        steps = ", ".join(str(steps) for steps in cost.probed.values())
        table.add_row(str(cost.n), str(cost.solves), f"{cost.steps:.0f} of ≤ {cost.most_steps}",
                      duration(sum(cost.seconds.values())), show_bytes(cost.bytes["total"]),
                      show_bytes(cost.bytes["vectors"]), show_bytes(cost.bytes["workspace"]),
                      f"{steps} steps at n = {cost.probed_at}; {pair}")
    shown.print(table)
    free = "" if found.free_bytes is None else f"; {show_bytes(found.free_bytes)} are free"
    shown.print(f"about {duration(found.seconds)} on {found.device}, of which {found.loading:.0f} s to load and "
                f"{found.first_call:.0f} s at the first call; {show_bytes(found.bytes)} of memory{free}", markup=False)
