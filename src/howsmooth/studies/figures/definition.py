"""Definition of a figure: the studies that it shows, how they are drawn, and the lines that the authors printed."""

from __future__ import annotations

import difflib
import tomllib
from importlib.resources import files
from typing import Any, Literal

from pydantic import ValidationError

from howsmooth.errors import InputError, describe_validation_errors
from howsmooth.questions.fields import StrictModel
from howsmooth.questions.spec import spec_of

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


class Figure(StrictModel):
    """One figure: the specs of its studies, of any question. In `about`, {texts} are those that were measured."""

    name: str
    title: str
    about: str = ""
    x: Literal["n", "mean_radius"] = "n"
    y: Literal["value", "mean_radius"] = "value"
    sheet: Literal["model", "figure"] = "model"  # one picture for each model, or one for all
    bounds: bool = True
    studies: tuple[Any, ...]
    published: tuple[Published, ...] = ()


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
    return figure_of(name, tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")))


def figure_of(name: str, declared: dict[str, Any]) -> Figure:
    """Return a figure from plain values; an invalid one raises an `InputError`."""
    studies = [
        spec_of({"name": f"{name}-{number}", **study}, f"the figure {name}")
        for number, study in enumerate(declared.get("studies", ()))
    ]
    try:
        return Figure.model_validate({"name": name, **declared, "studies": studies})
    except ValidationError as error:
        raise InputError(f"the figure {name}: {describe_validation_errors(error.errors(), Figure)}") from None
