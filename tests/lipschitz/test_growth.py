import math

import numpy as np
import pytest

from howsmooth import InputError
from howsmooth.lipschitz import fit_growth


def test_an_exact_power_law_comes_back():
    fit = fit_growth([8, 16, 64, 512], [3.0 * n**0.3 for n in (8, 16, 64, 512)])
    assert math.isclose(fit.exponent, 0.3) and math.isclose(fit.constant, 3.0)
    assert fit.exponent_error < 1e-12 and fit.points == 4
    assert math.isclose(fit.at(100), 3.0 * 100**0.3)


def test_the_standard_error_covers_the_truth_as_often_as_it_should():
    rng, ns, hits = np.random.default_rng(0), np.repeat([32, 64, 128, 256, 512], 4), 0
    for _ in range(400):
        fit = fit_growth(ns, ns**0.25 * np.exp(0.1 * rng.standard_normal(len(ns))))
        hits += abs(fit.exponent - 0.25) <= fit.exponent_error
    assert 0.60 <= hits / 400 <= 0.75  # one standard error: 68 %


def test_two_points_have_no_error_bar():
    assert math.isnan(fit_growth([16, 64], [1.0, 2.0]).exponent_error)


@pytest.mark.parametrize(("ns", "values"), [([4, 4], [1, 2]), ([4, 8], [1]), ([4, 8], [1, 0]), ([4, 8], [1, math.inf])])
def test_what_has_no_power_law_is_refused(ns, values):
    with pytest.raises(InputError, match="expected"):
        fit_growth(ns, values)
