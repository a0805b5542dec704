"""Two points: the closed form against the dense Jacobian, and the quality of the points."""

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import Refused, this_project, two_points
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.two_points import RepeatedToken, best_two_points, candidates
from tests.attention.cases import normal, rotary
from tests.bounds.test_published import EYE, with_form
from tests.tolerances import assert_close, at_most, less


def drawn(seed: int, causal: bool, out: bool = True) -> SelfAttention:
    return SelfAttention(
        normal(seed, 8, 3),
        normal(seed + 1, 4, 3),
        normal(seed + 2, 2, 3),
        normal(seed + 3, 5, 4) if out else None,
        bq=normal(seed + 4, 8),
        bk=normal(seed + 5, 4),
        heads=2,
        kv_heads=1,
        scale=-0.4 if seed % 3 == 0 else 0.7,
        causal=causal,
    )


def column(f: SelfAttention, y, z, n: int) -> torch.Tensor:
    """The dense derivative in the isolated token, the first one; without a mask the output at that token is omitted."""
    x = torch.cat([y[None], z.expand(n - 1, -1)])
    j = reference.jacobian(f, x)[:, : f.d]
    return j if f.causal else j[f.d_out :]


@pytest.mark.parametrize("out", [True, False], ids=["projected", "concatenated"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_closed_form_is_the_dense_derivative(seed, causal, out):
    f, n = drawn(seed, causal, out), 2 + seed
    y, z, e = normal(seed + 6, 3, 7, 3)
    derivative = RepeatedToken(LayerForm(f), n).derivative(y, z)
    for i in range(7):
        j = column(f, y[i], z[i], n)
        assert_close(derivative.gain(e)[i], (j @ e[i]).norm() / e[i].norm())
        assert_close(derivative.size[i, 0] ** 2 * derivative.power_step(e)[i], j.T @ (j @ e[i]))


def test_large_radii_do_not_overflow():
    """A a rotation by 90°, y = −z: Δ = 0, and the norm of (y − z)⟨Az, ε⟩ is 2R², whose square exceeds float64."""
    rotation, n, far = torch.tensor([[0.0, -1], [1, 0]]).double(), 5, 1e100
    z = far * EYE[:1]
    gain, e = RepeatedToken(LayerForm(with_form(rotation)), n).derivative(-z, z).norm()
    assert float(gain) == pytest.approx(math.sqrt(n - 1) / n * (1 - 1 / n) * 2 * far**2, rel=1e-12)
    assert_close(e.abs(), EYE[1:])


@pytest.mark.parametrize("causal", [False, True])
def test_the_bound_is_the_norm_of_that_derivative(causal):
    for seed in range(8):
        f, n = drawn(seed, causal), 3 + 5 * seed
        y, z = two_points(f, n, 1.5)
        truth = float(torch.linalg.matrix_norm(column(f, y, z, n), 2))
        assert this_project.two_point_lower(f, n, 1.5).value == pytest.approx(truth, rel=1e-3)
        assert at_most(this_project.two_point_lower(f, n, 1.5).value, truth)


def test_a_single_token_attends_to_itself():
    f = drawn(1, False)
    truth = sum(f.head(i).wo @ f.head(i).wv for i in range(2))
    assert this_project.two_point_lower(f, 1, 1.0).value == pytest.approx(
        float(torch.linalg.matrix_norm(truth, 2)), rel=1e-3
    )


@pytest.mark.parametrize("causal", [False, True])
def test_not_below_the_closed_form_bound_of_one_head(causal):
    for seed in range(20):
        f = with_form(normal(seed, 3, 3), normal(seed + 1, 3, 3), causal=causal)
        n, radius = 2 + 7 * (seed % 6), [0.3, 1.0, 3.0, 10.0][seed % 4]
        single = this_project.lower(f, n, radius).value
        # The radius of the single pair is searched more finely.
        assert at_most(0.97 * single, this_project.two_point_lower(f, n, radius).value)


def test_candidates_are_in_the_ball_and_cover_every_head():
    f = drawn(2, True)
    for n, radius in ((2, 0.0), (5, 0.2), (1000, 40.0)):
        y, z = candidates(LayerForm(f), n, radius)
        assert y.shape == z.shape and y.shape[1:] == (f.heads, f.d)
        assert at_most(float(torch.cat([y, z]).norm(dim=-1).max()), radius)


@pytest.mark.parametrize("causal", [False, True])
def test_large_radii_use_orthogonal_differences(causal):
    """For a rotation A, opposite points have Δ = 0; with y − z orthogonal to Az the norm still grows like R²."""
    f = with_form(torch.tensor([[0.0, -1], [1, 0]]).double(), causal=causal)
    n = 100
    for radius in (10.0, 100.0):
        assert less(0.1 * this_project.upper(f, n, radius).value, this_project.two_point_lower(f, n, radius).value)


def test_refinement_never_lowers_the_bound_and_can_raise_it():
    gains = []
    for seed in range(3):
        form = LayerForm(drawn(seed, bool(seed % 2)))
        plain, refined = (best_two_points(form, 30, 1.0, refine)[2] for refine in (False, True))
        gains.append(refined / plain)
    assert min(gains) >= 1 - 1e-12 and max(gains) > 1.02


def test_biases_of_both_signs():
    """With c the two signs of u differ; the better one is found."""
    for sign in (1.0, -1.0):
        f = with_form(-0.1 * EYE, bq=sign * torch.tensor([2.0, 0.0]).double())
        assert this_project.two_point_lower(f, 50, 1.0).value == pytest.approx(
            this_project.two_point_lower(with_form(-0.1 * EYE, bq=torch.tensor([2.0, 0.0]).double()), 50, 1.0).value
        )


def test_zero_scores():
    f = with_form(0 * EYE)
    assert this_project.two_point_lower(f, 5, 1.0).value == pytest.approx(math.sqrt(4) / 5)


def test_layers_without_bilinear_scores_are_refused():
    rotated = SelfAttention(*(normal(i, 4, 4) for i in range(3)), rotary=rotary())
    for f, message in (
        (rotated, "one A for all positions"),
        (with_form(EYE, softcap=1.0), "bilinear"),
        (with_form(EYE, window=2), "window"),
    ):
        with pytest.raises(Refused, match=message):
            two_points(f, 5, 1.0)
