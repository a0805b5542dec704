"""L2 attention against a dense reference, and its bounds for all inputs."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention, local_lipschitz
from howsmooth.attention import L2Attention
from howsmooth.bounds import every, kim2021
from tests.attention.cases import normal
from tests.tolerances import assert_close, at_most, less


def drawn(seed: int, d: int = 4, heads: int = 2, size: float = 1.0) -> L2Attention:
    return L2Attention(size * normal(seed, d, d), normal(seed + 1, d, d), normal(seed + 2, 3, d), heads=heads)


def dense(f: L2Attention, x: torch.Tensor) -> torch.Tensor:
    """Head by head, as the paper has it, with W^Q, W^V (d, d/h) and W^O (d, d_out) acting on rows."""
    d, k = f.d, f.d // f.heads
    outputs = []
    for head in range(f.heads):
        wq, wv = (w[head * k : (head + 1) * k].T for w in (f.wq, f.wv))
        y = x @ wq
        scores = -(y[:, None] - y[None]).square().sum(-1) / math.sqrt(d / f.heads)
        outputs.append(torch.softmax(scores, -1) @ x @ wq @ wq.T @ wv / math.sqrt(d / f.heads))
    return torch.cat(outputs, -1) @ f.wo.T


def jacobian(f: L2Attention, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda y: dense(f, y))(x).reshape(-1, x.numel())


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_map_is_that_of_the_paper(heads):
    f, x = drawn(1, heads=heads), normal(9, 5, 4)
    assert_close(f(x), dense(f, x))
    assert_close(f(torch.stack([x, 2 * x])), torch.stack([dense(f, x), dense(f, 2 * x)]))


def test_its_norm_is_measured_by_automatic_differentiation():
    f, x = drawn(1), normal(9, 5, 4)
    estimate = local_lipschitz(f, x, tol=1e-6)
    assert estimate.value == pytest.approx(float(torch.linalg.matrix_norm(jacobian(f, x), 2)), rel=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_bounds_are_valid_in_both_norms(seed, heads):
    f, n = drawn(seed, heads=heads, size=[0.2, 1.0, 4.0][seed % 3]), 1 + seed % 7
    for size in (0.0, 0.1, 1.0, 10.0):
        j = jacobian(f, size * normal(seed + 7, n, 4))
        assert at_most(float(j.abs().sum(1).max()), kim2021.l2_infinity(f, n).value)
        assert at_most(float(torch.linalg.matrix_norm(j, 2)), kim2021.l2_two(f, n).value)


def test_the_published_exponent_is_wrong_by_any_factor():
    """At X = 0 the map is a mean of W^{Vᵀ}W^QW^{Qᵀ}x: of the size of ‖W^Q‖², which no multiple of ‖W^Q‖ bounds."""
    eye, n = torch.eye(2, dtype=torch.float64), 3
    for factor in (10.0, 1000.0):
        size = 100 * factor
        f = L2Attention(size * eye, eye, eye)
        sigma = float(torch.linalg.matrix_norm(jacobian(f, torch.zeros(n, 2, dtype=torch.float64)), 2))
        printed = math.sqrt(n / 2) * (4 * kim2021.inverse_phi(n) + 1) * size  # (Σ ‖W^Q‖² ‖W^V‖²)^½ = ‖W^Q‖
        assert less(factor * printed, sigma)
        assert at_most(sigma, kim2021.l2_two(f, n).value)


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_inverse_of_phi(n):
    x = kim2021.inverse_phi(n)
    assert x * math.exp(x + 1) == pytest.approx(n - 1, abs=1e-12)


def test_invalid_arguments_are_refused():
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="heads that divide d"):
        L2Attention(eye, eye, eye, heads=3)
    with pytest.raises(InputError, match=r"wq and wv of shape \(d, d\)"):
        L2Attention(eye[:1], eye, eye)
    for wrong in ([1.0], torch.tensor(1.0), torch.ones(2)):
        for position, name in enumerate(("wq", "wv", "wo")):
            weights = [eye, eye, eye]
            weights[position] = wrong
            with pytest.raises(InputError, match=rf"L2Attention: expected {name} as a matrix \(out, in\)"):
                L2Attention(*weights)
    for heads in ("a", 1.0, True, None):
        with pytest.raises(InputError, match="heads as a whole number"):
            L2Attention(eye, eye, eye, heads=heads)
    with pytest.raises(InputError, match=r"shape \(d, d\)"):
        L2Attention(eye[:0, :0], eye[:0, :0], eye[:, :0])
    for tokens in ([[1.0, 2.0]], torch.ones(3, 2, dtype=torch.int64)):
        with pytest.raises(InputError, match=r"tokens as a tensor of a floating dtype, got (list|torch.int64)"):
            L2Attention(eye, eye, eye)(tokens)
    with pytest.raises(InputError, match="one floating dtype"):
        L2Attention(eye, eye.float(), eye)
    with pytest.raises(InputError, match="finite weights"):
        L2Attention(eye, eye, math.nan * eye)
    with pytest.raises(InputError, match=r"\(n, 2\)"):
        L2Attention(eye, eye, eye)(torch.zeros(3, 3))
    with pytest.raises(InputError, match=r"L2Attention \(tied W\^K = W\^Q\), got SelfAttention"):
        kim2021.l2_two(SelfAttention(eye, eye, eye), 3)
    assert [bound.norm for bound in every(L2Attention(eye, eye, eye), 3, 1.0)] == ["∞", "2"]
