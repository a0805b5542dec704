"""`howsmooth plan`: what a study, or a measurement, would take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.measure import FIELDS
from howsmooth.cli.options import (
    ENGINE,
    LOADING,
    engine_options,
    loading_options,
    output_options,
    overrides,
    set_option,
    spec_from,
    spec_options,
)
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.studies.costs import Forecast
    from howsmooth.studies.plan import Plan


@click.command(name="plan", short_help="What a study or a measurement would take.")
@click.argument("what", metavar="STUDY.toml|MODEL", default="minilm")
@spec_options(*FIELDS)
@engine_options
@loading_options
@set_option
@output_options("json")
def command(what: str, settings: tuple[str, ...], json_path: str | None, trust_remote_code: bool | None,
            allow_pickle: bool | None, **given: Any) -> None:
    """Say how much time and memory a study or a measurement takes, and what that is known from.

    Give a study file, or a model with the options of `howsmooth measure`: then a short solve and a few products are
    timed on the device, and what does not fit in its memory is refused.
    """
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console

    _refuse_idle_options(what, settings, given)
    trust = {"trust_remote_code": bool(trust_remote_code), "allow_pickle": bool(allow_pickle)}
    files = record_files(json_path, None)
    if what.endswith(".toml"):
        from howsmooth.studies.plan import prepare
        from howsmooth.studies.spec import read_study

        study = read_study(what, overrides(settings, given))
        show_plan(prepare(study, trust_remote_code=bool(trust_remote_code), allow_pickle=bool(allow_pickle)), console())
        return
    spec = spec_from({**given, **trust, "model": what})
    from howsmooth.cli.options import one_model
    from howsmooth.studies.costs import PLAN_PAIR, CostModel
    from howsmooth.studies.plan import prepare_model

    began = time.perf_counter()
    model, corpus, resolved = one_model(spec)
    loading = time.perf_counter() - began
    found = CostModel(model, prepare_model(resolved, model, corpus).subjects[0], patience=PLAN_PAIR).forecast(loading)
    for file in files:
        file.write({"model": what, **found.as_record(), "tol": spec.tol, "confidence": spec.confidence})
        file.close()
    show_forecast(found, console(stderr=json_path == "-"))


def _refuse_idle_options(what: str, settings: tuple[str, ...], given: dict[str, Any]) -> None:
    """Refuse what would do nothing: an engine for a model, or how to load a model for a study, whose file says that."""
    study = what.endswith(".toml")
    idle = [name for name in (LOADING if study else ENGINE) if given.get(name) is not None]
    if settings and not study:
        idle.append("set")
    if idle:
        only, got = ("a model", f"the study {what}; say it in the file") if study else (
            "a study file", f"the model {what}; leave it out")
        raise InputError(f"expected --{idle[0].replace('_', '-')} only with {only}, got {got}")


def show_forecast(found: Forecast, shown: Console) -> None:
    """A row per length, and what it all comes to."""
    from rich.table import Table

    from howsmooth.cli.parsing import duration, show_bytes

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


def show_plan(plan: Plan, notes: Console, done: int = 0) -> None:
    """What will be computed, where, and what it will take."""
    from rich.table import Table

    from howsmooth.cli.parsing import duration, show_bytes
    from howsmooth.report.rows import counted
    from howsmooth.studies.memory import free_memory

    spec, count = plan.spec, plan.count
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    maps = [f"{subject.model_spec.name}: {len(subject.layers)} layers"
            + (f" × {len(subject.heads)} heads" if subject.heads != (None,) else "") for subject in plan.subjects]
    texts = ", ".join(inputs.run_facts["text"] for inputs in plan.subjects[0].inputs)
    cut = "" if spec.inputs == "normalised" else (
        f", cut by {spec.cutting}, special tokens {'added' if spec.adds_special_tokens else 'not added'}")
    lengths = spec.lengths
    shown = ", ".join(map(str, lengths if len(lengths) < 13 else (*lengths[:3], "…", *lengths[-2:])))
    what = [spec.kind, "moved: " + ", ".join(spec.tokens), "quantities: " + ", ".join(spec.quantities)]
    sure = f"{spec.tol:g} at {plan.confidence:.10g}"
    seconds = plan.seconds() * (1 - done / max(1, count))
    for name, said in (
        ("study", spec.name), ("models", "; ".join(maps)), ("texts", texts + cut),
        ("lengths", f"{shown} × {spec.samples} samples"), ("maps", "; ".join(what)),
        ("tasks", f"{count}" + (f", {done} of them done before" if done else "")),
        ("intervals", sure + (f" each, {spec.confidence:g} for all together" if spec.simultaneous else "")),
    ):
        table.add_row(name, said)
    if spec.engine.kind == "ray":
        where = spec.engine.address or "a cluster of this machine"
        table.add_row("engine", f"Ray at {where}, {spec.engine.cpus:g} CPUs and {spec.engine.gpus:g} GPUs a task")
        table.add_row("time", f"about {duration(seconds)} of work, by this machine's speed")
        table.add_row("memory", f"at most {show_bytes(plan.worker_memory)} a worker")
    else:
        workers, threads = plan.split()
        free = free_memory()
        processes = f"{workers} processes" if workers > 1 else "1 process"
        table.add_row("engine", f"{processes} × {counted(threads, 'thread')} on this machine")
        table.add_row("time", f"about {duration(seconds / max(1, workers))}")
        table.add_row("memory", f"at most {show_bytes(plan.worker_memory * max(1, workers))}"
                      + (f", {show_bytes(free)} are free" if free else ""))
    notes.print(table)
