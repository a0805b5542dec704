"""Running a plan: an engine computes its bundles, and the results go to a store or to the caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.questions.spec import Spec, refuse_connection
from howsmooth.studies.plan import Plan, prepare, prepare_model
from howsmooth.studies.store import Store, description_of
from howsmooth.studies.worker import ProgressCallback, records_of_bundle, run_bundle

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models.model import Model


@dataclass
class Progress:
    """Progress of a study.

    Attributes:
        total: Number of tasks.
        done: Tasks that have a record.
        failed: Tasks that failed in this run.
        seconds_left: Estimated time of the remaining tasks on one worker.
        seconds_done: The estimate for the tasks that this run has finished.
    """

    total: int
    done: int
    failed: int = 0
    seconds_left: float = 0.0
    seconds_done: float = 0.0


def measure(
    model: Model, corpus: Corpus | None, spec: Spec, *, progress: ProgressCallback | None = None
) -> Iterator[dict[str, Any]]:
    """Measure a model that is in memory, in this process.

    Args:
        model: The model.
        corpus: The text; None with random tokens (`spec.inputs` is "normalised").
        spec: What to measure.
        progress: Called with the coordinates of places before they are computed.

    Returns:
        An iterator over the records, one per task, each as soon as it is computed.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> spec = spec_of({"layers": [0], "lengths": [8], "samples": 1})
        >>> [record["status"] for record in measure(model, text, spec)]
        ['converged']
    """
    return records_of(prepare_model(spec, model, corpus), progress=progress)


def records_of(
    plan: Plan, kept: Sequence[dict[str, Any]] = (), *, progress: ProgressCallback | None = None, again: bool = False
) -> Iterator[dict[str, Any]]:
    """Run a plan in this process and yield its records.

    Args:
        plan: The plan.
        kept: Records of an earlier run. Those that belong to the plan are yielded first and not computed again, except
            those with a `failure`, for its error.
        progress: Called with the coordinates of places before they are computed.
        again: Compute everything, for tensors that records do not contain; records that are known are not repeated.

    Raises:
        InputError: A task failed. A solve that did not converge is no failure: its record has that status.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> plan = prepare_model(spec_of({"layers": [0], "lengths": [8], "samples": 1}), model, text)
        >>> kept = list(records_of(plan))
        >>> list(records_of(plan, kept)) == kept  # nothing is computed again
        True
    """
    known = {record["task"]: record for record in kept if "task" in record}
    if known:
        yield from (known[task] for task in plan.tasks() if task in known)
    done = set() if again else {task for task, record in known.items() if record.get("failure") is None}
    for bundle in plan.bundles(lambda tasks: done & set(tasks)):
        for record in records_of_bundle(bundle, progress, plan.model, plan.second):
            if record["task"] not in known:
                yield record


def run_study(
    study: Spec | Plan | Sequence[Plan],
    store: str | Path | Store,
    *,
    progress: Callable[[Progress], None] | None = None,
    log: Callable[[str], None] | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    connect: bool = False,
) -> dict[str, int]:
    """Compute the tasks of a study that have no record in the store yet.

    A run may be killed at any time: what was finished is in the store, and the next run continues from there.

    Args:
        study: The study, its plan, or the plans of its questions.
        store: An open store, or the path of one.
        progress: Called with a `Progress` whenever tasks have finished.
        log: Called with lines such as "loading gpt2".
        trust_remote_code: Allow models that run code of their own. The study has to allow it as well.
        allow_pickle: The same for weights that are not safetensors.
        connect: The same for a connection to the Ray cluster that the study names. A plan is not asked again.

    Returns:
        The counts of the store at the end, as `Store.counts`.

    Raises:
        InputError: The study cannot run: a model cannot be loaded, a text is too short, memory does not suffice.

    Example:
        >>> import tempfile
        >>> from howsmooth.studies import spec_of
        >>> study = spec_of({"layers": [0], "lengths": [8], "samples": 2, "engine": {"workers": 0}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_study(study, f"{folder}/study.sqlite")
        {'planned': 2, 'done': 2, 'failed': 0, 'other': 0}
    """
    plans: Sequence[Plan]
    if isinstance(study, Spec):
        refuse_connection(study, connect)
        plans = [prepare(study, log=log, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)]
    else:
        plans = study if isinstance(study, Sequence) else [study]
    if not isinstance(store, Store):
        with Store.write(store) as opened:
            if opened.recovered and log is not None:
                log(opened.recovered)
            return run_study(plans, opened, progress=progress)
    store.plan(description_of([plan.description for plan in plans]), chain.from_iterable(p.tasks() for p in plans))
    counts = store.counts()
    if counts["done"] < counts["planned"]:
        state = Progress(total=counts["planned"], done=counts["done"])
        state.seconds_left = sum(bundle.seconds for plan in plans for bundle in plan.bundles(store.done))
        for plan in plans:
            _run_remaining(plan, store, state, progress)
    return store.counts()


def _run_remaining(plan: Plan, store: Store, state: Progress, progress: Callable[[Progress], None] | None) -> None:
    """Compute the tasks that the store has no record of, and store each result as it arrives."""
    report = progress or (lambda state: None)
    seconds_by_task: dict[str, float] = {}  # of the tasks that are running
    report(state)

    def submitted() -> Iterator[Any]:
        for bundle in plan.bundles(store.done):
            tasks = bundle.tasks
            seconds_by_task.update(dict.fromkeys(tasks, bundle.seconds / len(tasks)))
            yield bundle

    work = run_bundle if plan.model is None else partial(run_bundle, model=plan.model, second=plan.second)
    engine = select_engine(plan)(submitted(), work)
    try:
        for results in engine:
            state.done += store.add(results)
            for task, record, _ in results:
                seconds = seconds_by_task.pop(task, 0.0)
                state.failed += record is None
                state.seconds_done += seconds
                state.seconds_left -= seconds
            report(state)
    finally:
        engine.close()


def select_engine(plan: Plan) -> Callable[..., Generator[list[Any], None, None]]:
    """Return the engine of a plan, as a function of bundles and work."""
    from howsmooth.studies.engines import in_this_process, local_engine, ray_engine

    engine = plan.engine
    if engine.name == "ray":
        return partial(ray_engine, address=engine.address, cpus=engine.cpus, gpus=engine.gpus, retries=engine.retries)
    workers, threads = plan.workers_and_threads()
    if not workers:
        return in_this_process
    return partial(local_engine, workers=workers, threads=threads, retries=engine.retries)
