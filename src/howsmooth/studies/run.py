"""Running a plan: bundles to an engine, rows to a store or to whoever asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.models import Model
from howsmooth.studies.inputs import Step
from howsmooth.studies.plan import Plan, prepare, prepare_model
from howsmooth.studies.spec import Spec
from howsmooth.studies.store import Store
from howsmooth.studies.worker import run_bundle
from howsmooth.texts.corpora import Corpus


@dataclass
class Progress:
    """Where a run stands; `seconds` are those of one worker, as estimated."""

    total: int
    done: int
    failed: int = 0
    seconds_left: float = 0.0
    seconds_done: float = 0.0


def measure(model: Model, corpus: Corpus | None, spec: Spec, *, step: Step | None = None) -> Iterator[dict[str, Any]]:
    """Measure a model that is in memory, in this process: yield one record per task, as soon as it is computed."""
    return records_of(prepare_model(spec, model, corpus), step=step)


def records_of(
    plan: Plan, kept: Sequence[dict[str, Any]] = (), *, step: Step | None = None
) -> Iterator[dict[str, Any]]:
    """Run a plan in this process and yield its records; those that are among `kept` are not computed again.

    `step(n, layer, head)` is called before each solve. A solve that does not converge is yielded with its status, never
    dropped; one that cannot be made raises.
    """
    known = {record["task"]: record for record in kept if "task" in record}
    if known:
        yield from (known[task] for task in plan.tasks() if task in known)
    for bundle in plan.bundles(lambda tasks: known.keys() & set(tasks)):
        for rows in run_bundle(bundle, step, plan.model):
            for row in rows:
                if row.record is None:
                    raise InputError(row.error or "a task failed")
                yield row.record


def run_study(
    study: Spec | Plan,
    store: str | Path | Store,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda line: None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> dict[str, int]:
    """Measure what the store does not hold yet; return its counts at the end.

    Stop it in any way at any time: what was finished is in the store, and the next run goes on from there. Models that
    bring code along are refused unless `trust_remote_code` (for pickled weights `allow_pickle`) is said here, too.
    """
    plan = (
        prepare(study, note, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
        if isinstance(study, Spec)
        else study
    )
    if not isinstance(store, Store):
        with Store.write(store) as opened:
            if opened.recovered:
                note(opened.recovered)
            return run_study(plan, opened, progress=progress, note=note)
    store.plan(plan.spec.model_dump(mode="json"), plan.tasks())
    counts = store.counts()
    state = Progress(total=counts["planned"], done=counts["done"])
    shares: dict[str, float] = {}  # seconds expected of the tasks under way, none of those before or after
    if counts["done"] < counts["planned"]:
        state.seconds_left = sum(bundle.cost for bundle in plan.bundles(store.done))
        progress(state)

        def watched() -> Iterator[Any]:
            for bundle in plan.bundles(store.done):
                tasks = bundle.tasks
                shares.update(dict.fromkeys(tasks, bundle.cost / len(tasks)))
                yield bundle

        rows_of_engine = engine_of(plan)(watched(), work_of(plan))
        try:
            for rows in rows_of_engine:
                state.done += store.add(rows)
                for task, record, _ in rows:
                    share = shares.pop(task, 0.0)
                    state.failed += record is None
                    state.seconds_done += share
                    state.seconds_left -= share
                progress(state)
        finally:
            rows_of_engine.close()
    return store.counts()


def work_of(plan: Any) -> Callable[[Any], Iterator[list[Any]]]:
    """Return what an engine does with a bundle: what the plan says itself, or the worker on a model in memory."""
    if hasattr(plan, "work"):
        return plan.work
    return run_bundle if plan.model is None else partial(run_bundle, model=plan.model)


def engine_of(plan: Plan) -> Callable[..., Generator[list, None, None]]:
    """Return the engine that the spec names, as a function of bundles and work."""
    spec = plan.spec.engine
    if spec.kind == "ray":
        from howsmooth.studies.engines.ray_engine import ray_engine

        return lambda bundles, work: ray_engine(
            bundles, work, address=spec.address, cpus=spec.cpus, gpus=spec.gpus, retries=spec.retries
        )
    from howsmooth.studies.engines.local import in_this_process, local_engine

    workers, threads = plan.split()
    if not workers:
        return in_this_process
    return lambda bundles, work: local_engine(bundles, work, workers=workers, threads=threads, retries=spec.retries)
