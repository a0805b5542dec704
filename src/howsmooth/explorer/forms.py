"""Forms of the explorer: what visitors may ask, and links that restore it.

A form asks one question with some fields of its spec. What a visitor enters and what a link contains is read in one
way, as text: `Input` bounds it to what the form offers, and the spec validates it, as it does for options of a command.
A link may come from anyone; the first error ends the reading, with a message of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from howsmooth.errors import InputError
from howsmooth.questions import find_question
from howsmooth.questions.command_line import literal_values, written
from howsmooth.questions.spec import spec_of

MAX_LAYER = 9999  # the model itself has fewer
MAX_VALUE = 200  # characters of a field


@dataclass(frozen=True)
class Input:
    """What a form accepts for a field of the spec.

    Attributes:
        label: Its name on the page.
        value: What it contains at first.
        choices: The values that it offers, or (label, value).
        low: Smallest number.
        high: Largest number.
        step: Step of a slider from `low` to `high`; 0 for a field to type in.
        most: How many values it takes.
        info: A line below the label.
    """

    label: str
    value: Any
    choices: Sequence[Any] = ()
    low: float = -math.inf
    high: float = math.inf
    step: float = 0
    most: int = 1
    info: str = ""

    @property
    def is_number(self) -> bool:
        """Whether the value is one number."""
        return not self.choices and not isinstance(self.value, str)

    def read(self, text: str) -> Any:
        """Return a text as the value that the component on the page has.

        Raises:
            InputError: The form does not offer it.

        Example:
            >>> Input("Tokens", 40, low=4, high=200, step=1).read("64")
            64
            >>> Input("Tokens", 40, low=4, high=200, step=1).read("1000")
            Traceback (most recent call last):
            ...
            howsmooth.errors.InputError: expected Tokens from 4 to 200, got '1000'; correct it
        """
        parts = [part.strip() for part in text.split(",")] if self.most > 1 else [text]
        if len(text) > MAX_VALUE or len(parts) > self.most or not text.isascii():
            self._refuse(f"of at most {self.most} values in {MAX_VALUE} plain characters", text)
        allowed = [choice if isinstance(choice, str) else choice[1] for choice in self.choices]
        if allowed and (wrong := [part for part in parts if part not in allowed]):
            self._refuse(f"among {', '.join(allowed)}", wrong[0])
        numbers = [number for part in parts if (number := _number(part)) is not None]
        if not all(self.low <= number <= self.high for number in numbers) or (self.is_number and not numbers):
            self._refuse(f"from {self.low:g} to {self.high:g}", text)
        if self.is_number:
            return int(numbers[0]) if numbers[0] == int(numbers[0]) else numbers[0]
        return parts if allowed and self.most > 1 else text

    def _refuse(self, expected: str, got: str) -> None:
        raise InputError(f"expected {self.label} {expected}, got {got[:40]!r}; correct it")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Form:
    """A form that asks one question.

    Attributes:
        question: The question.
        button: What its button says.
        inputs: What it accepts for fields of the spec.
        done: Returns what the page says of the records at the end.
        title: Its heading, on a tab with several forms.
        fixed: Further fields of the spec.
        lengths: Returns the lengths that are measured for the longest of them.
        show: Returns records as HTML; by default the tables of the question.
        figures: Functions (records, theme) that draw records, by name; by default the figure of the question.
    """

    question: str
    button: str
    inputs: Mapping[str, Input]
    done: Callable[[Sequence[dict[str, Any]]], str] = lambda records: ""
    title: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    lengths: Callable[[int], tuple[int, ...]] = lambda longest: (longest,)
    show: Callable[[Sequence[dict[str, Any]]], str] | None = None
    figures: Mapping[str, Callable[..., Any]] | None = None

    @property
    def asks_models(self) -> bool:
        """Whether it is asked of the model and the text on the page."""
        return find_question(self.question).asks_models

    def spec(self, values: Mapping[str, str]) -> Any:
        """Return the spec that values ask for; a field without a value has the default of the spec.

        Raises:
            InputError: The form does not offer a value, or the spec refuses it.
        """
        for name, text in values.items():
            if name in self.inputs:
                self.inputs[name].read(text)
        given = {name: text for name, text in values.items() if name in self.inputs}
        model = {"models": [values["model"]]} if self.asks_models and "model" in values else {}
        labels = {name: one.label for name, one in self.inputs.items()}
        declared = {"name": "explorer", **self.fixed, **given, **model}
        return spec_of(declared, question=self.question, name=lambda key: labels.get(key.split(".")[0], key))


def spec_input(question: str, name: str, label: str, **settings: Any) -> Input:
    """Return the input for a field of a question's spec, with its default and its choices unless they are given.

    Example:
        >>> spec_input("regimes", "scores", "Sign of A").choices
        ['negative', 'positive']
    """
    declared = find_question(question).spec.model_fields[name]
    default: Any = declared.default
    if isinstance(default, (tuple, list)):
        default = written(default)
    return Input(label, **{"value": default, "choices": literal_values(declared.annotation), **settings})


def texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values of components as text; those that are empty are left out.

    Example:
        >>> texts_of({"lengths": 64, "attacks": ["noise", "sign"], "layers": None})
        {'lengths': '64', 'attacks': 'noise,sign'}
    """
    return {name: written(value) for name, value in values.items() if value is not None}
