"""What a study or a measurement takes, as tables: its maps and inputs, where it runs, time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.report.rows import counted
from howsmooth.report.table import Column, Table
from howsmooth.studies.memory import free_memory

if TYPE_CHECKING:
    from howsmooth.studies.costs import Cost, Forecast
    from howsmooth.studies.plan import Plan

_MOST_LENGTHS = 12  # beyond, the first and the last lengths are listed


def plan_table(plan: Plan, done: int = 0) -> Table:
    """What will be computed, where, and what it will take; `done` tasks of it are in the store already."""
    spec = plan.spec
    tasks = f"{plan.count}" + (f", {done} of them done before" if done else "")
    what = [spec.kind, "moved: " + ", ".join(spec.tokens), "quantities: " + ", ".join(spec.quantities)]
    sure = f"{spec.tol:g} at {plan.confidence:.10g}"
    if spec.simultaneous:
        sure += f" each, {spec.confidence:g} for all together"
    return Table.of_facts(
        [
            ("study", spec.name),
            ("models", _models(plan)),
            ("texts", _texts(plan)),
            ("lengths", f"{_lengths(spec.lengths)} × {spec.samples} samples"),
            ("maps", "; ".join(what)),
            ("tasks", tasks),
            ("intervals", sure),
            *_resources(plan, plan.seconds() * (1 - done / max(1, plan.count))),
        ]
    )


def _models(plan: Plan) -> str:
    maps = []
    for planned in plan.planned_models:
        heads = "" if planned.heads == (None,) else f" × {len(planned.heads)} heads"
        maps.append(f"{planned.model_spec.name}: {len(planned.layers)} layers{heads}")
    return "; ".join(maps)


def _texts(plan: Plan) -> str:
    spec = plan.spec
    texts = ", ".join(inputs.run_fields["text"] for inputs in plan.planned_models[0].inputs)
    if spec.inputs == "normalised":
        return texts
    return f"{texts}, cut by {spec.cutting}, special tokens {'added' if spec.adds_special_tokens else 'not added'}"


def _lengths(lengths: tuple[int, ...]) -> str:
    """The lengths, less those in the middle of a long list.

    >>> _lengths((8, 16, 32)), _lengths(tuple(range(1, 21)))
    ('8, 16, 32', '1, 2, 3, …, 19, 20')
    """
    return ", ".join(map(str, lengths if len(lengths) <= _MOST_LENGTHS else (*lengths[:3], "…", *lengths[-2:])))


def _resources(plan: Plan, seconds: float) -> list[tuple[str, str]]:
    """The engine, its time and its memory; `seconds` is the work that is left."""
    engine = plan.spec.engine
    if engine.kind == "ray":
        where = engine.address or "a cluster of this machine"
        return [
            ("engine", f"Ray at {where}, {engine.cpus:g} CPUs and {engine.gpus:g} GPUs a task"),
            ("time", f"about {duration(seconds)} of work, by this machine's speed"),
            ("memory", f"at most {show_bytes(plan.worker_memory)} a worker"),
        ]
    workers, threads = plan.workers_and_threads()
    free = free_memory()
    processes = f"{workers} processes" if workers > 1 else "1 process"
    return [
        ("engine", f"{processes} × {counted(threads, 'thread')} on this machine"),
        ("time", f"about {duration(seconds / max(1, workers))}"),
        (
            "memory",
            f"at most {show_bytes(plan.worker_memory * max(1, workers))}"
            + (f", {show_bytes(free)} are free" if free else ""),
        ),
    ]


def forecast_table(found: Forecast) -> Table:
    """What a measurement takes, a row per length."""
    return Table(
        "",
        [
            Column("n", lambda cost: cost.n, wrap=False, key=True),
            Column("solves", lambda cost: cost.solves, wrap=False),
            Column("steps", lambda cost: f"{cost.steps:.0f} of ≤ {cost.most_steps}", wrap=False),
            Column("time", lambda cost: duration(sum(cost.seconds.values())), wrap=False),
            Column("memory", lambda cost: show_bytes(cost.bytes["total"]), wrap=False),
            Column("vectors", lambda cost: show_bytes(cost.bytes["vectors"]), wrap=False),
            Column("workspace", lambda cost: show_bytes(cost.bytes["workspace"]), wrap=False),
            Column("known from", _source, "left"),
        ],
        found.costs,
        ruled=False,
    )


def _source(cost: Cost) -> str:
    pair = (
        f"{cost.pairs[cost.n]:.3g} s a pair of products"
        if cost.measured_pair
        else (f"products up to n = {max(cost.pairs)}, by n²")
    )
    steps = ", ".join(str(steps) for steps in cost.probed.values())
    return f"{steps} steps at n = {cost.probed_at}; {pair}"


def forecast_line(found: Forecast) -> str:
    """What all lengths of a measurement come to."""
    free = "" if found.free_bytes is None else f"; {show_bytes(found.free_bytes)} are free"
    return (
        f"about {duration(found.seconds)} on {found.device}, of which {found.loading:.0f} s to load and "
        f"{found.first_call:.0f} s at the first call; {show_bytes(found.bytes)} of memory{free}"
    )


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42), duration(400), duration(90000)
    ('42 s', '7 min', '25.0 h')
    """
    if seconds < 120:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show_bytes(size: float) -> str:
    """A size for people.

    >>> show_bytes(1610612736)
    '1.5 GiB'
    """
    power = max(p for p in range(4) if size >= 1024**p or p == 0)
    return f"{size / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
