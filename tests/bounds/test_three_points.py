"""Three points: in the ball, attained, sharp for one head, for every kind of layer."""

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import LayerForm, Refused, heads_together, this_project, three_points
from howsmooth.bounds.three_points import best_three_points
from tests.attention.cases import LAYERS, layer, rotary
from tests.laws.test_bounds_hold import drawn
from tests.tolerances import at_most, less


def turning_head(d: int, **options) -> SelfAttention:
    """One head whose A is a cyclic shift: its leading vectors are orthogonal to their images."""
    eye = torch.eye(d).double()
    return SelfAttention(eye.roll(1, 0), eye, eye, scale=1.0, **options)


@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("name", LAYERS)
def test_the_bound_is_below_the_norm_at_its_tokens(name, n):
    n = 4 if name == "bias table" else n
    f = layer(name)
    if f.window is not None and f.window < 3:
        with pytest.raises(Refused, match="window of 2"):
            three_points.tokens(f, n, 1.5)
        return
    tokens, value = best_three_points(LayerForm(f), n, 1.5, "three_points")
    assert at_most(tokens.norm(dim=-1).max(), 1.5, tol=1e-12)
    truth = float(torch.linalg.matrix_norm(reference.jacobian(f, tokens), 2))
    assert at_most(0.9 * truth, value, truth)
    assert at_most(value, heads_together.upper(f, n, 1.5).value)


@pytest.mark.parametrize("causal", [False, True])
def test_one_head_is_known_up_to_lower_order_terms(causal):
    """Upper ÷ lower tends to (1 + √(2/n))(n/(n−2))^½ as the radius grows; the two-point example misses √2 or more."""
    for n in (8, 64):
        f, radius = turning_head(6, causal=causal), 60.0
        upper, lower = this_project.upper(f, n, radius).value, three_points.lower(f, n, radius).value
        assert less(upper / lower, 1.1 * (1 + math.sqrt(2 / n)) * math.sqrt(n / (n - 2)))
        assert less(1.3 * this_project.two_point_lower(f, n, radius, refine=True).value, lower)


def test_rotary_positions_lose_little():
    """The same head, turned slowly: every row is undecided between the two tokens, though each has an A of its own."""
    angle = torch.arange(64.0).double().unsqueeze(1) * torch.tensor([0.05, 0.01, 0.0]).double()
    angle = torch.cat([angle, angle], 1)
    table = rotary()
    table = type(table)(angle.cos(), angle.sin())
    wide = torch.eye(6, 14).double()
    turned = SelfAttention(wide.roll(7, 1), wide, torch.eye(14).double(), scale=1.0, rotary=table, causal=True)
    n, radius = 40, 40.0
    assert less(this_project.upper(turned, n, radius).value / three_points.lower(turned, n, radius).value, 1.7)


def test_larger_radii_are_worse():
    f = layer("two heads")
    values = [three_points.lower(f, 12, radius).value for radius in (2.0, 10.0, 50.0)]
    assert less(*values)


def test_zeros():
    for q, v in ((0.0, 1.0), (1.0, 0.0)):
        f = SelfAttention(q * torch.eye(2).double(), torch.eye(2).double(), v * torch.eye(2).double())
        for radius in (0.0, 1.0):
            bound = three_points.lower(f, 4, radius)
            assert at_most(bound.value, this_project.upper(f, 4, radius).value)


@pytest.mark.parametrize("n", [1, 2, 1025])
def test_refused_lengths(n):
    with pytest.raises(Refused, match="3 to 1024 tokens"):
        three_points.lower(turning_head(3), n, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_never_above_an_upper_bound(name):
    for seed in range(150):
        n, radius = 4 if name == "bias table" else 3 + seed % 9, [0.1, 0.5, 1.0, 2.0, 5.0, 50.0][seed % 6]
        f = drawn(name, seed, n)
        if f.window is None or f.window > 2:
            assert at_most(three_points.lower(f, n, radius).log_value, heads_together.upper(f, n, radius).log_value)
