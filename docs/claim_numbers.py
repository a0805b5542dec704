"""Sentences and rows of tables with numbers, made from the records in docs/images, for docs/claims.py."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # the experiments
NAMES = {"minilm": "MiniLM", "gpt2": "GPT-2", "smollm2": "SmolLM2"}
Record = dict[str, Any]


@cache
def records(name: str) -> tuple[Record, ...]:
    """Return the records of a file in docs/images."""
    return tuple(json.loads(line) for line in (DOCS / "images" / name).read_text(encoding="utf-8").splitlines())


def span(values: Iterable[float], form: str = "{:.2f}") -> str:
    """Return the least and the largest of some numbers, such as "0.02 to 0.84"."""
    ordered = sorted(values)
    return f"{form.format(ordered[0])} to {form.format(ordered[-1])}"


def exponents(model: str, *inputs: str) -> list[float]:
    """Return the exponents of the whole layers of a model, the largest over the inputs for each head."""
    from experiments.figures.adversarial import exponent

    by_head = defaultdict(list)
    for record in records("adversarial.jsonl"):
        if record["model"] == model and record["map"] == "attention" and record["input"] in inputs:
            by_head[record["layer"], record["head"]].append(exponent(record))
    return [max(found) for found in by_head.values()]


def adversarial(model: str, layer: int, head: int, given: str) -> Record:
    """Return the curve of a whole layer."""
    (found,) = (
        record
        for record in records("adversarial.jsonl")
        if (record["model"], record["layer"], record["head"], record["map"], record["input"])
        == (model, layer, head, "attention", given)
    )
    return found


def signs() -> str:
    """Return what both signs and the scripts' input do in GPT-2's layer 0."""
    from experiments.figures.adversarial import exponent

    u, other, scripts = (adversarial("gpt2", 0, 0, given) for given in ("u", "-u", "scripts"))
    return (
        f"In GPT-2's layer 0, head 0, R = 10, the layer has a constant of {u['value'][0]:.0f} at n = 2 and "
        f"{u['value'][-1]:.0f} at n = 97 for one sign, but {other['value'][0]:.1f} and {other['value'][-1]:.0f} for the "
        f"other, n^{exponent(other):.2f}, and {scripts['value'][0]:.1f} and {scripts['value'][-1]:,.0f} at the input that "
        f"the released scripts build, n^{exponent(scripts):.2f}."
    )


def spread() -> str:
    """Return how the exponents of all heads are spread."""
    parts = []
    for model, name in (("minilm", "MiniLM"), ("gpt2", "GPT-2")):
        found = exponents(model, "u", "-u")
        many = sum(value >= 0.4 for value in found)
        parts.append(f"{many} of {name}'s {len(found)} heads ({span(found)} over all)".replace("-0", "−0"))
    return f"For the better of the two signs, whole layers grow with an exponent of at least 0.4 at the input for {' and '.join(parts)}."


def heads() -> str:
    """Return at how many heads other inputs have a larger constant than both signs of the published configuration."""
    from experiments.adversarial_heads import summary

    def at(model: str, n: int) -> dict[str, Any]:
        return summary([one for one in records("adversarial_heads.jsonl") if (one["model"], one["n"]) == (model, n)])

    g64, m16, m64 = at("gpt2", 64), at("minilm", 16), at("minilm", 64)
    return (
        f"on all {g64['heads']} heads of GPT-2 and all {m64['heads']} of MiniLM the two-point input has a larger constant than "
        f"the configuration with either sign, which is near ‖V‖√n. One random draw on the same sphere has a larger one on "
        f"{min(g64['random_each'])} to {max(g64['random_each'])} heads of GPT-2, depending on the seed, and on "
        f"{min(m64['random_each'])} to {max(m64['random_each'])} of MiniLM (n = 64; at n = 16 on "
        f"{min(m16['random_each'])} to {max(m16['random_each'])})."
    )


@cache
def laws() -> list[tuple[Record, dict[str, Any], Any]]:
    """Return curve, part and law for each part of each curve of MiniLM."""
    from experiments.law_ranges import law_of, parts

    return [
        (record, part, law_of(record, **part))
        for record in records("law_ranges.jsonl")
        if record["model"] == "minilm"
        for part in parts(record)
    ]


def quarter() -> str:
    """Return how many curves of MiniLM pass as a power law with ¼ in the interval, by range and number of points."""
    from experiments.law_ranges import has_quarter

    def count(grid: str, part: dict[str, Any]) -> int:
        return sum(has_quarter(law) for record, given, law in laws() if record["grid"] == grid and given == part)

    low, high = zip(
        *(
            law.exponent_interval
            for record, part, law in laws()
            if record["grid"] == "paper" and part == {} and record["layer"] > 0
        ),
        strict=True,
    )
    return (
        f"In the paper's range, n = 2, 4, …, 98 with ten samples of Alice, the exponents of MiniLM's layers 1 to 5 are between "
        f"{min(low):.2f} and {max(high):.2f}. Of the curves of its six layers, the number that pass as a power law with ¼ in the "
        f"interval is {count('paper', {})} if all 49 lengths are fitted, {count('paper', {'every': 4})} with every fourth and "
        f"{count('paper', {'every': 8})} with every eighth length. From 16 to 256 tokens it is "
        f"{count('long', {'longest': 256})} on Alice and {count('embedded', {'longest': 256})} on the embedded text, from 16 to "
        f"512 tokens {count('long', {})} and {count('embedded', {})}."
    )


def census() -> str:
    """Return how many flows blow up for each setting."""
    found: dict[tuple[int, float, int], list[str]] = defaultdict(list)
    for record in (*records("gaussian_census.jsonl"), *records("gaussian_census_seeds.jsonl")):
        found[record["d"], record["until"], record["seed"]].append(record["status"])
    by = {key: sum(status == "blew up" for status in statuses) for key, statuses in found.items()}
    seeds = [str(by[key]) for key in sorted(by) if key[:2] == (3, 30.0)]
    other = [f"{by[key]} with d = {key[0]} up to t = {key[1]:g}" for key in sorted(by) if key[:2] != (3, 30.0)]
    return (
        f"of 40 flows {', '.join(seeds[:-1])} and {seeds[-1]} blow up for {len(seeds)} seeds, and {', '.join(other)}."
    )


def kappa_rows() -> str:
    """Return the rows of the table of ratios for A ≻ 0."""
    rows = []
    for condition in (10.0, 100.0, 1000.0):
        found = [r for r in records("splitting_limits.jsonl") if (r["kind"], r["parameter"]) == ("softmax", condition)]
        cells = [f"{record['ratio']:.4f}" for record in sorted(found, key=lambda record: record["size"])]
        rows.append(f"| {condition:g} | {' | '.join(cells)} | {found[0]['limit']:.4f} |")
    return "\n".join(rows)


def searched() -> str:
    """Return the largest ratios that the search found for κ = 10, 100 and 1000."""
    best: dict[float, float] = defaultdict(float)
    for record in records("splitting_limits.jsonl"):
        if record["kind"] == "search":
            best[record["parameter"]] = max(best[record["parameter"]], record["ratio"])
            # A ratio is printed rounded down: it is attained.
    down = [f"{math.floor(best[one] * 1e4) / 1e4:.4f}" for one in (10.0, 100.0, 1000.0)]
    return f"A search with free masses from 80 random starts finds at most {down[0]}, {down[1]} and {down[2]}."


def near_one() -> str:
    """Return what the search found at κ = 1.1."""
    best = max(r["ratio"] for r in records("splitting_limits.jsonl") if (r["kind"], r["parameter"]) == ("search", 1.1))
    return f"at κ = 1.1 the same search finds {math.floor(best * 1e4) / 1e4:.4f}, above (1 + κ)/(2√κ) = 1.0011"


def masked() -> str:
    """Return where the published masked bound is false, open and true."""
    (threshold,) = (record for record in records("masked_threshold.jsonl") if record["kind"] == "threshold")
    reached = max(record["false_up_to"] for record in records("masked_threshold.jsonl") if record["kind"] == "atoms")
    return (
        f"(1+3a)e^{{2a}} is false in d_2 up to a = {math.floor(reached * 1e4) / 1e4:.4f}, true from "
        f"a = {math.ceil(threshold['true_from'] * 1e3) / 1e3:.3f} on, and open between"
    )


def quoted_power(log10: float) -> str:
    """Return a power of ten by its logarithm, such as "10⁵⁷"."""
    return "10" + str(round(log10)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


@cache
def head_sizes() -> list[float]:
    """Return γR² of MiniLM's heads, in increasing order."""
    return sorted(
        {
            (r["layer"], r["head"]): r["gamma_r2"] for r in records("adversarial_heads.jsonl") if r["model"] == "minilm"
        }.values()
    )


def plateaus() -> tuple[str, str]:
    """Return how large γR² is in MiniLM's heads, and at which lengths their plateaus begin."""
    from howsmooth.lipschitz import plateau

    sizes = head_sizes()
    lengths = [quoted_power(plateau(size).log_crossover / math.log(10)) for size in (sizes[0], sizes[-1])]
    return f"from {sizes[0]:.0f} to {sizes[-1]:.0f}", " and ".join(lengths)


def split_maps(kind: str) -> list[Record]:
    """Return how many maps of a kind split: "head", "attention" or "layer"."""
    return [one for one in records("splitting-heads.jsonl") if one["map"] == kind]


def splitting_attention() -> str:
    """Return how many attention layers split, with all their heads together."""
    (found,) = split_maps("attention")
    return (
        f"All heads together, SmolLM2's {found['cases']} attention layers at n = {found['n'][0]} (`--map attention`): "
        f"{found['split']} split, the largest ratio is {found['largest']['ratio']:.3f}, in layer {found['largest']['layer']}."
    )


def splitting_layers() -> str:
    """Return how many whole layers split."""
    (found,) = split_maps("layer")
    return (
        f"{found['split']} of {found['cases']} split; the largest ratio is {found['largest']['ratio']:.3f}, in layer "
        f"{found['largest']['layer']}."
    )


def splitting_heads() -> str:
    """Return how many heads of real models split."""
    found = split_maps("head")
    cases, split = sum(one["cases"] for one in found), sum(one["split"] for one in found)
    largest = max(one["largest"]["ratio"] for one in found)
    return f"{split} of {cases:,} cases, with a largest ratio of {largest:.3f}."


def splitting_rows() -> str:
    """Return the rows of the table of heads of real models."""
    rows = []
    for one in split_maps("head"):
        name = NAMES[one["model"]] + (" on Alice" if one["text"] == "alice" else "")
        name += f", n = {', '.join(map(str, one['n']))}"
        name += ", no special tokens" if one["special_tokens"] == "none" and one["model"] != "gpt2" else ""
        name += f", {one['samples']} samples" if one["samples"] > 1 else ""
        top = one["largest"]
        where = f"{top['ratio']:.3f}: layer {top['layer']} head {top['head']}"
        where += f', "{top["token"].strip()}"' if top["token"] != "drawn" else ""
        where += f", n = {top['n']}" if len(one["n"]) > 1 else ""
        medians = ", ".join(f"{value:.2f}" for value in one["median"])
        rows.append(f"| {name} | {one['cases']} | {one['split']} | {one['undecided']} | {where} | {medians} |")
    return "\n".join(rows)


def third_point() -> str:
    """Return what the third point gains for A > 0."""
    from howsmooth.lipschitz import plateau
    from howsmooth.lipschitz.three_points import three_point_plateau

    gains = [
        round(100 * math.expm1(three_point_plateau(size, "positive") - plateau(size, "positive").log_value))
        for size in (2.0, 4.0, 32.0)
    ]
    return f"They gain {gains[0]} % at γR² = 2, {gains[1]} % at 4 and {gains[2]} % at 32, and the gain tends to 16/9."


def searched_points() -> str:
    """Return what searches with more points found."""
    found = records("points_on_a_line.jsonl")
    sizes = sorted({one["gamma_r2"] for one in found})
    return (
        f"Searches at γR² = {' and '.join(f'{size:g}' for size in sizes)} with up to {max(one['points'] for one in found)} points, "
        f"from {found[0]['starts']} random starts each, find no more, and for A < 0 no more than two points attain."
    )


def text_curves() -> str:
    """Return how many curves of MiniLM on text are power laws, and between which exponents they lie."""
    whole = [law for _, part, law in laws() if part == {}]
    passed, exponents = sum(bool(law.is_power_law) for law in whole), [law.exponent for law in whole]
    return (
        f"Of MiniLM's {len(whole)} curves on text {passed} pass as power laws; fitted exponents are between "
        f"{min(exponents):.2f} and {max(exponents):.2f}"
    ).replace("-0", "−0")


def steepest() -> tuple[str, str]:
    """Return the growth of SmolLM2's layer 15 on text, from the records of the GPU, and its exponent."""
    from howsmooth.fits import fit_law

    path = DOCS.parent / "benchmarks" / "results" / "h200-long-context.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    text = sorted({one["n"]: one["value"] for one in found if one.get("kind") == "text"}.items())
    law = fit_law(*zip(*text, strict=True))
    power = f"n^{law.exponent:.2f}"
    grows = f"it grows from {text[0][1]:.0f} at {text[0][0]} tokens to {text[-1][1]:,.0f} at {text[-1][0]:,}, {power}"
    return grows, power


@cache
def correlations() -> tuple[Record, ...]:
    """Return the correlations within layers between predictors and outcomes of attacks."""
    text = (DOCS / "images" / "prediction.json").read_text(encoding="utf-8")
    return tuple(one for one in json.loads(text)["correlations"] if one["scope"] == "within")


def correlation(model: str, predictor: str, outcome: str) -> Record:
    """Return the correlation of one predictor with one outcome."""
    (found,) = (
        one for one in correlations() if (one["model"], one["predictor"], one["outcome"]) == (model, predictor, outcome)
    )
    return found


def layer_predictions() -> str:
    """Return how a layer's constant is correlated with attacks on the layer and on the model."""
    small, large = (
        [correlation(model, "sigma", f"layer_gain_{size}") for model in ("minilm", "smollm2")]
        for size in ("small", "large")
    )
    each = [f"{one['value']:.2f} [{one['lower']:.2f}, {one['upper']:.2f}]" for one in large]
    whole = [
        one["value"] for one in correlations() if one["predictor"] == "sigma" and one["outcome"].startswith("model_")
    ]
    return (
        f"Over {small[0]['texts']} texts in MiniLM and {small[1]['texts']} in SmolLM2, the rank correlation with the gain of "
        f"small attacks on the layer is {min(one['value'] for one in small):.2f}, and with that of large ones (a tenth of ‖X‖) "
        f"{' and '.join(each)}; with attacks at the model's input it is between {min(whole):.2f} and {max(whole):.2f}."
    ).replace("-0", "−0")


def beats_the_constant() -> list[str]:
    """Return the bounds and baselines with a larger correlation than σ₁ with the gain of large attacks on a layer."""
    return [
        f"{one['model']}: {one['predictor']}"
        for one in correlations()
        if one["outcome"] == "layer_gain_large"
        and one["value"] is not None
        and one["value"] > correlation(one["model"], "sigma", "layer_gain_large")["value"]
    ]


def token_predictions() -> str:
    """Return how well anything predicts attacks on tokens."""
    found = [one for one in correlations() if one["outcome"].startswith("token_") and one["value"] is not None]
    best = min(found, key=lambda one: one["adjusted_p"])
    names = {"next_entropy": "the entropy of the next token"}
    return (
        f"No quantity predicts attacks on tokens significantly after the adjustment for all pairs: the strongest, "
        f"{names[best['predictor']]} in {NAMES[best['model']]}, has ρ = {best['value']:.2f} over {best['texts']} texts "
        f"(p = {best['p']:.3f}, adjusted {best['adjusted_p']:.2f})"
    ).replace("-0", "−0")


def together(name: str, model: str) -> list[float]:
    """Return the effects of an attack on a model with three layers mitigated, relative to the model as it is."""
    return [one["attack_ratio"] for one in records(name) if one["model"] == model and one["layer"] is None]


def smoother_models() -> str:
    """Return what an attack on a model with three smoother layers achieves."""
    small, large = (span(together("mitigations.jsonl", model)) for model in ("minilm", "smollm2"))
    return f"an attack on the embeddings has {large} times its previous effect in SmolLM2, and {small} times in MiniLM"


def smoother_choices() -> str:
    """Return the same for another seed."""
    (seed,) = {one["seed"] for one in records("mitigations_choices.jsonl")}
    small, large = (span(together("mitigations_choices.jsonl", model)) for model in ("minilm", "smollm2"))
    return f"with seed {seed} these are {large} and {small} times"


def quotient_pairs() -> list[tuple[float, float]]:
    """Return the quotient of distances between two texts and the local constant at the first, for each layer."""
    found = records("distances.jsonl")
    constants = {(one["model"], one["layer"]): one["value"] for one in found if one["kind"] == "measurement"}
    return [(one["quotient"], constants[one["model"], one["layer"]]) for one in found if one["kind"] == "distance"]


def quotients() -> str:
    """Return how much smaller than the local constant the quotients are."""
    ratios = [constant / quotient for quotient, constant in quotient_pairs()]
    return (
        f"the quotient is {min(ratios):.0f} to {max(ratios):.0f} times smaller than the local constant at the first chunk, in "
        f"{len(ratios)} layers"
    )


def amplified() -> str:
    """Return how much whole models amplify a perturbation, and what the product of their layers' constants is."""
    last = {one["model"]: one for one in records("depth.jsonl") if one["value"] is not None and not one["normed"]}
    minilm, smollm2 = last["minilm"], last["smollm2"]
    return (
        f"MiniLM as a whole amplifies a perturbation at most {math.ceil(minilm['upper'] * 10) / 10:.1f} times, while the "
        f"product of its layers' constants is {scientific(minilm['product'])} (SmolLM2: {scientific(smollm2['upper'])} and "
        f"{scientific(smollm2['product'])})."
    )


def scientific(value: float) -> str:
    """Return a number as a power of ten with two digits, such as "1.9·10⁶"."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·{quoted_power(int(exponent))}"


def turn_growth() -> str:
    """Return with which exponent in R² the constant grows where A is a quarter turn."""
    from experiments.radius_growth import fit_radius_growth

    fit = fit_radius_growth([one for one in records("mean_field_rates.jsonl") if one["scores"] == "rotation"])
    return f"The exponent is D*/2, not γ: a quarter turn has γ = {fit.gamma:.0f}, yet grows like e^{{{fit.exponent:.3f} R²}}"


def plane_limit() -> str:
    """Return which ratios exist for A ≻ 0."""
    found = [one for one in records("splitting_limits.jsonl") if (one["kind"], one["parameter"]) == ("softmax", 1000.0)]
    return (
        f'"No splitting for A ≻ 0" is false: the ratio is 1.005 on the line, and tends to (1 + κ)/(2√κ) in the plane, '
        f"{max(one['ratio'] for one in found):.2f} at condition number κ = 1000."
    )
