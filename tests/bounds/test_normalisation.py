"""Normalisation: the exact radius of its image, the exact norm of its derivative, and residual blocks."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attention import Normalisation
from howsmooth.bounds import Refused, this_project
from howsmooth.bounds.normalisation import global_norm, local_norm, radius, residual_block
from tests.attention.cases import normal
from tests.tolerances import assert_close, at_most, less


def searched(norm: Normalisation, starts: int = 60, steps: int = 3000) -> float:
    """The largest |g∘z + b| that ascent finds: z ← √d·unit(projected gradient) never goes down, as |·|² is convex."""
    d, generator = norm.d, torch.Generator().manual_seed(0)
    b = torch.zeros(d, dtype=torch.float64) if norm.bias is None else norm.bias
    z = torch.cat(
        [
            torch.randn(starts, d, dtype=torch.float64, generator=generator),
            torch.eye(d, dtype=torch.float64),
            -torch.eye(d, dtype=torch.float64),
        ]
    )
    for _ in range(steps):
        z = z - z.mean(-1, keepdim=True) if norm.centred else z
        z = math.sqrt(d) * z / z.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        best = float((norm.gain * z + b).norm(dim=-1).max())
        z = norm.gain * (norm.gain * z + b) + 1e-3 * z
    return best


def drawn(seed: int, d: int, centred: bool, spread: float = 1.0, shift: float = 1.0) -> Normalisation:
    gain = normal(seed, d) * (spread * normal(seed + 1, d)).exp()
    return Normalisation(gain, shift * normal(seed + 2, d), centred=centred)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_radius_equals_the_maximum_found_by_ascent(seed, centred):
    norm = drawn(seed, [2, 3, 5, 9][seed % 4], centred, shift=[0.0, 1e-3, 1.0, 30.0][seed // 3])
    exact, found = radius(norm), searched(norm)
    assert at_most(found, exact)
    assert at_most(exact, found, tol=1e-6)
    bias = float(norm.bias.norm())
    assert at_most(exact, math.sqrt(norm.d) * float(norm.gain.abs().max()) + bias)


@pytest.mark.parametrize(
    "norm, expected",
    [
        # The largest gain alone cannot be used if Σz = 0: z = (t, −t/3, −t/3, −t/3), |z| = 2.
        (Normalisation(torch.tensor([3.0, 0, 0, 0]).double()), 3 * math.sqrt(3)),
        (Normalisation(torch.tensor([3.0, 0, 0, 0]).double(), centred=False), 6.0),
        # Hard case: the bias has nothing along the longest axis. 4·(2 − z²) + (z + 1)² is largest at z = 1/3.
        (
            Normalisation(torch.tensor([2.0, 1.0]).double(), torch.tensor([0.0, 1.0]).double(), centred=False),
            math.sqrt(4 * (2 - 1 / 9) + (1 / 3 + 1) ** 2),
        ),
        (Normalisation(torch.ones(4).double(), torch.ones(4).double()), math.sqrt(8)),  # b ⟂ all z
        (Normalisation(torch.ones(3).double(), 2 * torch.ones(3).double(), centred=False), 3 * math.sqrt(3)),
        (Normalisation(torch.zeros(3).double(), torch.ones(3).double()), math.sqrt(3)),
        (Normalisation(torch.ones(1).double(), torch.tensor([-5.0]).double()), 5.0),
        (Normalisation(torch.tensor([1e200, 0.0, 0.0], dtype=torch.float64), centred=False), math.sqrt(3) * 1e200),
    ],
    ids=["centred", "one gain", "hard", "bias across", "equal gains", "no gain", "one channel", "huge"],
)
def test_radius_in_closed_form(norm, expected):
    assert radius(norm) == pytest.approx(expected, rel=1e-12)


def test_outputs_are_inside_the_radius_and_approach_it():
    norm = drawn(3, 6, True)
    outputs = norm(normal(9, 200_000, 6) * 100).norm(dim=-1)
    assert less(0.9 * radius(norm), float(outputs.max()), radius(norm))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_local_norm_is_that_of_the_dense_jacobian(seed, centred):
    d = [1, 2, 3, 7][seed % 4]
    norm = Normalisation(normal(seed, d), normal(seed + 1, d), eps=[1e-5, 0.3][seed // 4], centred=centred)
    x = normal(seed + 2, 6, d) * torch.tensor([1e-6, 1e-3, 0.1, 1, 10, 1e3], dtype=torch.float64).unsqueeze(-1)
    dense = torch.stack([torch.autograd.functional.jacobian(norm, token) for token in x])
    unit = norm.gain.abs().max() / norm.standardise(x)[1].flatten()  # squares are accurate to rounding in these units
    found, truth = local_norm(norm, x) / unit, torch.linalg.matrix_norm(dense, 2) / unit
    assert_close(found, truth, 1e-7)
    assert_close(found.square(), truth.square(), 1e-12)


@pytest.mark.parametrize("gain", [[1.0, 1, 1, 1], [2.0, 2, 1, 1], [0.0, 0, 0, 3], [-2.0, 2, 2, 0]])
@pytest.mark.parametrize("centred", [True, False])
def test_local_norm_with_equal_gains(gain, centred):
    norm, x = Normalisation(torch.tensor(gain).double(), centred=centred), normal(4, 20, 4)
    dense = torch.stack([torch.autograd.functional.jacobian(norm, token) for token in x])
    assert_close(local_norm(norm, x), torch.linalg.matrix_norm(dense, 2), 1e-9)


def test_global_norm_is_attained_at_constant_tokens_and_never_exceeded():
    norm = Normalisation(normal(1, 5), normal(2, 5), eps=1e-3)
    bound = global_norm(norm)
    dense = torch.autograd.functional.jacobian(norm, torch.full((5,), 7.0).double())
    assert bound.value == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-9)
    assert at_most(float(local_norm(norm, normal(3, 5000, 5) * 1e-2).max()), bound.value)
    assert "vacuous" in bound.conditions[0]
    with pytest.raises(Refused, match="eps > 0"):
        global_norm(Normalisation(norm.gain, eps=0.0))
    with pytest.raises(InputError, match="constant token"):
        local_norm(Normalisation(norm.gain, eps=0.0), torch.ones(2, 5))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_residual_blocks_are_below_their_bounds(seed, causal):
    d, n = 4, 5
    f = SelfAttention(*(normal(seed + i, d, d) for i in range(4)), bq=normal(seed + 5, d), heads=2, causal=causal)
    norm, x = Normalisation(normal(seed + 6, d), normal(seed + 7, d)), normal(seed + 8, n, d)

    def measured(block):
        return float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(block, x).reshape(n * d, n * d), 2))

    pre = residual_block(norm, this_project.local(f, norm(x)), x, "pre")
    post = residual_block(norm, this_project.local(f, x), x + f(x), "post")
    norms = measured(lambda x: x + f(norm(x))), measured(lambda x: norm(x + f(x)))
    assert at_most(norms[0], pre.value) and at_most(norms[1], post.value)
    assert less(pre.value, 30 * norms[0]) and less(post.value, 100 * norms[1])  # of the right size
    exact = float(torch.linalg.matrix_norm(f.jacobian(norm(x)).dense(), 2))
    assert at_most(norms[0], residual_block(norm, exact, x).value, pre.value)


def test_residual_block_rejects_lower_bounds():
    norm, x = Normalisation(torch.ones(1)), torch.ones(2, 1)
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"lower bound this_project.lower"):
        residual_block(norm, this_project.lower(SelfAttention(one, one, one), 2, 1.0), x)
    with pytest.raises(InputError, match='"pre" or "post"'):
        residual_block(norm, 1.0, x, "middle")
