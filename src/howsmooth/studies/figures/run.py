"""Computing the numbers of a figure: its studies, one model at a time, with what the user chose instead.

A model that cannot be loaded is listed with the reason, and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from howsmooth.errors import InputError
from howsmooth.models.loading import cached_model
from howsmooth.questions.spec import ModelChoice, ModelSpec, TextChoice, load_arguments
from howsmooth.studies.figures.definition import Figure
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import Progress, run_study
from howsmooth.studies.store import Store
from howsmooth.texts.corpora import read_corpus

FALLBACK_TOKENIZER = "minilm"  # cuts the text for random weights whose own tokenizer is not available
EMBEDDED_SAMPLES = 3  # the embedded text is short
QUICK_NUM_LENGTHS, QUICK_MAX_LENGTH, QUICK_SAMPLES = 4, 32, 2
NUM_BOUND_LENGTHS = 5  # bounds are smooth in n: a few lengths suffice to draw them
MAX_LAYERS_ALL = 6  # of a model that the user names, all layers are measured if there are at most so many


@dataclass(frozen=True)
class Missing:
    """Panels that could not be computed.

    Attributes:
        model: The model.
        layers: Its layers; empty for all.
        text: The text.
        reason: Why they could not be computed.
    """

    model: str
    layers: tuple[int, ...]
    text: str | None
    reason: str


@dataclass
class Outcome:
    """The numbers of a figure.

    Attributes:
        figure: The figure.
        records: Measurements.
        bounds: Bounds.
        missing: Panels that could not be computed.
        notes: Remarks for the reader.
    """

    figure: Figure
    records: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_note(self, line: str) -> None:
        """Add a remark, once."""
        if line not in self.notes:
            self.notes.append(line)

    def add_records(self, store: Store, label: str) -> None:
        """Add the records of a store's present plan that are not here yet, and remarks about failures.

        Args:
            store: The store.
            label: Name of the model, which may have been read from a file.
        """
        known = {record["task"] for record in (*self.records, *self.bounds)}
        for record in store.records():
            if record["task"] not in known:
                (self.bounds if record["quantity"] == "bound" else self.records).append({**record, "model": label})
        for reason in dict.fromkeys(error for _, error, _ in store.failures()):
            self.add_note(f"some tasks failed: {reason}")


def run_figure(
    figure: Figure,
    store: Store,
    given: Mapping[str, Any] | None = None,
    *,
    quick: bool = False,
    gpt2_attention: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    log: Callable[[str], None] | None = None,
) -> Outcome:
    """Compute the numbers of a figure that the store does not have yet.

    Args:
        figure: The figure.
        store: A store that is open for writing.
        given: Fields of specs that replace those of the figure: models, layers, lengths, samples, tol, engine.
        quick: Take few short lengths and two samples.
        gpt2_attention: A file with GPT-2's attention layers, in its place on tokens without a text.
        progress: Called with a `Progress` whenever tasks have finished.
        log: Called with a line for each model.

    Returns:
        The numbers. A model that cannot be loaded is listed as missing, and never replaced by another.
    """
    given, outcome = given or {}, Outcome(figure)
    # The studies of a figure differ in models and grids; models that the user names are measured on the first grid.
    for study in figure.studies[:1] if "models" in given else figure.studies:
        for spec in _one_by_one(_with_choices(study, given, quick, outcome), given):
            label = spec.models[0].label
            if log is not None:
                log(f"{figure.name}: {label}")
            try:
                fitted = _fitted(spec, given, gpt2_attention, outcome)
                plans = [prepare(fitted)]
                if figure.bounds:
                    lengths = thinned(fitted.lengths, NUM_BOUND_LENGTHS)
                    bounds = fitted.asking("configuration", construction="ball", samples=1, lengths=lengths)
                    plans.append(prepare(bounds.model_copy(update={"engine": _in_this_process(spec)})))
            except InputError as error:
                outcome.missing += [
                    Missing(label, _layers(spec), text, str(error))
                    for text in ([t.name or t.source for t in spec.texts] if _reads_text(spec) else [spec.label])
                ]
                continue
            for plan in plans:
                run_study(plan, store, progress=progress)
                outcome.add_records(store, label)
    return outcome


def _reads_text(spec: ModelSpec) -> bool:
    return spec.inputs == "text"


def _layers(spec: ModelSpec) -> tuple[int, ...]:
    """Return the layers that a spec names; none if they are chosen once the model is loaded."""
    layers = spec.models[0].layers or spec.layers
    return () if isinstance(layers, str) else tuple(layers)


def _in_this_process(spec: ModelSpec) -> Any:
    return spec.engine.model_copy(update={"workers": 0})


def _with_choices(study: Any, given: Mapping[str, Any], quick: bool, outcome: Outcome) -> Any:
    """Return the study with the user's choices, and the embedded text instead of corpora that are not available."""
    lengths, samples = study.lengths, study.samples
    if quick:
        lengths, samples = thinned([n for n in lengths if n <= QUICK_MAX_LENGTH], QUICK_NUM_LENGTHS), QUICK_SAMPLES
    update = {"lengths": lengths, "samples": samples, **given}
    # Starting processes takes longer than a few short tasks.
    if not _reads_text(study) or (quick and "engine" not in given):
        update["engine"] = _in_this_process(study)
    if not _reads_text(study):  # a panel is of one layer, and of one head
        update |= {"heads": study.heads and (0,), "radius": "norm"} if "models" in given else {"layers": study.layers}
        return study.model_copy(update=update)
    texts: list[TextChoice] = []
    for text in study.texts:
        try:
            read_corpus(study.path(text.source), **text.model_dump(exclude={"source"}))
        except InputError as error:
            outcome.add_note(
                f"{text.name or text.source} is not available; the embedded text is used instead, with "
                f"at most {EMBEDDED_SAMPLES} samples ({error})"
            )
            text, update["samples"] = TextChoice(source="embedded"), min(update["samples"], EMBEDDED_SAMPLES)
        if text not in texts:
            texts.append(text)
    return study.model_copy(update={**update, "texts": tuple(texts)})


def _one_by_one(study: Any, given: Mapping[str, Any]) -> Iterator[Any]:
    """Yield one study for each model, so that a model that cannot be loaded does not stop the others."""
    for choice in study.models:
        if _reads_text(study) and {"models", "layers"} & given.keys():  # in place of the model's own
            choice = choice.model_copy(update={"layers": given.get("layers")})
        yield study.model_copy(update={"models": (choice,)})


def _fitted(spec: Any, given: Mapping[str, Any], gpt2_attention: str | None, outcome: Outcome) -> Any:
    """Return the study with what its model decides: file, tokenizer, lengths, and layers of a model of the user's."""
    choice: ModelChoice = spec.models[0]
    if gpt2_attention is not None and choice.label == "gpt2" and not _reads_text(spec):
        choice = choice.model_copy(update={"name": gpt2_attention})
    model = cached_model(load_arguments(spec, choice))
    update: dict[str, Any] = {}
    if _reads_text(spec) and model.tokenizer is None and choice.weights == "random":
        outcome.add_note(
            f"{choice.label}: text is cut by the tokenizer of {FALLBACK_TOKENIZER}, since its own is not "
            "available; random weights are not tied to a vocabulary"
        )
        choice = choice.model_copy(update={"tokenizer": FALLBACK_TOKENIZER})
    if "models" in given and "layers" not in given:
        numbers = model.layer_numbers
        update["layers"] = _spaced(numbers) if _reads_text(spec) else (numbers[0], numbers[len(numbers) // 2])
    lengths = tuple(n for n in spec.lengths if model.positions is None or n <= model.positions) or spec.lengths
    return spec.model_copy(update={**update, "models": (choice,), "lengths": lengths})


def thinned(lengths: Iterable[int], limit: int) -> tuple[int, ...]:
    """Return at most `limit` of the lengths, evenly spaced in log n, the first and the last among them.

    >>> thinned(range(2, 100, 2), 4)
    (2, 8, 26, 98)
    """
    candidates = sorted(set(lengths))
    if len(candidates) <= limit:
        return tuple(candidates)
    growth = candidates[-1] / candidates[0]
    targets = [candidates[0] * growth ** (i / (limit - 1)) for i in range(limit)]
    return tuple(sorted({min(candidates, key=lambda n: abs(n - target)) for target in targets}))


def _spaced(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return all layers of a small model; the first, the last and two between of a deep one."""
    last = len(layers) - 1
    return layers if last < MAX_LAYERS_ALL else tuple(layers[round(i * last / 3)] for i in range(4))
