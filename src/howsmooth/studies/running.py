"""Running a study: bundles to an engine, rows to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howsmooth.studies.config import Study
from howsmooth.studies.planning import Prepared, prepare
from howsmooth.studies.store import Store
from howsmooth.studies.working import run_bundle


@dataclass
class Progress:
    """Where a run stands; `seconds` are those of one worker, as estimated."""

    total: int
    done: int
    failed: int = 0
    seconds_left: float = 0.0
    seconds_done: float = 0.0


def run_study(
    study: Study | Prepared,
    store: str | Path | Store,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda line: None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> dict[str, int]:
    """Measure what the store does not hold yet; its counts at the end.

    Stop it in any way at any time: what was finished is in the store, and the next run goes on from there. Models that
    bring code along are refused unless `trust_remote_code` (for pickled weights `allow_pickle`) is said here, too.
    """
    prepared = prepare(study, note, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle) if isinstance(
        study, Study) else study
    if not isinstance(store, Store):
        with Store.write(store) as opened:
            if opened.recovered:
                note(opened.recovered)
            return run_study(prepared, opened, progress=progress, note=note)
    store.plan(prepared.study.model_dump(mode="json"), prepared.tasks())
    counts = store.counts()
    state = Progress(total=counts["planned"], done=counts["done"])
    shares: dict[str, float] = {}  # seconds expected of the tasks under way, none of those before or after
    if counts["done"] < counts["planned"]:
        state.seconds_left = sum(bundle.cost for bundle in prepared.bundles(store.done))
        progress(state)

        def watched() -> Iterator[Any]:
            for bundle in prepared.bundles(store.done):
                tasks = bundle.tasks
                shares.update(dict.fromkeys(tasks, bundle.cost / len(tasks)))
                yield bundle

        rows_of_engine = engine_of(prepared)(watched(), getattr(prepared, "work", run_bundle))
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


def engine_of(prepared: Prepared) -> Callable[..., Iterator[list]]:
    """The engine that the study names, as a function of bundles and work."""
    spec = prepared.study.engine
    if spec.kind == "ray":
        from howsmooth.studies.engines.ray_engine import ray_engine

        return lambda bundles, work: ray_engine(bundles, work, address=spec.address, cpus=spec.cpus, gpus=spec.gpus,
                                                retries=spec.retries)
    from howsmooth.studies.engines.local import in_this_process, local_engine

    workers, threads = prepared.split()
    if not workers:
        return in_this_process
    return lambda bundles, work: local_engine(bundles, work, workers=workers, threads=threads, retries=spec.retries)
