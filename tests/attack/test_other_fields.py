"""The ascent on maps other than softmax attention: L2 attention and fields, against dense Jacobians in float64."""

import pytest
import torch

from howsmooth import InputError
from howsmooth.attack import Ball, Near, Sphere, ascend, starts, worst_case
from howsmooth.attention import L2Attention, L2Field, LinearField, SigmoidField, SinkhornField, SoftmaxField
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from tests.attention.cases import normal
from tests.tolerances import assert_close, at_most, less

A, V = 1.5 * normal(1, 3, 3), normal(2, 3, 3)
MAPS = {
    "sinkhorn": SinkhornField(A, V),
    "l2 field": L2Field(A, normal(3, 3, 3), V),
    "sigmoid": SigmoidField(A, V),
    "linear": LinearField(A, V),
    "l2 attention": L2Attention(normal(4, 4, 4), normal(5, 4, 4), normal(6, 4, 4), heads=2),
}


def on_tokens(f):
    return f if isinstance(f, L2Attention) else f.on_tokens


def dense(f, x: torch.Tensor) -> torch.Tensor:
    """Return J by reverse mode through the whole map."""
    return torch.autograd.functional.jacobian(on_tokens(f), x).reshape(-1, x.numel())


def sigma(f, x: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(dense(f, x), 2))


@pytest.mark.parametrize("name", MAPS)
def test_the_gradient_is_that_of_the_dense_norm(name):
    """Central differences of ⟨u, J(x ± tδ)v⟩ of dense Jacobians, for a batch of two inputs."""
    f, t = MAPS[name], 1e-5
    x, delta = normal(7, 2, 4, f.d), normal(8, 2, 4, f.d)
    u, v = normal(9, 2, 4 * f.d), normal(10, 2, 4 * f.d)
    J = AutodiffJacobian(on_tokens(f), x, batched=True, check=False)
    slope = (J.gradient(u, v) * delta).sum((-2, -1))
    for i in range(2):
        ahead, behind = (float(u[i] @ dense(f, x[i] + step * delta[i]) @ v[i]) for step in (t, -t))
        assert_close(slope[i], (ahead - behind) / (2 * t), tol=1e-6)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("constraint", [Ball(1.5), Sphere(1.5)], ids=["ball", "sphere"])
def test_the_ascent_increases_the_constant_and_certifies_it(name, constraint):
    f = MAPS[name]
    x = starts(f, 4, constraint, restarts=3, seed=1)
    assert x.shape == (3, 4, f.d) and x.dtype == torch.float64 and constraint.contains(x, 1e-9)
    found = ascend(f, x, constraint, steps=15)
    assert_close(found.start, [sigma(f, one) for one in x], tol=2e-3)
    true = sigma(f, found.x)
    assert at_most(found.estimate.lower, true * (1 + 1e-9)) and at_most(true, found.estimate.upper * (1 + 1e-9))
    assert at_most(found.value, true * (1 + 1e-9)) and less(1.01 * float(found.start.max()), found.value)
    assert constraint.contains(found.x, 1e-9)


@pytest.mark.parametrize("name", ["sinkhorn", "l2 attention"])
def test_worst_case_and_near(name):
    f = MAPS[name]
    found = worst_case(f, 3, Ball(1.0), restarts=4, steps=10)
    assert found.value == pytest.approx(sigma(f, found.x), rel=2e-3)
    x0 = normal(11, 3, f.d)
    near = worst_case(f, 3, Near(x0, 0.1), restarts=2, steps=5)
    assert less(sigma(f, x0), near.value)


def test_float32_tokens_of_l2_attention_are_certified_in_float64():
    f = L2Attention(*(normal(seed, 4, 4).float() for seed in (4, 5, 6)), heads=2)
    found = worst_case(f, 3, Ball(1.0), restarts=2, steps=5)
    assert found.x.dtype == torch.float64 and found.ends.dtype == torch.float32
    assert found.value == pytest.approx(sigma(f, found.x), rel=2e-3)


def test_a_softmax_field_is_its_layer():
    field = SoftmaxField.of(A, V)
    x = starts(field, 4, Ball(1.0), restarts=3)
    assert_close(x, starts(field.layer, 4, Ball(1.0), restarts=3))
    one, other = (ascend(f, x, Ball(1.0), steps=5).value for f in (field, field.layer))
    assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f, x: ascend(f, x, Ball(1.0), move="both"), "a SelfAttention to move masses, got SinkhornField"),
        (lambda f, x: ascend(f, x, Ball(1.0), masses=torch.ones(4)), "to move masses, got SinkhornField"),
        (lambda f, x: ascend(f, x[:, :2], Ball(1.0)), r"expected tokens of shape \(n, 3\) or \(b, n, 3\)"),
        (lambda f, x: ascend(f, x.half(), Ball(1.0)), "in float32 or float64, got torch.float16"),
        (lambda f, x: ascend(torch.sin, x, Ball(1.0)), "expected a SelfAttention, an L2Attention or a Field"),
    ],
)
def test_refused_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call(MAPS["sinkhorn"], normal(1, 4, 3))
