"""Making a figure's numbers: models that are there are measured, those that are not are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from howsmooth.errors import InputError
from howsmooth.studies.figures.declared import Figure, Made
from howsmooth.studies.figures.made import ADVERSARIAL, BOUNDS, SYNTHETIC, Jobs, Weights, job, weights_of
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import Progress, run_study
from howsmooth.studies.spec import ModelSpec, Spec, TextSpec
from howsmooth.studies.store import Store
from howsmooth.texts.corpora import read_corpus

STAND_IN = "minilm"  # whose tokenizer cuts text for random weights whose own cannot be had
EMBEDDED_SAMPLES = 3  # the embedded text is short
QUICK_LENGTHS, QUICK_LONGEST, QUICK_SAMPLES = 4, 32, 2
BOUND_LENGTHS = 5  # bounds are smooth in n: a few lengths draw the line
MOST_LAYERS = 6  # of a model the user names, all layers are measured up to so many


@dataclass(frozen=True)
class Options:
    """What the user says instead of the figure's file."""

    models: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    lengths: Any = None
    samples: int | None = None
    tol: float | None = None
    gpt2_attention: str | None = None
    workers: int | None = None
    quick: bool = False

    @classmethod
    def of_spec(cls, spec: Spec, said: Collection[str], **others: Any) -> Options:
        """The fields of a spec that were `said`; what was not is the figure's."""
        if "lengths" in said and min(spec.lengths) < 2:
            raise InputError(
                f"expected lengths of at least 2, got {min(spec.lengths)}; one token has nothing to attend to"
            )
        fields = {
            name: getattr(spec, name) for name in ("models", "layers", "lengths", "samples", "tol") if name in said
        }
        if "models" in fields:
            fields["models"] = tuple(model.name for model in spec.models)
        if fields.get("layers") == "all":
            del fields["layers"]
        return cls(**fields, workers=spec.engine.workers, **others)


@dataclass(frozen=True)
class Missing:
    """Panels that could not be made, and why."""

    model: str
    layers: tuple[int, ...]
    text: str | None
    reason: str


@dataclass
class Outcome:
    """A figure's numbers, and what it lacks."""

    figure: Figure
    records: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)

    def take(self, store: Store) -> None:
        known = {record["task"] for record in (*self.records, *self.bounds)}
        for record in store.records():
            if record["task"] not in known:
                (self.bounds if record["quantity"] == "bound" else self.records).append(record)
        for reason in dict.fromkeys(error for _, error, _ in store.failures()):
            self.note(f"some tasks failed: {reason}")


def run_figure(
    figure: Figure,
    store: Store,
    options: Options = Options(),
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Measure what the store does not hold yet of this figure. Nothing that cannot be loaded is replaced."""
    outcome = Outcome(figure)
    # Studies of a figure differ in models and grids; of models that the user names, one grid is asked.
    for study in figure.studies[:1] if options.models else figure.studies:
        for part in _parts(_resolved(study, options, outcome), options):
            _run_part(part, figure, store, options, outcome, progress, note)
    for label, specs in _by_model(_made(figure, options)).items():
        note(f"{figure.name}: {label}")
        _run_made(label, specs, figure, store, options, outcome, progress)
    return outcome


def _resolved(study: Spec, options: Options, outcome: Outcome) -> Spec:
    """The study with the user's options, on the corpora that there are."""
    update: dict[str, Any] = {}
    # Each study starts its own processes, which takes longer than the few short tasks of a quick one.
    workers = 0 if options.workers is None and options.quick else options.workers
    if workers is not None:
        update["engine"] = study.engine.model_copy(update={"workers": workers})
    if options.tol is not None:
        update["tol"] = options.tol
    lengths, samples = study.lengths, study.samples
    if options.quick:
        lengths, samples = _thinned([n for n in lengths if n <= QUICK_LONGEST], QUICK_LENGTHS), QUICK_SAMPLES
    update["lengths"], update["samples"] = options.lengths or lengths, options.samples or samples
    corpora: list[TextSpec] = []
    for corpus in study.texts:
        try:
            read_corpus(study.path(corpus.source), **corpus.model_dump(exclude={"source"}))
        except InputError as error:
            outcome.note(
                f"{corpus.name or corpus.source} is not here, so the embedded text stands in its place, with "
                f"at most {EMBEDDED_SAMPLES} samples ({error})"
            )
            corpus = TextSpec(source="embedded")
            update["samples"] = min(update["samples"], EMBEDDED_SAMPLES)
        if corpus not in corpora:
            corpora.append(corpus)
    return study.model_copy(update={**update, "texts": tuple(corpora)})


def _parts(study: Spec, options: Options) -> Iterator[Spec]:
    """One study for each model, so that one that cannot be had stops no other."""
    specs = study.models
    if options.models:
        specs = tuple(ModelSpec(name=name, layers=options.layers) for name in options.models)
    elif options.layers is not None:
        specs = tuple(spec.model_copy(update={"layers": options.layers}) for spec in specs)
    for spec in specs:
        yield study.model_copy(update={"models": (spec,)})


def _run_part(study: Spec, figure: Figure, store: Store, options: Options, outcome: Outcome, progress, note) -> None:
    (spec,) = study.models
    note(f"{figure.name}: {spec.label}")
    try:
        weights = weights_of(spec.label, _loading(study, spec))
        if weights.model.tokenizer is None and spec.weights == "random":
            outcome.note(
                f"{spec.label}: text is cut by the tokenizer of {STAND_IN}, since its own is not here; random "
                "weights know no vocabulary"
            )
            spec = spec.model_copy(update={"tokenizer": STAND_IN})
        if options.models and options.layers is None:
            spec = spec.model_copy(update={"layers": _spread(weights.model.layers)})
        fitting = tuple(n for n in study.lengths if n <= weights.model.positions)
        prepared = prepare(study.model_copy(update={"models": (spec,), "lengths": fitting or study.lengths}))
    except InputError as error:
        layers = spec.layers or study.layers
        for text in study.texts:
            outcome.missing.append(
                Missing(spec.label, () if layers == "all" else tuple(layers), text.name or text.source, str(error))
            )
        return
    run_study(prepared, store, progress=progress)
    outcome.take(store)
    if figure.bounds:
        solver = {"tol": study.tol, "confidence": study.confidence, "seed": study.seed}
        jobs = [
            job(
                weights,
                "bounds",
                BOUNDS,
                layer=layer,
                head=None,
                n=n,
                radius=weights.radius(layer),
                text="norm",
                solver=solver,
            )
            for layer in prepared.subjects[0].layers
            for n in _thinned(prepared.spec.lengths, BOUND_LENGTHS)
        ]
        run_study(Jobs(figure.name, tuple(jobs)), store, progress=progress)
        outcome.take(store)


def _loading(study: Spec, spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": ("random:" if spec.weights == "random" else "") + study.path(spec.name),
        "causal": spec.causal,
        "seed": study.seed if spec.seed is None else spec.seed,
        "revision": spec.revision,
    }


def _made(figure: Figure, options: Options) -> list[Made]:
    """The made inputs with the user's options; of a model the user names, head 0 of the first and the middle layer."""
    found = list(figure.made)
    if options.models and found:
        first = found[0]
        found = [
            first.model_copy(update={"model": ModelSpec(name=name), "layer": layer, "head": 0, "radius": "norm"})
            for name in options.models
            for layer in options.layers or (0, -1)
        ]  # −1: the middle one, once it is known
    for i, spec in enumerate(found):
        lengths, samples = options.lengths or spec.lengths, spec.samples
        if options.quick:
            lengths = _thinned([n for n in lengths if n <= QUICK_LONGEST], QUICK_LENGTHS)
        if samples > 1:
            samples = options.samples or (QUICK_SAMPLES if options.quick else samples)
        found[i] = spec.model_copy(update={"lengths": tuple(lengths), "samples": samples})
    return found


def _by_model(made: list[Made]) -> dict[str, list[Made]]:
    grouped: dict[str, list[Made]] = {}
    for spec in made:
        grouped.setdefault(spec.model.label, []).append(spec)
    return grouped


def _run_made(
    label: str, specs: list[Made], figure: Figure, store: Store, options: Options, outcome: Outcome, progress
) -> None:
    spec, jobs = specs[0].model, []
    source: dict[str, Any] = {"name": label.removesuffix(" (masked)"), "causal": spec.causal, "seed": spec.seed or 0}
    if label == "gpt2" and options.gpt2_attention:
        source = {"file": options.gpt2_attention}
    try:
        weights = weights_of(label, source)
    except InputError as error:
        outcome.missing += [Missing(label, (made.layer,), _made_text(made), str(error)) for made in specs]
        return
    for made in specs:
        try:
            if made.layer == -1:
                made = made.model_copy(update={"layer": weights.model.layer_numbers[weights.model.layers // 2]})
            jobs += _jobs_of(weights, made, figure, options)
        except InputError as error:
            outcome.missing.append(Missing(label, (made.layer,), _made_text(made), str(error)))
    if jobs:
        run_study(Jobs(figure.name, tuple(jobs)), store, progress=progress)
        outcome.take(store)


def _jobs_of(weights: Weights, made: Made, figure: Figure, options: Options) -> list:
    R = weights.radius(made.layer) if made.radius == "norm" else made.radius
    adversarial = made.inputs == "adversarial"
    what, head = (ADVERSARIAL, made.head) if adversarial else (SYNTHETIC, None)
    f = weights.model.attention(made.layer, max(made.lengths))
    if adversarial:  # refused here, once, rather than at every length
        from howsmooth.attack.configurations import castin

        castin(f, 2, R, head=head)
    solver = {"tol": options.tol or 1e-3, "confidence": 0.999, "seed": made.model.seed or 0}
    where = dict(layer=made.layer, head=head, radius=R, text=_made_text(made), solver=solver)
    jobs = [
        job(weights, made.inputs, what, n=n, sample=sample, **where)
        for n in made.lengths
        for sample in range(made.samples)
    ]
    if figure.bounds:
        jobs += [job(weights, "bounds", BOUNDS, n=n, **where) for n in _thinned(made.lengths, BOUND_LENGTHS)]
    return jobs


def _made_text(made: Made) -> str:
    if made.inputs == "synthetic":
        return "synthetic"
    return "adversarial" if made.radius == "norm" else f"adversarial, R = {made.radius:g}"


def _thinned(items, limit: int) -> tuple[int, ...]:
    """At most so many of the lengths, the first and the last among them, evenly in log n.

    >>> _thinned(range(2, 100, 2), 4)
    (2, 8, 26, 98)
    """
    items = sorted(set(items))
    if len(items) <= limit:
        return tuple(items)
    wanted = [items[0] * (items[-1] / items[0]) ** (i / (limit - 1)) for i in range(limit)]
    return tuple(sorted({min(items, key=lambda n: abs(n - w)) for w in wanted}))


def _spread(layers: int) -> tuple[int, ...]:
    """All layers of a small model, the first, the last and two between of a deep one."""
    return tuple(range(layers)) if layers <= MOST_LAYERS else tuple(round(i * (layers - 1) / 3) for i in range(4))
