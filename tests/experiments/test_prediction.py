"""Predictors against dense references, texts of one length, and `correlations` of records with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.prediction.evaluation import OUTCOMES, calibrations, correlations
from experiments.prediction.measurements import Design, rankable
from experiments.prediction.predictors import AT_LAYERS, layer_predictors, named_predictors
from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from tests.attention.cases import normal
from tests.tolerances import FLOAT32, at_most, same_record


@pytest.fixture(scope="module")
def layer() -> SelfAttention:
    weights = [normal(index, 6, 6) for index in range(3)]
    return SelfAttention(*weights, heads=2, causal=True)


def predictors(f, x, **options):
    return layer_predictors(f, x, (1e-3, 0.1), **{"tol": 1e-3, "confidence": 0.999, "seed": 0, **options})


def test_predictors_agree_with_dense_references(layer):
    x = normal(5, 7, 6)
    found = predictors(layer, x)
    values = found["predictors"]
    dense = torch.autograd.functional.jacobian(layer, x).reshape(7 * layer.d_out, 7 * 6)
    assert values["sigma"] == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-3)
    assert at_most(values["sigma"], values["yudin"]) and at_most(values["sigma"], values["local_bound"])
    assert at_most(math.log(values["sigma"]), values["certified_small"], values["certified_large"])
    assert at_most(values["certified_small"], values["ball_upper"] + 1e-2)
    q, k = (x @ w.T for w in (layer.wq, layer.wk))
    scores = layer.scale * torch.einsum("ihd,jhd->hij", q.unflatten(-1, (2, 3)), k.unflatten(-1, (2, 3)))
    p = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    assert values["entropy"] == pytest.approx(float(-(p * p.clamp(min=1e-300).log()).sum(-1).mean()))
    assert values["peak"] == pytest.approx(float(p.amax(-1).mean()))
    assert values["mean_radius"] == pytest.approx(float(x.norm()) / math.sqrt(7))
    assert values["spectral_norm"] == pytest.approx(float(torch.linalg.svdvals(x)[0]))
    assert values["spread"] ** 2 == pytest.approx(values["mean_radius"] ** 2 - float(x.mean(0).square().sum()))
    assert values.keys() == AT_LAYERS.keys() and not found["refused"]


def test_a_bound_that_does_not_apply_is_none_with_a_reason(layer):
    biased = SelfAttention(layer.wq, layer.wk, layer.wv, heads=2, bq=normal(9, 6))
    found = predictors(biased, normal(5, 7, 6))
    assert found["predictors"]["yudin"] is None and "query bias" in found["refused"]["yudin"]
    with pytest.raises(InputError, match="a SelfAttention layer"):
        predictors(lambda x: x, normal(5, 7, 6))


def test_seeds_reproduce(layer):
    x = normal(5, 7, 6).float()
    f = layer.converted(dtype=torch.float32)
    assert same_record(predictors(f, x, seed=3), predictors(f, x, seed=3), tol=FLOAT32)


def record(text: int, layer: int | None, place: str, values: dict, attacks: list[dict]) -> dict:
    return {
        "model": "m",
        "text": text,
        "place": place,
        "layer": layer,
        "predictors": values,
        "refused": {},
        "attacks": attacks,
    }


def attack(share: float, gain: float, objective: str = "output") -> dict:
    return {
        "share": share,
        "gain": gain,
        "relative": gain,
        "change": gain * share,
        "spent": share,
        "objective": {"name": objective},
    }


@pytest.fixture(scope="module")
def made() -> list[dict]:
    """Return records in which σ₁ determines the gain of a layer, entropy is noise, and layer 1 is ten times layer 0."""
    generator, records = np.random.default_rng(0), []
    for text in range(20):
        for layer in (0, 1):
            sigma = float(10**layer * (1 + generator.random()))
            values = dict.fromkeys(AT_LAYERS, 1.0) | {"sigma": sigma, "entropy": float(generator.random())}
            records.append(
                record(
                    text, layer, "layer", values, [attack(0.1, sigma), attack(0.1, 0.9 * sigma), attack(0.5, 2 * sigma)]
                )
            )
        records.append(
            record(
                text,
                None,
                "model",
                {"model_sigma": 3.0, "objective_sigma": 1.0 + text},
                [attack(share, 1.0 + text, name) for share in (0.1, 0.5) for name in ("output", "kl")],
            )
        )
        records.append(
            record(text, None, "tokens", {}, [{"value": float(-text), "next_tokens": ["a", "ab"[text % 2]]}])
        )
    return records


def rows(made, **options) -> dict:
    return {
        (row["outcome"], row["predictor"], row["scope"], row["layer"]): row
        for row in correlations(made, resamples=200, **options)
    }


def test_correlations_of_constructed_records(made):
    found = rows(made)
    exact = found["layer_gain_large", "sigma", "within", None]
    assert [exact["value"], exact["kendall"]] == pytest.approx([1, 1]) and exact["adjusted_p"] < 0.01
    noise = found["layer_gain_large", "entropy", "within", None]
    assert noise["lower"] < 0 < noise["upper"] and noise["adjusted_p"] > 0.05
    assert found["layer_gain_large", "sigma", "pooled", None]["expected"] > 0.7
    constant = found["layer_gain_large", "mean_norm", "within", None]
    assert constant["value"] is None and "constant" in constant["status"]
    assert found["model_use_small", "objective_sigma", "within", None]["value"] == pytest.approx(1)
    assert found["token_change", "objective_sigma", "within", None]["value"] == pytest.approx(-1)
    assert found["model_use_small", "model_sigma", "within", None]["value"] is None
    sigmas = np.array(
        [[r["predictors"]["sigma"] for r in made if r["place"] == "layer" and r["layer"] == layer] for layer in (0, 1)]
    )
    product = found["token_change", "sigma_product", "within", None]["value"]
    assert product == pytest.approx(stats.spearmanr(sigmas.prod(0), -np.arange(20)).statistic)
    flips = found["token_flip", "objective_sigma", "within", None]["value"]
    assert flips == pytest.approx(stats.spearmanr(np.arange(20), np.arange(20) % 2).statistic)
    assert ("model_use_small", "sigma", "pooled", None) not in found  # one outcome for all layers
    assert {family for row in found.values() if (family := row["family"])} == {
        sum(row["scope"] == "within" and row["value"] is not None for row in found.values())
    }


def test_calibration_takes_the_strongest_attack(made):
    ratios = {(c["place"], c["layer"], c["objective"], c["share"]): c["ratio"] for c in calibrations(made)}
    assert ratios["layer", 0, "output", 0.1] == pytest.approx(1)
    assert ratios["layer", 1, "output", 0.5] == pytest.approx(2)
    assert ratios["model", None, "kl", 0.1] == pytest.approx(1)


def test_correlations_of_an_incomplete_run(made):
    found = rows(made[:-6], predictors=("sigma", "objective_sigma"))
    assert found["layer_gain_small", "sigma", "within", None]["texts"] == 19
    assert found["token_change", "sigma", "within", None]["texts"] == 18
    assert {predictor for _, predictor, _, _ in found} == {"sigma", "objective_sigma"}


def test_few_texts(made):
    assert rankable(made[:8]) == [] and rankable(made[:12]) == made[:12]
    with pytest.raises(InputError, match="at least 3 texts"):
        correlations(made[:8])
    with pytest.raises(InputError, match="among sigma"):
        named_predictors(("luck",))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"count": 2}, "at least 3 texts"),
        ({"places": ()}, "got none"),
        ({"places": ("layer", "heads")}, "got heads"),
        ({"steps": 0}, "at least 1 step"),
        ({"shares": (0.1, 0.1)}, "a small and a large"),
        ({"model_shares": (0.1,)}, "a small and a large"),
    ],
)
def test_bad_designs(options, said):
    with pytest.raises(InputError, match=said):
        Design(**options)


def test_names_of_outcomes_are_unique():
    assert len({outcome.name for outcome in OUTCOMES}) == len(OUTCOMES)
