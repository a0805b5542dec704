"""Terminal tables of the cost of a study or a measurement: maps, inputs, engine, time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.models.memory import free_memory
from howsmooth.report.rows import counted
from howsmooth.report.table import Column, Table

if TYPE_CHECKING:
    from howsmooth.studies.costs import Cost, Forecast
    from howsmooth.studies.plan import Plan

_MAX_LENGTHS = 12  # of more, only the first and the last are listed


def plan_table(plan: Plan, done: int = 0) -> Table:
    """Return the table of a study's plan and its cost; `done` is the number of tasks that are in the store already."""
    spec = plan.spec
    tasks = f"{plan.count}" + (f", {done} of them done before" if done else "")
    return Table.of_facts(
        [
            ("study", spec.name),
            *([] if spec.question == "measure" else [("question", spec.question)]),
            *(_grid(plan) if plan.planned_models else []),
            ("tasks", tasks),
            *([("intervals", _intervals(plan))] if "tol" in spec.options else []),
            *_resources(plan, plan.seconds() * (1 - done / max(1, plan.count))),
        ]
    )


def _grid(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows about models, texts, lengths and maps."""
    spec = plan.spec
    varied = {"moved": spec.tokens, "quantities": getattr(spec, "quantities", ())}
    named = (f"{name}: {', '.join(values)}" for name, values in varied.items() if values)
    lengths = tuple(sorted({n for planned in plan.planned_models for n in planned.spec.lengths}))
    return [
        ("models", _models(plan)),
        ("texts", _texts(plan)),
        ("lengths", f"{_lengths(lengths)} × {sample_counts(plan)}"),
        ("maps", "; ".join([spec.map_name, *named])),
    ]


def sample_counts(plan: Plan) -> str:
    """Return how many samples each length has; a text may have fewer than the default."""
    counts = {
        len(planned.fitted(inputs, n)[1])
        for planned in plan.planned_models
        for inputs in planned.inputs
        for n in planned.spec.lengths
    }
    return counted(max(counts), "sample") if len(counts) == 1 else f"{min(counts)} to {max(counts)} samples"


def special_tokens(plan: Plan) -> str:
    """Return whether special tokens are added to the texts: some tokenizers have none to add."""
    from howsmooth.questions.inputs import TextInputs

    added = {
        inputs.adds_special_tokens
        for planned in plan.planned_models
        for inputs in planned.inputs
        if isinstance(inputs, TextInputs)
    }
    if len(added) > 1:
        return "special tokens added where the tokenizer has some"
    return f"special tokens {'added' if added == {True} else 'not added'}"


def _intervals(plan: Plan) -> str:
    spec = plan.spec
    together = f" each, {spec.confidence:g} for all together" if getattr(spec, "simultaneous", False) else ""
    return f"{spec.tol:g} at {plan.confidence:.10g}{together}"


def _models(plan: Plan) -> str:
    maps = []
    for planned in plan.planned_models:
        heads = "" if planned.heads == (None,) else f" × {len(planned.heads)} heads"
        maps.append(f"{planned.model_spec.name}: {counted(len(planned.layers), 'layer')}{heads}")
    return "; ".join(maps)


def _texts(plan: Plan) -> str:
    spec = plan.spec
    texts = ", ".join(inputs.run_fields["text"] for inputs in plan.planned_models[0].inputs)
    if spec.inputs != "text":
        return texts
    return f"{texts}, cut by {spec.cutting}, {special_tokens(plan)}"


def _lengths(lengths: tuple[int, ...]) -> str:
    """List the lengths, without the middle of a long list.

    Example:
        >>> _lengths((8, 16, 32)), _lengths(tuple(range(1, 21)))
        ('8, 16, 32', '1, 2, 3, …, 19, 20')
    """
    return ", ".join(map(str, lengths if len(lengths) <= _MAX_LENGTHS else (*lengths[:3], "…", *lengths[-2:])))


def _resources(plan: Plan, seconds: float) -> list[tuple[str, str]]:
    """Return the rows about the engine, its time if that was estimated, and its memory; `seconds` is what remains."""
    engine = plan.spec.engine
    if engine.name == "ray":
        where = engine.address or "a cluster of this machine"
        return [
            ("engine", f"Ray at {where}, {engine.cpus:g} CPUs and {engine.gpus:g} GPUs a task"),
            *([("time", f"about {duration(seconds)} of work, by this machine's speed")] if plan.costs else []),
            ("memory", f"at most {show_bytes(plan.worker_memory)} a worker"),
        ]
    workers, threads = plan.workers_and_threads()
    free = free_memory()
    processes = f"{workers} processes" if workers > 1 else "1 process"
    return [
        ("engine", f"{processes} × {counted(threads, 'thread')} on this machine"),
        *([("time", f"about {duration(seconds / max(1, workers))}")] if plan.costs else []),
        (
            "memory",
            f"at most {show_bytes(plan.worker_memory * max(1, workers))}"
            + (f", {show_bytes(free)} are free" if free else ""),
        ),
    ]


def forecast_table(forecast: Forecast) -> Table:
    """Return the table of the cost of a measurement with a row for each length."""
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
        forecast.costs,
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


def forecast_line(forecast: Forecast) -> str:
    """Describe the total cost of a measurement in a line."""
    free = "" if forecast.free_bytes is None else f"; {show_bytes(forecast.free_bytes)} are free"
    return (
        f"about {duration(forecast.seconds)} on {forecast.device}, of which {forecast.loading:.0f} s to load and "
        f"{forecast.first_call:.0f} s at the first call; {show_bytes(forecast.bytes)} of memory{free}"
    )


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    Example:
        >>> duration(42), duration(400), duration(90000)
        ('42 s', '7 min', '25.0 h')
    """
    if seconds < 120:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show_bytes(size: float) -> str:
    """Format a number of bytes in B, KiB, MiB or GiB.

    Example:
        >>> show_bytes(1610612736)
        '1.5 GiB'
    """
    power = max(p for p in range(4) if size >= 1024**p or p == 0)
    return f"{size / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
