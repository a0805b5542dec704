"""Families of measures whose splitting ratio tends to a known value."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.attention.fields import L2Field, SoftmaxField
from howsmooth.lipschitz.criterion import criterion
from howsmooth.lipschitz.splitting_cases import ill_conditioned_measure, opposite_l2_measure
from tests.tolerances import at_most, less

ONE = torch.ones(1, 1, dtype=torch.float64)


def evaluated(field, measure):
    points, log_masses = (torch.tensor(part, dtype=torch.float64) for part in measure)
    return criterion(field, points, log_masses)


def test_opposite_l2_splits_without_bound():
    """The ratio is ½e^{t/2}; the heavy atom's own derivative is ½ at every distance."""
    for distance in (2.0, 3.0, 4.0, 5.0):
        measure = opposite_l2_measure(distance)
        found = evaluated(L2Field(ONE, -ONE, ONE), measure)
        assert float(found.own.max()) == pytest.approx(0.5, abs=1e-9)
        assert found.ratio == pytest.approx(0.5 * math.exp(measure[1][1] / 2), rel=1e-4)


def test_a_measure_of_opposite_l2_that_a_search_in_float64_missed():
    found = evaluated(L2Field(ONE, -ONE, ONE), ([[-2.10422943], [1.97991267]], [-19.83460483, 0.0]))
    assert found.ratio == pytest.approx(10_129, abs=1)


@pytest.mark.parametrize("condition", [10.0, 100.0, 1000.0])
def test_the_ratio_for_positive_definite_scores_tends_to_its_limit(condition):
    field = SoftmaxField.of(torch.diag(torch.tensor([1.0, 1 / condition], dtype=torch.float64)), torch.eye(2).double())
    ratios = [evaluated(field, ill_conditioned_measure(condition, size)).ratio for size in (10.0, 100.0, 1000.0)]
    limit = (1 + condition) / (2 * math.sqrt(condition))
    assert at_most(*ratios, limit) and less(limit * (1 - 1e-4), ratios[-1])
