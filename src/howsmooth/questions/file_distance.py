"""How far apart are two measures from files, and the measures that attention maps them to?"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, model_validator

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.distance import Exponents, compare
from howsmooth.questions.fields import Indices, option, shorten
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import ModelChoice, Spec, load_arguments, select_indices
from howsmooth.records.schema import Count, Length, Record

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.questions.work import Work
    from howsmooth.transport.measures import TokenMeasure

SUFFIXES = (".npz", ".safetensors", ".csv")  # as howsmooth.transport.files, which imports torch; a test compares them


def _parse_files(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(path, str) for path in value):
        raise ValueError(f"expected two files of measures, got {shorten(value)}")
    for path in value:
        if not path.endswith(SUFFIXES):
            raise ValueError(f"expected files that end in {', '.join(SUFFIXES)}, got {path}; rename it")
    return tuple(value)


class FileDistanceSpec(Spec):
    """Which two measures, in which distances, and a model whose attention maps them."""

    options: ClassVar[tuple[str, ...]] = ("files", "normalise", "p", "layers")
    argument: ClassVar[str | None] = "model"
    varied: ClassVar[tuple[str, ...]] = ("p", "layers")
    unhashed: ClassVar[tuple[str, ...]] = (*Spec.unhashed, "files", "model")  # of their contents instead

    question: str = "file-distance"
    files: Annotated[
        tuple[str, str] | None, BeforeValidator(_parse_files), option("Files of two measures.", metavar="FILE FILE")
    ] = None
    normalise: Annotated[bool, option("Divide the weights in --files by their sum.")] = False
    p: Exponents = (1.0, 2.0, math.inf)
    model: Annotated[ModelChoice | None, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)] = None
    layers: Annotated[Indices, option("Which layers: those of MODEL.", metavar="0,6|all")] = "all"

    @model_validator(mode="after")
    def _check_files(self) -> FileDistanceSpec:
        if self.files is None:
            raise ValueError("expected files of two measures, got none; give both as files (--files FILE FILE)")
        return self

    @property
    def chosen_models(self) -> tuple[ModelChoice, ...]:
        """The model, if there is one."""
        return () if self.model is None else (self.model,)

    @property
    def paths(self) -> tuple[str, ...]:
        """The two files, relative to the study file."""
        return tuple(self.path(name) for name in self.files or ())

    def input_files(self) -> dict[str, str | None]:
        """Return the two files, by option."""
        return dict(zip(("--files", "--files "), self.paths, strict=True))


class FileDistanceRecord(Record, kind="file distance"):
    """The distance between two measures, and between their images under a layer."""

    model: str | None
    layer: Count | None
    n: Length
    m: Length
    files: list[str]
    distance: str
    p: float | str  # inf as a text
    before: dict[str, Any]
    after: dict[str, Any] | None
    quotient: float | None
    status: str


def check(spec: FileDistanceSpec) -> None:
    """Check the files, the model and its layers, as far as this needs neither torch nor the weights."""
    from howsmooth.models.files import check_tokenizer, read_model_files

    for path in spec.paths:
        if not os.path.isfile(path):
            raise InputError(f"expected --files that exist, got {path}; check the path")
    for choice in spec.chosen_models:
        if choice.tokenizer is not None:
            check_tokenizer(spec.path(choice.tokenizer))
        random = "random:" if choice.weights == "random" else ""
        files = read_model_files(random + spec.path(choice.name), choice.revision)
        if files is not None and files.layers is not None:
            select_indices(spec.layers, tuple(range(files.layers)), f"layers of {choice.name}")


def grid(spec: FileDistanceSpec) -> Iterator[dict[str, Any]]:
    """Yield each exponent at each layer, or without a layer, with what identifies the files and the model."""
    from howsmooth.models.identity import model_identity

    check(spec)
    inputs: dict[str, Any] = {"files": [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in spec.paths]}
    layers: tuple[int | None, ...] = (None,)
    model = _model(spec)
    if model is not None:
        layers = select_indices(spec.layers, model.layer_numbers, f"layers of {model.name}")
        inputs |= {"model": model_identity(model), "dtype": str(model.dtype), "device": str(model.device)}
    for layer in layers:
        for p in spec.p:
            yield {"layer": layer, "p": "inf" if p == math.inf else p, "inputs": inputs}


def _model(spec: FileDistanceSpec) -> Model | None:
    from howsmooth.models.loading import cached_model

    return None if spec.model is None else cached_model(load_arguments(spec, spec.model))


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute the distances at one layer, or of the measures alone."""
    from howsmooth.transport.files import read_measure
    from howsmooth.transport.measures import TimedMeasure

    spec, layer = work.spec, places[0].at["layer"]
    pair = [read_measure(path, normalise=spec.normalise) for path in spec.paths]
    first, second = pair
    if isinstance(first, TimedMeasure) != isinstance(second, TimedMeasure):
        raise InputError(
            f"expected times in both or in neither, got {type(first).__name__} from {spec.files[0]} and "
            f"{type(second).__name__} from {spec.files[1]}"
        )
    fields = {"model": None, "layer": layer, "n": first.n, "m": second.n, "files": list(spec.files), **work.fields}
    images, model = None, _model(spec)
    if model is not None:
        fields |= {"model": model.name, "source": dict(model.source)}
        pair = [measure.with_points(measure.points.to(model.device, model.dtype)) for measure in pair]
        images = _images(model, layer, pair)
    for place in places:
        yield place, {**fields, **compare(pair, images, float(place.at["p"]))}


def _images(model: Model, layer: int, pair: Sequence[TokenMeasure]) -> list[TokenMeasure]:
    """Return the measures that the attention of a layer maps a pair to."""
    from howsmooth.attention.fields.softmax import SoftmaxField
    from howsmooth.attention.heads import SelfAttention
    from howsmooth.transport.measures import push_forward

    f = model.attention(layer)
    if not isinstance(f, SelfAttention):
        raise InputError(f"expected a model whose attention is known by its weights, got {model.name}; use texts")
    if f.rotary is not None:
        raise InputError(
            f"expected a model whose attention has no positions, got {model.name} with rotary positions; use texts "
            "(the question distance) for models with rotary positions"
        )
    return [push_forward(SoftmaxField(f), measure) for measure in pair]


QUESTION = Question(
    spec=FileDistanceSpec,
    records=(FileDistanceRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:distance_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:distance_picture"),
    about="Compute the exact Wasserstein distance between two measures from files: .npz, .safetensors or .csv with "
    "points and, optionally, weights and times. With MODEL (a name, a folder or a file), also the distance between "
    "their images under each layer of attention.",
    noun="distance",
    grid=grid,
    together=("layer",),
    check=check,
)
