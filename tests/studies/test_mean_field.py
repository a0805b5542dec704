"""Exact curves are between their bounds, and masked constants above the attained values."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.lipschitz import mean_field_lipschitz, plateau
from howsmooth.lipschitz.three_points import three_point_plateau
from howsmooth.studies.mean_field import masked_constants, regimes, unit_layer
from tests.tolerances import at_most, less


def test_the_bound_for_all_n_is_the_best_that_is_proved():
    """For A = +1 the bound with the right rate in R is smaller by orders of magnitude, for A = −1 the other one."""
    (positive,), (negative,) = (list(regimes([2.0], [math.log(2)], scores)) for scores in ("positive", "negative"))
    assert math.exp(positive["log_n_free"]) == pytest.approx(1685.71, rel=1e-5)
    assert math.exp(negative["log_n_free"]) == pytest.approx(24.1672, rel=1e-5)
    assert less(math.exp(positive["log_three_points"]), 25.2) and less(25.1, math.exp(positive["log_three_points"]))


def test_three_points_exceed_two_where_scores_are_positive():
    """A = 1, R² = 32: three points, each far lighter than the one before, exceed the best two by 68 %."""
    R = math.sqrt(32)
    atoms = torch.tensor([[R], [-3.07947644], [-R]], dtype=torch.float64)
    logs = torch.tensor([0.0, -27.11765531, -35.31015373], dtype=torch.float64)
    found = mean_field_lipschitz(unit_layer("positive"), (atoms, logs))
    assert less(plateau(4.0, "positive").log_value + math.log(1.68), math.log(found.lower))
    assert three_point_plateau(4.0, "positive") == pytest.approx(math.log(found.value), abs=1e-6)


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
        assert at_most(record["log_plateau"], record["log_three_points"] + 1e-9)
        assert at_most(record["log_three_points"], record["log_n_free"] + 1e-9)


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


def test_the_published_masked_bound_is_exceeded_where_equal_tokens_do_not_exceed_it():
    """At a = 0.17 the statement, 2.12, is above Hardy's 2 but below what alternating tokens approach."""
    (record,) = masked_constants([2.0], [0.17], n=4, restarts=2, steps=5)
    assert record["verdict"] == "false" and less(2.0, record["stated"], record["limit"])
    assert record["attained"] == record["limit"]  # exact: the largest of three is copied


def test_unknown_scores_are_refused():
    with pytest.raises(InputError, match="negative, positive, rotation"):
        unit_layer("sideways")
