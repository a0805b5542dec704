"""Definition of a figure: what is measured, how it is drawn, the published lines, and what a user may change."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from howsmooth.errors import InputError, describe_validation_errors
from howsmooth.questions.fields import StrictModel, parse_lengths
from howsmooth.questions.measure import MeasureSpec
from howsmooth.questions.spec import ModelChoice, ModelSpec

FIGURES = ("text", "radius", "adversarial", "norms", "others", "synthetic")


class Published(StrictModel):
    """A line in the authors' plots, as drawn there: constant · n^exponent."""

    model: str
    layer: int
    head: int | None = None
    text: str
    constant: float
    exponent: float
    lengths: tuple[int, int] = (2, 98)


class GeneratedInput(StrictModel):
    """Inputs that come from no text: adversarial ones for a head, or Gaussian noise in the layer's normalisation."""

    inputs: Literal["adversarial", "synthetic"]
    model: ModelChoice
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)] = 0
    radius: float | Literal["norm"] = "norm"
    lengths: Annotated[tuple[Annotated[int, Field(ge=2)], ...], BeforeValidator(parse_lengths), Field(min_length=1)]
    samples: Annotated[int, Field(ge=1)] = 1


class Figure(StrictModel):
    """One figure: studies of texts, generated inputs, or both. In `about`, {texts} are those that were measured."""

    name: str
    title: str
    about: str = ""
    x: Literal["n", "mean_radius"] = "n"
    y: Literal["value", "mean_radius"] = "value"
    sheet: Literal["model", "figure"] = "model"  # one picture for each model, or one for all
    bounds: bool = True
    studies: tuple[MeasureSpec, ...] = ()
    generated: tuple[GeneratedInput, ...] = ()
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Options:
    """Values that replace those of a figure's file.

    Attributes:
        models: Names of models, instead of the figure's.
        layers: Layers of each model.
        lengths: Numbers of tokens.
        samples: Samples of each length.
        tol: Relative width of intervals.
        gpt2_attention: A file with GPT-2's attention layers, for generated inputs.
        workers: Number of processes.
        quick: Take few short lengths and two samples.
    """

    models: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    lengths: Any = None
    samples: int | None = None
    tol: float | None = None
    gpt2_attention: str | None = None
    workers: int | None = None
    quick: bool = False

    @classmethod
    def of_spec(cls, spec: ModelSpec, given: Collection[str], **others: Any) -> Options:
        """Return the fields of a spec that the user has given; the figure's file decides the others.

        Args:
            spec: The spec.
            given: Names of the fields that were given.
            others: Other options.
        """
        if "lengths" in given and min(spec.lengths) < 2:
            raise InputError(
                f"expected lengths of at least 2, got {min(spec.lengths)}; one token has nothing to attend to"
            )
        fields = {
            name: getattr(spec, name) for name in ("models", "layers", "lengths", "samples", "tol") if name in given
        }
        if "models" in fields:
            fields["models"] = tuple(model.label for model in spec.models)
        if fields.get("layers") == "all":
            del fields["layers"]
        return cls(**fields, workers=spec.engine.workers, **others)


def figure_names() -> list[str]:
    """Return the names of all figures, in the order in which they are made.

    Example:
        >>> figure_names()[:2]
        ['text', 'radius']
    """
    return list(FIGURES)


def read_figure(name: str) -> Figure:
    """Return the figure with this name.

    Raises:
        InputError: There is no such figure.

    Example:
        >>> read_figure("text").x
        'n'
    """
    if name not in FIGURES:
        similar = difflib.get_close_matches(name, [*FIGURES, "all"], n=1)
        raise InputError(
            f"expected a figure among {', '.join(FIGURES)} or all, got {name!r}; "
            + (f"did you mean {similar[0]!r}?" if similar else "choose some of them")
        )
    declared = tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    return figure_of({"name": name, **declared})


def figure_of(declared: dict[str, Any]) -> Figure:
    """Return a figure from plain values; an invalid one raises an `InputError`."""
    for number, study in enumerate(declared.get("studies", ())):
        study.setdefault("name", f"{declared['name']}-{number}")
    try:
        return Figure.model_validate(declared)
    except ValidationError as error:
        raise InputError(
            f"the figure {declared['name']}: {describe_validation_errors(error.errors(), Figure)}"
        ) from None
