"""Computing the numbers of a figure. Models that cannot be loaded are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from howsmooth.attack.configurations import castin
from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.questions.measure import MeasureSpec
from howsmooth.questions.spec import ModelChoice, TextChoice, select_indices
from howsmooth.spectral.solver import Solver
from howsmooth.studies.figures.definition import Figure, GeneratedInput, Options
from howsmooth.studies.figures.generated_inputs import (
    ADVERSARIAL,
    BOUNDS,
    SYNTHETIC,
    Job,
    LabelledModel,
    Request,
    run_job,
)
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import Progress, run_study
from howsmooth.studies.store import Store
from howsmooth.texts.corpora import read_corpus

FALLBACK_TOKENIZER = "minilm"  # cuts the text for random weights whose own tokenizer is not available
EMBEDDED_SAMPLES = 3  # the embedded text is short
QUICK_NUM_LENGTHS, QUICK_MAX_LENGTH, QUICK_SAMPLES = 4, 32, 2
NUM_BOUND_LENGTHS = 5  # bounds are smooth in n: a few lengths suffice to draw them
MAX_LAYERS_ALL = 6  # of a model that the user names, all layers are measured if there are at most so many
MIDDLE_LAYER = -(2**31)  # no layer has this number; replaced by the middle layer once the model is loaded


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

    def add_records(self, store: Store) -> None:
        """Add the records of a store's present plan that are not here yet, and remarks about failures."""
        known = {record["task"] for record in (*self.records, *self.bounds)}
        for record in store.records():
            if record["task"] not in known:
                (self.bounds if record["quantity"] == "bound" else self.records).append(record)
        for reason in dict.fromkeys(error for _, error, _ in store.failures()):
            self.add_note(f"some tasks failed: {reason}")


def run_figure(
    figure: Figure,
    store: Store,
    options: Options | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
    log: Callable[[str], None] | None = None,
) -> Outcome:
    """Compute the numbers of a figure that the store does not have yet.

    Args:
        figure: The figure.
        store: A store that is open for writing.
        options: Values that replace those of the figure's file.
        progress: Called with a `Progress` whenever tasks have finished.
        log: Called with a line for each model.

    Returns:
        The numbers. A model that cannot be loaded is listed as missing, and never replaced by another.
    """
    options, outcome = options or Options(), Outcome(figure)
    run = _FigureRun(figure, store, options, outcome, progress, log or (lambda line: None))
    # The studies of a figure differ in models and grids; models that the user names are measured on the first grid.
    for study in figure.studies[:1] if options.models else figure.studies:
        for part in _split_by_model(_resolve_study(study, options, outcome), options):
            run.measure_texts(part)
    for label, inputs in _group_by_model(_resolve_generated(figure, options)).items():
        run.measure_generated(label, inputs)
    return outcome


@dataclass(frozen=True, eq=False)
class _FigureRun:
    """What the parts of a figure's computation share."""

    figure: Figure
    store: Store
    options: Options
    outcome: Outcome
    progress: Callable[[Progress], None] | None
    log: Callable[[str], None]

    def measure_texts(self, study: MeasureSpec) -> None:
        """Run a study of one model, and compute bounds for its layers."""
        (model_spec,) = study.models
        self.log(f"{self.figure.name}: {model_spec.label}")
        try:
            labelled = LabelledModel.load(study, model_spec)
            if labelled.model.tokenizer is None and model_spec.weights == "random":
                self.outcome.add_note(
                    f"{model_spec.label}: text is cut by the tokenizer of {FALLBACK_TOKENIZER}, since its own is not "
                    "available; random weights are not tied to a vocabulary"
                )
                model_spec = model_spec.model_copy(update={"tokenizer": FALLBACK_TOKENIZER})
            if self.options.models and self.options.layers is None:
                model_spec = model_spec.model_copy(update={"layers": _spaced_layers(labelled.model.layers)})
            positions = labelled.model.positions
            fitting = tuple(n for n in study.lengths if positions is None or n <= positions)
            plan = prepare(study.model_copy(update={"models": (model_spec,), "lengths": fitting or study.lengths}))
        except InputError as error:
            layers = model_spec.layers or study.layers
            for text in study.texts:
                self.outcome.missing.append(
                    Missing(
                        model_spec.label,
                        () if isinstance(layers, str) else tuple(layers),
                        text.name or text.source,
                        str(error),
                    )
                )
            return
        run_study(plan, self.store, progress=self.progress)
        self.outcome.add_records(self.store)
        if self.figure.bounds:
            solver = study.spectral_solver
            self._run_jobs(
                [
                    Job(labelled, "bounds", BOUNDS, layer, None, n, labelled.radius(layer), "norm", solver)
                    for layer in plan.planned_models[0].layers
                    if layer is not None
                    for n in _thinned(plan.spec.lengths, NUM_BOUND_LENGTHS)
                ]
            )

    def measure_generated(self, label: str, inputs: list[GeneratedInput]) -> None:
        """Run the jobs of the generated inputs of one model."""
        self.log(f"{self.figure.name}: {label}")
        choice, jobs = inputs[0].model, []
        try:
            file = self.options.gpt2_attention if label == "gpt2" else None
            labelled = LabelledModel.load(MeasureSpec(), choice, file)
        except InputError as error:
            for one in inputs:
                layers = () if one.layer == MIDDLE_LAYER else (one.layer,)
                self.outcome.missing.append(Missing(label, layers, _text_label(one), str(error)))
            return
        for one in inputs:
            try:
                available = labelled.model.layer_numbers
                chosen = available[len(available) // 2] if one.layer == MIDDLE_LAYER else one.layer
                (layer,) = select_indices((chosen,), available, f"layers of {labelled.label}")
                one = one.model_copy(update={"layer": layer})
                jobs += _jobs_of(labelled, one, self.options, bounds=self.figure.bounds)
            except InputError as error:
                self.outcome.missing.append(Missing(label, (one.layer,), _text_label(one), str(error)))
        self._run_jobs(jobs)

    def _run_jobs(self, jobs: list[Job]) -> None:
        """Compute the jobs that have no records, in this process: they are small, and the model is loaded already."""
        tasks = [task for job in jobs for task in job.tasks.values()]
        self.store.plan({"made": self.figure.name}, tasks)
        done = self.store.done(tasks)
        state = Progress(len(tasks), len(done), seconds_left=len(tasks) - len(done))  # of equal length
        for result in (result for job in jobs for result in run_job(job, done)):
            state.done += self.store.add([result])
            state.failed += result.record is None
            state.seconds_done, state.seconds_left = state.seconds_done + 1, state.seconds_left - 1
            if self.progress is not None:
                self.progress(state)
        self.outcome.add_records(self.store)


def _resolve_study(study: MeasureSpec, options: Options, outcome: Outcome) -> MeasureSpec:
    """Return the study with the user's options, and the embedded text instead of corpora that are not available."""
    update: dict[str, Any] = {}
    # Starting processes takes longer than the few short tasks of a quick study.
    workers = 0 if options.workers is None and options.quick else options.workers
    if workers is not None:
        update["engine"] = study.engine.model_copy(update={"workers": workers})
    if options.tol is not None:
        update["tol"] = options.tol
    lengths, samples = study.lengths, study.samples
    if options.quick:
        lengths, samples = _thinned([n for n in lengths if n <= QUICK_MAX_LENGTH], QUICK_NUM_LENGTHS), QUICK_SAMPLES
    update["lengths"], update["samples"] = options.lengths or lengths, options.samples or samples
    corpora: list[TextChoice] = []
    for corpus in study.texts:
        try:
            read_corpus(study.path(corpus.source), **corpus.model_dump(exclude={"source"}))
        except InputError as error:
            outcome.add_note(
                f"{corpus.name or corpus.source} is not available; the embedded text is used instead, with "
                f"at most {EMBEDDED_SAMPLES} samples ({error})"
            )
            corpus = TextChoice(source="embedded")
            update["samples"] = min(update["samples"], EMBEDDED_SAMPLES)
        if corpus not in corpora:
            corpora.append(corpus)
    return study.model_copy(update={**update, "texts": tuple(corpora)})


def _split_by_model(study: MeasureSpec, options: Options) -> Iterator[MeasureSpec]:
    """Yield one study for each model, so that a model that cannot be loaded does not stop the others."""
    models = study.models
    if options.models:
        models = tuple(ModelChoice(name=name, layers=options.layers) for name in options.models)
    elif options.layers is not None:
        models = tuple(model.model_copy(update={"layers": options.layers}) for model in models)
    for model in models:
        yield study.model_copy(update={"models": (model,)})


def _resolve_generated(figure: Figure, options: Options) -> list[GeneratedInput]:
    """Return the generated inputs with the user's options.

    Of a model that the user names, they are for head 0 of the first and the middle layer.
    """
    inputs = list(figure.generated)
    if options.models and inputs:
        inputs = [
            inputs[0].model_copy(update={"model": ModelChoice(name=name), "layer": layer, "head": 0, "radius": "norm"})
            for name in options.models
            for layer in options.layers or (0, MIDDLE_LAYER)
        ]
    resolved = []
    for one in inputs:
        lengths, samples = options.lengths or one.lengths, one.samples
        if options.quick:
            lengths = _thinned([n for n in lengths if n <= QUICK_MAX_LENGTH], QUICK_NUM_LENGTHS)
        if samples > 1:
            samples = options.samples or (QUICK_SAMPLES if options.quick else samples)
        resolved.append(one.model_copy(update={"lengths": tuple(lengths), "samples": samples}))
    return resolved


def _group_by_model(inputs: list[GeneratedInput]) -> dict[str, list[GeneratedInput]]:
    groups: dict[str, list[GeneratedInput]] = {}
    for one in inputs:
        groups.setdefault(one.model.label, []).append(one)
    return groups


def _jobs_of(labelled: LabelledModel, generated: GeneratedInput, options: Options, *, bounds: bool) -> list[Job]:
    """Return the jobs of one generated input, with bounds if the figure has them."""
    layer, adversarial = generated.layer, generated.inputs == "adversarial"
    R = labelled.radius(layer) if generated.radius == "norm" else generated.radius
    requests, head = (ADVERSARIAL, generated.head) if adversarial else (SYNTHETIC, None)
    attention = labelled.model.attention(layer, max(generated.lengths))
    if adversarial:  # raise once, here, rather than at every length
        if not isinstance(attention, SelfAttention):
            raise InputError(f"expected a model whose attention is known by its weights, got {labelled.label}")
        castin(attention, 2, R, head=head, sign=1)
    solver = Solver(tol=options.tol or 1e-3, seed=generated.model.seed or 0)
    text = _text_label(generated)

    def job(kind: str, requests: tuple[Request, ...], n: int, sample: int = 0) -> Job:
        return Job(labelled, kind, requests, layer, head, n, R, text, solver, sample)

    jobs = [
        job(generated.inputs, requests, n, sample) for n in generated.lengths for sample in range(generated.samples)
    ]
    if bounds:
        jobs += [job("bounds", BOUNDS, n) for n in _thinned(generated.lengths, NUM_BOUND_LENGTHS)]
    return jobs


def _text_label(generated: GeneratedInput) -> str:
    """Return the field `text` of the records of a generated input."""
    if generated.inputs == "synthetic":
        return "synthetic"
    return "adversarial" if generated.radius == "norm" else f"adversarial, R = {generated.radius:g}"


def _thinned(lengths: Iterable[int], limit: int) -> tuple[int, ...]:
    """Return at most `limit` of the lengths, evenly spaced in log n, the first and the last among them.

    >>> _thinned(range(2, 100, 2), 4)
    (2, 8, 26, 98)
    """
    candidates = sorted(set(lengths))
    if len(candidates) <= limit:
        return tuple(candidates)
    growth = candidates[-1] / candidates[0]
    targets = [candidates[0] * growth ** (i / (limit - 1)) for i in range(limit)]
    return tuple(sorted({min(candidates, key=lambda n: abs(n - target)) for target in targets}))


def _spaced_layers(layers: int) -> tuple[int, ...]:
    """Return all layers of a small model; the first, the last and two between of a deep one."""
    return tuple(range(layers)) if layers <= MAX_LAYERS_ALL else tuple(round(i * (layers - 1) / 3) for i in range(4))
