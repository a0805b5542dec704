"""Forms of the explorer, by tab: what visitors may ask, within the limits of the server.

A form asks one question with some fields of its spec. What a visitor enters and what a link contains is read in one
way, as text: `Input` bounds it to what the form offers, and the spec validates it, as it does for options of a command.
A link may come from anyone; the first error ends the reading, with a message of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from howsmooth.choices import METHODS, TEXT_OBJECTIVES
from howsmooth.errors import InputError
from howsmooth.explorer.limits import Limits
from howsmooth.fits import growth_laws
from howsmooth.models.map_types import MAPS, map_choices
from howsmooth.questions import find_question
from howsmooth.questions.command_line import literal_values, written
from howsmooth.questions.layer_attack import DEFAULT_ATTACKS
from howsmooth.questions.spec import spec_of
from howsmooth.report.attacks import diff_html
from howsmooth.report.charts import bounds_picture, growth_picture
from howsmooth.report.figure import draw
from howsmooth.report.rows import law_text, number

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


# Heads and maps of the whole model are not offered: the tab shows a layer.
LAYER_MAPS = map_choices(name for name in MAPS if name != "head" and MAPS[name].per_layer)
EXAMPLES = (
    ("A polytope", "polytope"),
    ("Hyperplanes", "hyperplanes"),
    ("A polytope times a subspace", "polytope_times_subspace"),
    ("Collapse", "collapse"),
    ("Low rank", "low_rank"),
    ("On the sphere", "sphere"),
)
LAYER = Input("Layer", 0, low=0, high=MAX_LAYER)
MAX_SIZE = 1e5  # of numbers that are typed in
SHORTEST_LENGTH = 8  # tokens


def layers_form(limits: Limits) -> Form:
    """Return the form for the constants of layers."""
    return Form(
        "measure",
        "Measure",
        {
            "layers": Input(
                "Layers", "all", high=MAX_LAYER, low=0, most=MAX_LAYER, info="all, or numbers such as 0,2,5"
            ),
            "map": Input(
                "Map", "attention", LAYER_MAPS, info="attention alone, with norm, with residual, the layer, …"
            ),
            "tokens": spec_input(
                "measure", "tokens", "Tokens that may move", info="all, or without special or first ones"
            ),
            "lengths": _length("Tokens of the text to measure", 64, SHORTEST_LENGTH, limits),
        },
    )


def forms_of_tabs(limits: Limits) -> dict[str, list[Form]]:
    """Return the forms of the tabs behind the first."""
    return {
        "Growth": [
            Form(
                "bound",
                "Follow the growth",
                {"layers": LAYER, "lengths": _length("Longest text, in tokens", 128, 16, limits)},
                done=lambda records: law_of(measured_constants(records)),
                lengths=doubling_lengths,
                figures={
                    "Growth": lambda records, theme: draw(growth_picture(measured_constants(records)), theme=theme),
                    "Bounds": lambda records, theme: draw(bounds_picture(records, columns=1), theme=theme),  # as wide
                },
            )
        ],
        "Measures": [
            Form(
                "regimes",
                "Draw the regimes",
                {
                    "gamma_r2": spec_input(
                        "regimes",
                        "gamma_r2",
                        "γR², one curve for each",
                        low=0,
                        high=MAX_SIZE,
                        most=8,
                        info="γ: strength of the scores, |A| or A/8; R: radius of the ball of tokens",
                    ),
                    "scores": spec_input(
                        "regimes",
                        "scores",
                        "Sign of A",
                        info="of the scores A·x·y of one head in dimension 1, with V = 1",
                    ),
                    "to": Input("Lengths up to 10 to the power of", 40, low=2, high=60, step=1),
                },
                title="Regimes: from √n to the plateau",
                fixed={"points": 41},
                done=lambda records: (
                    "Largest constant of n tokens at two points of the ball, exact. It grows up to n* and is constant "
                    "from there on, at the plateau."
                ),
            ),
            Form(
                "splitting-line",
                "Draw where they split",
                {
                    "a": Input(
                        "a, of the score a·x·y",
                        -1,
                        low=-2,
                        high=2,
                        step=0.1,
                        info="of one head in dimension 1, with V = 1",
                    ),
                    "masses": Input(
                        "Masses of the two atoms",
                        "1,1",
                        high=MAX_SIZE,
                        most=2,
                        info="two numbers such as 1,3: how often each token occurs",
                    ),
                    "extent": Input("Half the width of the picture", 4, low=1, high=12, step=0.5),
                },
                title="Splitting: two atoms on a line",
                fixed={"resolution": 240},
                done=lambda records: "The two atoms split where the ratio is above 1.",
            ),
        ],
        "Flows": [
            Form(
                "particles",
                "Follow the flow",
                {
                    "example": Input("What forms", "sphere", EXAMPLES),
                    "particles": Input("Tokens", 40, low=4, high=200, step=1),
                    "seed": Input("Seed", 0, low=0, high=1e9),
                },
                done=lambda records: f"{records[-1]['ending']}; {len(records)} depths to play, pause and scrub.",
            )
        ],
        "Attacks": [
            Form(
                "layer-attack",
                "Attack the layer",
                {
                    "layers": LAYER,
                    "budget": Input("Sizes, as shares of ‖X‖", "0.001,0.01,0.1", high=MAX_SIZE, most=8),
                    "attacks": Input("Attacks", DEFAULT_ATTACKS, DEFAULT_ATTACKS, most=len(DEFAULT_ATTACKS)),
                },
                title="Perturb what enters a layer",
                fixed={"lengths": min(64, limits.max_tokens)},
                done=lambda records: (
                    "Gain is change of the output over change of the input: σ₁ is its limit for small sizes."
                ),
            ),
            Form(
                "token-attack",
                "Attack the words",
                {
                    "methods": Input("Method", "hotflip", METHODS),
                    "objective": Input("Objective", "cosine", TEXT_OBJECTIVES),
                    "edits": Input("Tokens that may be edited", 2, low=1, high=5, step=1),
                    "calls": Input("Calls of the model", 40, low=10, high=200, step=10),
                },
                title="Exchange words",
                fixed={"lengths": min(128, limits.max_tokens)},
                done=lambda records: (
                    f"The value was evaluated again {'and holds' if records[-1]['verified'] else 'and DOES NOT HOLD'}."
                ),
                show=lambda records: "".join(map(edited_text, records)),
            ),
        ],
    }


def _length(label: str, value: int, shortest: int, limits: Limits) -> Input:
    return Input(label, min(value, limits.max_tokens), low=shortest, high=limits.max_tokens, step=1)


def doubling_lengths(longest: int) -> tuple[int, ...]:
    """Return lengths that double from 8, and the longest itself.

    Example:
        >>> doubling_lengths(50), doubling_lengths(64)
        ((8, 16, 32, 50), (8, 16, 32, 64))
    """
    lengths = [longest]
    n = SHORTEST_LENGTH
    while n < longest:
        lengths.append(n)
        n *= 2
    return tuple(sorted(lengths))


def measured_constants(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the measured constant at each length from the records of bounds."""
    return list({record["n"]: {**record, **record["measured"]} for record in records}.values())


def law_of(records: Sequence[dict[str, Any]]) -> str:
    """Describe the law that fits the constants of one layer."""
    fits = growth_laws(records)
    if not fits:
        return "No constant is positive, so there is no law."
    (law,) = fits.values()
    return (
        f"Lip ≈ {law_text(law)}: {law.verdict}; theory allows √n at most."
        if law.shown
        else f"{law.verdict[:1].upper()}{law.verdict[1:]}."
    )


def edited_text(record: dict[str, Any]) -> str:
    """Return the difference of the texts, with the values before and after the edits above it."""
    next_tokens = (
        ""
        if not record["next_tokens"]
        else "; next: <code>{}</code> → <code>{}</code>".format(*(escape(str(word)) for word in record["next_tokens"]))
    )
    return (
        f"<p><b>{number(record['clean'], 3)} → {number(record['value'], 3)}</b> "
        f"({escape(record['objective']['name'])}) in {record['calls']} calls{next_tokens}</p>"
        f'<p class="hs-diff">{diff_html(record)}</p>'
    )
