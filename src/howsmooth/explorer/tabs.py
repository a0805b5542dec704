"""The forms of the explorer, by tab: what visitors may ask, within the limits of the server."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from howsmooth.choices import METHODS, TEXT_OBJECTIVES
from howsmooth.explorer.choice import SHORTEST_LENGTH, doubling_lengths
from howsmooth.explorer.forms import MAX_LAYER, Form, Input, spec_input
from howsmooth.explorer.limits import Limits
from howsmooth.fits import growth_laws
from howsmooth.models.map_types import MAPS, map_choices
from howsmooth.questions.layer_attack import DEFAULT_ATTACKS
from howsmooth.report.attack_tables import diff_html
from howsmooth.report.charts import bounds_picture, growth_picture
from howsmooth.report.figure import draw
from howsmooth.report.rows import law_text, number

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
