"""The worker: it takes a bundle of places and yields their results. Every engine runs the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from howsmooth.errors import InputError, first_line, is_out_of_memory
from howsmooth.questions import find_question
from howsmooth.questions.question import Place, Question
from howsmooth.questions.work import Bundle, Work, grouped
from howsmooth.records import make_record

if TYPE_CHECKING:
    from howsmooth.models.model import Model

ProgressCallback = Callable[[dict[str, Any]], None]  # called with the coordinates of a place before it is computed


class TaskResult(NamedTuple):
    """The result at one place: its record, or the error message if there is none.

    Attributes:
        task: Key of the place.
        record: The record; None if it failed.
        error: Why it failed; None if it did not.
    """

    task: str
    record: dict[str, Any] | None
    error: str | None = None


def run_bundle(bundle: Bundle, model: Model | None = None, second: Model | None = None) -> Iterator[list[TaskResult]]:
    """Compute the places of a bundle and yield the results of one call of `answer` after another.

    An exception becomes the error message of the place at which it was raised; the other places are still computed.

    Args:
        bundle: The places.
        model: Used instead of loading the model that the bundle names.
        second: Used instead of loading the model that it is compared with.
    """
    together = find_question(bundle.question).batches is not None
    for places, results in _calls(bundle, None, model, second):
        found: list[TaskResult] = []
        try:
            for place, record in results:
                places.remove(place)
                if record["task"] is None:  # of an interrupted run, which does not answer its place
                    continue
                found.append(TaskResult(place.key, record))
                if not together:
                    yield [found.pop()]
        except Exception as error:
            found += [TaskResult(place.key, None, error_message(error, bundle)) for place in places]
        if found:
            yield found


def records_of_bundle(
    bundle: Bundle, progress: ProgressCallback | None = None, model: Model | None = None, second: Model | None = None
) -> Iterator[dict[str, Any]]:
    """Compute the places of a bundle and yield their records; the first error is raised.

    Raises:
        InputError: A place has no answer, or memory does not suffice.
    """
    for _, results in _calls(bundle, progress, model, second):
        try:
            for _, record in results:
                yield record
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise InputError(error_message(error, bundle)) from None
            raise


def _calls(
    bundle: Bundle, progress: ProgressCallback | None, model: Model | None, second: Model | None
) -> Iterator[tuple[list[Place], Iterator[tuple[Place, dict[str, Any]]]]]:
    """Yield the places of each call of `answer`, with an iterator over their records."""
    question = find_question(bundle.question)
    if model is None and bundle.samples is not None:
        from howsmooth.models.loading import cached_model  # transformers takes seconds, and not all have a model

        model = cached_model(bundle.samples.load_arguments, bundle.samples.identity)
    work = Work(bundle, model, progress, second)
    for places in _batches(question, work):
        if progress is not None:
            progress({**({} if bundle.samples is None else {"n": work.n}), **places[0].at})
        yield list(places), _records(question, work, places)


def _batches(question: Question, work: Work) -> list[list[Place]]:
    if question.batches is not None:
        return list(question.batches(work))
    return grouped(work.bundle.places, question.together)


def _records(question: Question, work: Work, places: list[Place]) -> Iterator[tuple[Place, dict[str, Any]]]:
    kind = question.records[0].kind_name
    for place, fields in question.answer(work, places):
        yield place, make_record(fields.pop("kind", kind), {**fields, "task": fields.get("task", place.key)})


def error_message(error: Exception, bundle: Bundle) -> str:
    """Return an exception as one line."""
    if is_out_of_memory(error):
        where = "" if bundle.samples is None else f" at n = {bundle.samples.n}"
        return f"out of memory{where} ({first_line(error)[:120]}); set max_memory, use fewer workers or shorter lengths"
    return first_line(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"
