"""Options that override a study file, and the plan that is printed before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.studies.planning import Prepared

_FLAGS = {  # option -> (path in the study, how to read it)
    "models": ("models", "list"), "corpora": ("corpora", "list"), "layers": ("layers", "numbers"),
    "heads": ("heads", "numbers"), "lengths": ("lengths", "text"), "samples": ("samples", "toml"),
    "cutting": ("cutting", "text"), "map": ("map", "text"), "tokens": ("tokens", "list"),
    "estimators": ("estimators", "list"), "tol": ("tol", "toml"), "confidence": ("confidence", "toml"),
    "max_memory": ("max_memory", "text"), "seed": ("seed", "toml"), "engine": ("engine.kind", "text"),
    "address": ("engine.address", "text"), "workers": ("engine.workers", "toml"), "threads": ("engine.threads", "toml"),
    "cpus": ("engine.cpus", "toml"), "gpus": ("engine.gpus", "toml"),
}
_HELP = {
    "models": "minilm,smollm2", "corpora": "alice,texts/", "layers": "0,6|all", "heads": "0,3|all",
    "lengths": "16..512*2", "samples": "COUNT", "cutting": "consecutive|documents|prefixes", "map": "attention|head|…",
    "tokens": "all,no-first", "estimators": "described,released", "tol": "1e-3", "confidence": "0.999",
    "max_memory": "4G", "seed": "NUMBER", "engine": "local|ray", "address": "HOST:PORT|auto", "workers": "COUNT",
    "threads": "COUNT", "cpus": "COUNT", "gpus": "COUNT",
}
ENGINE_FLAGS = ("engine", "address", "workers", "threads", "cpus", "gpus")


def override_options(*names: str) -> Callable:
    """The flags of these keys (all by default), and --set for every other key."""
    def decorate(command: Callable) -> Callable:
        command = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
                               help="Any key of the study file, the value as TOML; may be repeated.")(command)
        for name in reversed(names or tuple(_FLAGS)):
            command = click.option(f"--{name.replace('_', '-')}", metavar=_HELP[name])(command)
        return command
    return decorate


def overrides_of(settings: tuple[str, ...], **flags: str | None) -> dict[str, Any]:
    """What the flags say, as nested keys; the study's own checks judge the values."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None:
            path, kind = _FLAGS[name]
            _put(found, path, _READ[kind](value))
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path.strip():
            raise InputError(f"expected --set KEY=VALUE, got {setting!r}; for example --set samples=4")
        _put(found, path.strip(), _toml(value))
    return found


def _toml(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of more than 4300 digits, brackets without end
        return value  # a bare word is meant as text


def _list(value: str) -> list[str]:
    if not value.isascii() and value.encode("utf-8", "replace").decode("utf-8") != value:
        raise InputError(f"expected names in UTF-8, got {value[:60]!r}; check how the terminal encodes them")
    return [piece.strip() for piece in value.split(",") if piece.strip()]


def _numbers(value: str) -> Any:
    return value if value == "all" else [_toml(piece) for piece in value.split(",")]


_READ = {"text": str, "toml": _toml, "list": _list, "numbers": _numbers}


def _put(found: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for key in outer:
        found = found.setdefault(key, {})
    found[last] = value


def show_plan(prepared: Prepared, notes: Console, done: int = 0) -> None:
    """What will be computed, where, and what it will take."""
    from rich.table import Table

    from howsmooth.cli.parsing import show_bytes
    from howsmooth.report.rows import counted
    from howsmooth.studies.room import free_memory

    study, count = prepared.study, prepared.count
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    maps = [f"{subject.spec.name}: {len(subject.layers)} layers"
            + (f" × {len(subject.heads)} heads" if subject.heads != (None,) else "") for subject in prepared.subjects]
    table.add_row("study", study.name)
    table.add_row("models", "; ".join(maps))
    table.add_row("corpora", ", ".join(corpus.name for corpus in prepared.corpora) + f", cut by {study.cutting}")
    lengths = study.lengths
    table.add_row("lengths", ", ".join(map(str, lengths if len(lengths) < 13 else (*lengths[:3], "…", *lengths[-2:])))
                  + f" × {study.samples} samples")
    what = [study.kind, "moved: " + ", ".join(study.tokens), "estimators: " + ", ".join(study.estimators)]
    table.add_row("maps", "; ".join(what))
    table.add_row("tasks", f"{count}" + (f", {done} of them done before" if done else ""))
    sure = f"{study.tol:g} at {prepared.confidence:.10g}"
    table.add_row("intervals", sure + (f" each, {study.confidence:g} for all together" if study.simultaneous else ""))
    seconds = prepared.seconds() * (1 - done / max(1, count))
    if study.engine.kind == "ray":
        where = study.engine.address or "a cluster of this machine"
        table.add_row("engine", f"Ray at {where}, {study.engine.cpus:g} CPUs and {study.engine.gpus:g} GPUs a task")
        table.add_row("time", f"about {duration(seconds)} of work, by this machine's speed")
        table.add_row("memory", f"at most {show_bytes(prepared.worker_memory)} a worker")
    else:
        workers, threads = prepared.split()
        free = free_memory()
        processes = f"{workers} processes" if workers > 1 else "1 process"
        table.add_row("engine", f"{processes} × {counted(threads, 'thread')} on this machine")
        table.add_row("time", f"about {duration(seconds / max(1, workers))}")
        table.add_row("memory", f"at most {show_bytes(prepared.worker_memory * max(1, workers))}"
                      + (f", {show_bytes(free)} are free" if free else ""))
    notes.print(table)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42), duration(400), duration(90000)
    ('42 s', '7 min', '25.0 h')
    """
    if seconds < 120:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
