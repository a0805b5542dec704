"""Quotients of distances tend to the local constant along the worst direction, with masses, times and any exponent."""

import math

import pytest
import torch

from howsmooth import InputError
from howsmooth.attention import MeanPooling, SoftmaxField
from howsmooth.attention.weighted import WeightedAttention
from howsmooth.lipschitz import lipschitz_quotients
from howsmooth.transport import TimedMeasure, TokenMeasure
from tests.attention.cases import normal
from tests.attention.dense_fields import FIELDS, D, layer
from tests.tolerances import less

X, W = 0.5 * normal(1, 5, D), torch.softmax(normal(2, 5), 0)
ETAS = (1e-1, 1e-3, 1e-5, 1e-7)


def worst(f, x, log_weights) -> tuple[float, torch.Tensor]:
    """σ₁ in the norm of the masses by a dense SVD, and the displacement that attains it."""
    _, s, v = torch.linalg.svd(WeightedAttention(f).jacobian(x, log_weights).dense())
    return float(s[0]), v[0].view(x.shape) / (log_weights / 2).exp().unsqueeze(1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_quotients_along_the_worst_direction_tend_to_the_constant(masked, equal):
    f = layer(causal=masked)
    mu = (TimedMeasure.from_sequence if masked else TokenMeasure)(X, None if equal else W)
    sigma, direction = worst(f, X, mu.log_weights)
    found = lipschitz_quotients(SoftmaxField(f), mu, direction, ETAS)
    assert found.slope == pytest.approx(sigma, rel=1e-10)
    assert found.distance == ("d" if masked else "W")
    assert found.before[-1] == pytest.approx(ETAS[-1], rel=1e-7)
    errors = found.errors
    assert errors[-1] < 1e-6 and less(errors[3], errors[2], errors[1])  # to the first order in η, then rounding
    other = lipschitz_quotients(SoftmaxField(f), mu, normal(9, 5, D), ETAS)
    assert less(other.slope, 0.9 * sigma) and other.errors[-1] < 1e-6


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_every_field_and_exponent(name, p):
    """With ties in time and duplicated atoms: slices of several atoms."""
    times = torch.tensor([0.2, 0.2, 0.7, 0.7, 0.7], dtype=torch.float64)
    for mu in (TokenMeasure(X, W), TimedMeasure(times, X, W)):
        found = lipschitz_quotients(FIELDS[name], mu, normal(3, 5, D), ETAS, p)
        assert found.errors[-1] < 1e-6
        assert found.as_record()["p"] == ("inf" if math.isinf(p) else p)


def test_one_token_in_ten_to_the_forty():
    """Two atoms with masses 1 : 10⁴⁰: the light one moves by 10²⁰ η, and the constant is of the order 10²⁰."""
    one = torch.ones(1, 1, dtype=torch.float64)
    f = SoftmaxField.of(-one, one)
    log = -40 * math.log(10)
    r = math.sqrt(-log / 2)  # a mass of e^{−2R²}
    mu = TokenMeasure([[r], [-r]], log_weights=[log, 0.0])
    sigma, direction = worst(f.layer, mu.points, mu.log_weights)
    found = lipschitz_quotients(f, mu, direction, [1e-24, 1e-26, 1e-28])
    assert sigma > 1e20
    assert found.slope == pytest.approx(sigma, rel=1e-9)
    assert found.errors[1] < 1e-5


def test_refusals():
    mu, mean = TokenMeasure(X), MeanPooling(torch.eye(D, dtype=torch.float64))
    for wrong, message in (
        ((mean, mu, 0 * X), "positive, finite norm"),
        ((mean, mu, X[:2]), "direction of shape"),
        ((mean, mu, X, []), "η > 0"),
        ((mean, mu, X, [-1.0]), "η > 0"),
        ((mean, mu, X, [1e-300]), "larger steps"),
        ((mean, mu, X, [0.1], 0.3), "p ≥ 1"),
        ((mean, X, X), "TokenMeasure or TimedMeasure"),
    ):
        with pytest.raises(InputError, match=message):
            lipschitz_quotients(*wrong)
