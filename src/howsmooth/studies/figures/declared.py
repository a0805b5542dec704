"""A figure as declared: what is measured for it, how it is drawn, and the lines that were published."""

from __future__ import annotations

import difflib
import tomllib
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from howsmooth.errors import InputError, complaints
from howsmooth.studies.spec import ModelSpec, Spec, _Declared, _lengths

ORDER = ("text", "radius", "adversarial", "norms", "others", "synthetic")


class Published(_Declared):
    """A line of the authors' plots, as drawn there: constant · n^exponent. Nothing here was fitted."""

    model: str
    layer: int
    head: int | None = None
    text: str
    constant: float
    exponent: float
    lengths: tuple[int, int] = (2, 98)


class Made(_Declared):
    """Inputs that are made rather than read: adversarial ones for a head, or noise through the layer's own norm."""

    inputs: Literal["adversarial", "synthetic"]
    model: ModelSpec
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)] = 0
    radius: float | Literal["norm"] = "norm"
    lengths: Annotated[tuple[Annotated[int, Field(ge=2)], ...], BeforeValidator(_lengths), Field(min_length=1)]
    samples: Annotated[int, Field(ge=1)] = 1


class Figure(_Declared):
    """One figure: studies of texts, made inputs, or both."""

    name: str
    title: str
    about: str = ""
    x: Literal["n", "mean_radius"] = "n"
    y: Literal["value", "mean_radius"] = "value"
    sheet: Literal["model", "figure"] = "model"  # one picture for each model, or one for all
    bounds: bool = True
    studies: tuple[Spec, ...] = ()
    made: tuple[Made, ...] = ()
    published: tuple[Published, ...] = ()


def names() -> list[str]:
    """All figures, in the order they are made.

    >>> names()[:2]
    ['text', 'radius']
    """
    return list(ORDER)


def read_figure(name: str) -> Figure:
    """The figure of this name."""
    if name not in ORDER:
        near = difflib.get_close_matches(name, [*ORDER, "all"], n=1)
        raise InputError(
            f"expected a figure among {', '.join(ORDER)} or all, got {name!r}; "
            + (f"did you mean {near[0]!r}?" if near else "choose some of them")
        )
    declared = tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    return figure_of({"name": name, **declared})


def figure_of(declared: dict[str, Any]) -> Figure:
    for number, study in enumerate(declared.get("studies", ())):
        study.setdefault("name", f"{declared['name']}-{number}")
    try:
        return Figure.model_validate(declared)
    except ValidationError as error:
        raise InputError(f"the figure {declared['name']}: {complaints(error.errors(), Figure)}") from None
