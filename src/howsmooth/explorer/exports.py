"""What can be saved of a view: CSV, and the Python code that computes it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howsmooth.records import csv_line

LAYER_FIELDS = ("layer", "n", "value", "lower", "upper", "confidence", "status", "relative", "map", "tokens", "model")

BOUND_FIELDS = ("layer", "n", "bound", "side", "holds", "value", "log_value", "refused", "measured")
ATTACK_FIELDS = ("layer", "n", "share", "attack", "gain", "certified", "sigma")


def csv(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return records as CSV with all digits.

    Example:
        >>> csv([{"layer": 0, "value": 1.25}], ("layer", "value")).splitlines()
        ['layer,value', '0,1.25']
    """
    return "".join(
        csv_line(row) + "\n" for row in (names, *([record.get(name) for name in names] for record in records))
    )


def token_rows(
    record: Mapping[str, Any], gains: Mapping[str, Any] | None, words: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each token: its share of the worst direction, and its gain with the interval.

    Args:
        record: Measurement of the layer.
        gains: Result of `howsmooth.studies.move_each_token` at the same layer; None if it is not computed.
        words: The tokens.
    """
    rows = [
        {"position": i, "token": word, "share": share}
        for i, (word, share) in enumerate(zip(words, record["shares"], strict=True))
    ]
    if gains is not None:
        for i, row in enumerate(rows):
            row.update(
                gain=gains["gains"][i],
                gain_lower=gains["lower"][i],
                gain_upper=gains["upper"][i],
                gain_of_constant=gains["gains"][i] / record["value"] if record["value"] > 0 else None,
            )
    return rows


def python_code(view: str, values: Mapping[str, Any]) -> str:
    """Return a Python program that computes a view again and writes its pictures.

    Args:
        view: Name of the view.
        values: Values of its form, as its link contains them.
    """
    return CODE[view](values)


def _program(about: str, imports: Sequence[str], body: str) -> str:
    return (
        f'"""{about}, as the explorer of howsmooth shows it."""\n\n' + "\n".join(imports) + "\n\n" + body.strip() + "\n"
    )


def _text(values: Mapping[str, Any]) -> str:
    return f'model = howsmooth.load({values["model"]!r})\ntext = Corpus("pasted", ({values["text"]!r},))'


def _numbers(text: str) -> str:
    """Return numbers separated by commas as Python code; the text of a form is not code."""
    return ", ".join(f"{float(part)!r}" for part in text.split(","))


def _layers_code(values: Mapping[str, Any]) -> str:
    layers = values["layers"].replace(" ", "").lower()
    numbers = "all" if layers == "all" else [int(part) for part in layers.split(",")]
    fields = f"lengths=[{values['length']}], samples=1, map={values['map']!r}"
    measured = f"""
{_text(values)}
found = howsmooth.measure(model, text, layers={numbers!r}, {fields}, tokens={values["tokens"]!r})
print(found)

layer = {values["layer"]}
record = next(record for record in found if record["layer"] == layer)
"""
    if not values["gains"]:
        return _program(
            "Local Lipschitz constants of layers",
            (
                "import howsmooth",
                "from howsmooth.report import save_figure",
                "from howsmooth.report.token_figure import share_colouring, token_figure",
                "from howsmooth.texts import Corpus",
            ),
            f"""{measured}words = list(found)[0]["words"]  # only the first record of a text contains them
for word, share in zip(words, record["shares"], strict=True):
    print(f"{{word:>16}}  {{share:8.2%}} of the worst direction")
save_figure(token_figure(words, [share_colouring(record["shares"])]), "tokens.png")
""",
        )
    return _program(
        "Local Lipschitz constants of layers, and of single tokens",
        (
            "import howsmooth",
            "from howsmooth.report import save_figure",
            "from howsmooth.report.token_figure import gain_colouring, share_colouring, token_figure",
            "from howsmooth.studies import move_each_token, spec_of",
            "from howsmooth.texts import Corpus",
        ),
        measured
        + f"""
spec = spec_of({{"layers": [layer], "lengths": [{values["length"]}], "samples": 1, "map": {values["map"]!r}}})
each = move_each_token(model, text, spec)  # the constant when only one token moves, for each token
for word, share, gain in zip(each["words"], record["shares"], each["gains"], strict=True):
    print(f"{{word:>16}}  {{share:8.2%}} of the worst direction  {{gain / record['value']:6.1%}} of the constant")
colourings = [share_colouring(record["shares"]), gain_colouring(each["gains"], record["value"])]
save_figure(token_figure(each["words"], colourings), "tokens.png")
""",
    )


def _growth_code(values: Mapping[str, Any]) -> str:
    lengths = list(values["lengths"])
    return _program(
        "Growth of a constant with length, and its bounds",
        (
            "import howsmooth",
            "from howsmooth.report import bounds_figure, save_figure",
            "from howsmooth.texts import Corpus",
        ),
        f"""
{_text(values)}
found = howsmooth.measure(model, text, layers=[{values["layer"]}], lengths={lengths}, samples=1)
print(found)
found.plot("growth.png")

bounds = howsmooth.ask("bound", model, text, layers=[{values["layer"]}], lengths={lengths})
save_figure(bounds_figure(list(bounds)), "bounds.png")
""",
    )


def _regimes_code(values: Mapping[str, Any]) -> str:
    sizes = _numbers(values["sizes"])
    return _program(
        "From √n to the plateau",
        ("import howsmooth",),
        f"""
found = howsmooth.ask(
    "regimes", gamma_r2=[{sizes}], scores={values["scores"]!r}, to={values["power"]}, points={values["count"]}
)
print(found)
found.plot("regimes.png")
""",
    )


def _splitting_code(values: Mapping[str, Any]) -> str:
    masses = _numbers(values["masses"])
    return _program(
        "Where two atoms on a line split",
        ("import howsmooth",),
        f"""
found = howsmooth.ask(
    "splitting-line", a={values["a"]}, masses=[{masses}], extent={values["extent"]}, resolution={values["cells"]}
)
print(found)
found.plot("splitting.png")
""",
    )


def _flow_code(values: Mapping[str, Any]) -> str:
    return _program(
        "Tokens as particles",
        ("import howsmooth",),
        f"""
flow = howsmooth.ask(
    "particles", example={values["example"]!r}, particles={values["tokens"]}, seed={values["seed"]}
)
print(flow)
flow.plot("flow.png")
""",
    )


def _attack_code(values: Mapping[str, Any]) -> str:
    sizes = _numbers(values["sizes"])
    return _program(
        "Perturbations of the input of a layer",
        ("import howsmooth", "from howsmooth.texts import Corpus"),
        f"""
{_text(values)}
layer, n, attacks = {values["layer"]}, {values["length"]}, {list(values["attacks"])!r}
found = howsmooth.ask("layer-attack", model, text, layers=[layer], lengths=[n], budget=[{sizes}], attacks=attacks)
for record in found:
    share = record["gain"] / record["sigma"]["value"]
    print(f"{{record['share']:g}}  {{record['attack']['name']:>10}}  gain {{record['gain']:.4g}}, {{share:.0%}} of σ₁")
""",
    )


def _words_code(values: Mapping[str, Any]) -> str:
    return _program(
        "Edits of the tokens of a text",
        ("import howsmooth", "from howsmooth.texts import Corpus"),
        f"""
{_text(values)}
found = howsmooth.ask(
    "token-attack",
    model,
    text,
    methods=[{values["method"]!r}],
    objective={values["objective"]!r},
    edits={values["edits"]},
    calls={values["calls"]},
    lengths=[{values["length"]}],
    samples=1,
)
for record in found:
    print(f"{{record['clean']:.3g}} → {{record['value']:.3g}} in {{record['calls']}} calls of the model")
    print("evaluated again, and holds" if record["verified"] else "evaluated again, and does not hold")
""",
    )


CODE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "measure": _layers_code,
    "growth": _growth_code,
    "regimes": _regimes_code,
    "split": _splitting_code,
    "flow": _flow_code,
    "attack": _attack_code,
    "words-attack": _words_code,
}
