"""Ascent over measures finds two Diracs; curves lie between their bounds; masked constants above what is attained."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.bounds import mean_field
from howsmooth.errors import InputError
from howsmooth.lipschitz import mean_field_lipschitz, plateau
from howsmooth.studies.mean_field import fit_rate, masked_constants, regimes, roughest_measures, unit_layer
from tests.tolerances import at_most, less


@pytest.mark.parametrize("squared", [2.0, 4.0])
def test_ascent_rediscovers_the_two_diracs(squared):
    """From random measures on three atoms: two places, ±R, the lighter of mass between e^{−2γR²}/3 and e^{−2γR²}."""
    record, = roughest_measures("negative", [squared], restarts=4, steps=120)
    assert len(record["places"]) == 2
    heavy, light = record["places"]
    R = math.sqrt(squared)
    assert abs(heavy["place"][0]) == pytest.approx(R, rel=1e-6)
    assert light["place"][0] == pytest.approx(-heavy["place"][0], rel=1e-6)
    assert 1 / 3 <= light["mass"] * math.exp(2 * squared) <= 1
    assert math.log(record["value"]) == pytest.approx(plateau(squared).log_value, abs=1e-6)
    assert at_most(record["value"], mean_field.unmasked(unit_layer("negative"), 2, R).value)


def test_three_places_may_be_better_where_scores_are_positive():
    """A = 1, R² = 32: a chain of three places, each far lighter than the one before, beats the best two by 16 %."""
    R = math.sqrt(32)
    atoms = R * torch.tensor([[0.24], [-0.507], [-1.0]], dtype=torch.float64)
    logs = torch.tensor([0.0, -11.42, -19.96], dtype=torch.float64)
    found = mean_field_lipschitz(unit_layer("positive"), (atoms, logs))
    assert less(plateau(4.0, "positive").log_value + 0.14, math.log(found.lower))


def test_the_rate_of_what_is_made_by_formula():
    def records(kind, exponent):
        return [{"scores": kind, "radius_squared": r, "value": 0.4 * math.exp(exponent * r) * (1 + 1.5 * exponent * r)}
                for r in (2.0, 4.0, 6.0, 8.0, 12.0)]
    for kind, exponent in (("negative", 1.0), ("rotation", 0.5), ("positive", 0.125)):
        rate = fit_rate(records(kind, exponent))
        assert rate.exponent == pytest.approx(exponent, rel=1e-4) == pytest.approx(rate.true_exponent, rel=1e-4)
        assert rate.as_record()["gamma"] == {"negative": 1.0, "rotation": 0.0, "positive": 0.125}[kind]
    with pytest.raises(InputError, match="three radii"):
        fit_rate(records("negative", 1.0)[:2])
    with pytest.raises(InputError, match="one kind"):
        fit_rate(records("negative", 1.0) + records("positive", 1.0))


def test_growth_with_the_radius_is_gamma():
    """Fitted on exact plateaus, which ascent reaches: γ, half of what the published upper bound e^{2a} says."""
    records = [{"scores": "negative", "radius_squared": r, "value": math.exp(plateau(r).log_value)}
               for r in range(2, 12)]
    assert fit_rate(records).exponent == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("scores", ["negative", "positive"])
def test_curves_lie_between_their_bounds(scores):
    found = list(regimes([0.5, 3.0, 200.0], [math.log(2), 3.0, 10.0, 92.0, 1e3], scores))
    assert len(found) == 15
    for record in found:
        for name in ("log_upper", "log_theorem1", "log_n_free"):
            assert at_most(record["log_value"], record[name] + 1e-9)
        assert at_most(record["log_at_radius"], record["log_value"] + 1e-9)
        assert at_most(record["log_value"], record["log_plateau"] + 1e-9)
        assert at_most(record["log_two_dirac"], record["log_plateau"] + 1e-9)


def test_masked_constants():
    found = list(masked_constants([1.0, 2.0, math.inf], [0.0, 1.0], n=12, restarts=3, steps=30))
    assert len(found) == 6
    for record in found:
        assert at_most(record["running_mean"] - 1e-9, record["attained"])
        if record["p"] == 1.0:
            assert record["bound"] is None and record["verdict"] == "false"
            assert record["running_mean"] == pytest.approx(sum(1 / i for i in range(1, 13)))
        else:
            assert at_most(record["attained"], record["bound"], tol=1e-9)
    by = {(record["a"], record["p"]): record for record in found}
    assert by[0.0, 2.0]["verdict"] == "false" and less(1.0, by[0.0, 2.0]["attained"])
    assert by[0.0, 2.0]["stated"] == pytest.approx(1.0)
    assert by[1.0, 2.0]["verdict"] == "true" and by[0.0, "inf"]["verdict"] == "true"


def test_refused_scores():
    with pytest.raises(InputError, match="negative, positive, rotation"):
        unit_layer("sideways")
