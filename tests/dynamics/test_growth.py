"""The derivative of a flow, against dense Jacobians of the same scheme, and the growth of perturbations."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.attention import SoftmaxField
from howsmooth.dynamics import (
    FlowDerivative,
    Velocity,
    growth_through,
    integrate,
    local_constant,
    perturbation_growth,
    stack,
    steps_of,
    unstack,
    with_tangents,
)
from howsmooth.errors import InputError
from tests.dynamics.fields import every_kind, normal
from tests.tolerances import assert_close, at_most

N, D = 4, 2


def dense(f, x: torch.Tensor) -> torch.Tensor:
    """Return the dense Jacobian by reverse mode."""
    return torch.func.jacrev(f)(x).reshape(-1, x.numel())


def whole(chain):
    def through(x):
        for step in chain:
            x = step(x)
        return x

    return through


CASES = [(name, "residual", False) for name in every_kind(D)] + [
    ("softmax", "rk4", False),
    ("two heads", "rk4", True),
    ("linear", "residual", True),
]


@pytest.mark.parametrize("name, scheme, sphere", CASES)
def test_derivative_of_the_scheme(name, scheme, sphere):
    x = normal(N, D)
    chain = steps_of(Velocity(every_kind(D)[name], sphere=sphere), 1.0, 2, scheme)
    truth, J = dense(whole(chain), x), FlowDerivative(chain, x)
    assert_close(J.dense(), truth, 1e-8)  # Sinkhorn's fixed point is the loosest
    assert_close(torch.stack([J.rmatvec(u) for u in torch.eye(N * D, dtype=torch.float64)]), truth, 1e-8)


def test_variational_equation():
    """A perturbation integrated with the tokens agrees with the limit of fine steps and with a finite difference."""
    x, v = normal(N, D), normal(N, D, seed=1)
    for weights in (
        every_kind(D)["two heads"],
        lambda t: SoftmaxField.of((1 + t) * torch.eye(D).double(), torch.eye(D).double()),
    ):
        velocity = Velocity(weights, sphere=True, drift=lambda t, x: t * torch.sin(x))
        both = integrate(with_tangents(velocity), stack(x, v), 1.0, solver="dop853", rtol=1e-10, atol=1e-11, frames=2)
        end, pushed = unstack(both.last)
        assert_close(end, integrate(velocity, x, 1.0, solver="dop853", rtol=1e-10, atol=1e-11, frames=2).last, 1e-9)
        eta = 1e-5
        ends = [
            integrate(velocity, x + s * eta * v, 1.0, solver="dop853", rtol=1e-12, atol=1e-13, frames=2).last
            for s in (1, -1)
        ]
        assert_close(pushed, (ends[0] - ends[1]) / (2 * eta), 1e-6)
    gaps = []
    velocity = Velocity(every_kind(D)["softmax"])
    both = integrate(
        with_tangents(velocity, 2), stack(x, v, 2 * v), 1.0, solver="dop853", rtol=1e-12, atol=1e-13, frames=2
    )
    _, once, twice = unstack(both.last, 2)
    assert_close(twice, 2 * once, 1e-8)
    for steps in (8, 16):
        J = FlowDerivative(steps_of(velocity, 1.0, steps, "rk4"), x)
        gaps.append(float((J.matvec(v.flatten()) - once.flatten()).norm()))
    assert math.log2(gaps[0] / gaps[1]) == pytest.approx(4, abs=0.4)


def test_a_list_of_layers_has_a_variational_equation():
    x, v = normal(N, D), normal(N, D, seed=1)
    layers = [every_kind(D)["softmax"], every_kind(D)["l2"]]
    both = integrate(with_tangents(layers), stack(x, v), 1.0, solver="dop853", rtol=1e-10, atol=1e-12, frames=2)
    J = FlowDerivative(steps_of(layers, 1.0, 60, "rk4"), x)
    assert_close(unstack(both.last)[1].flatten(), J.matvec(v.flatten()), 1e-6)


@pytest.mark.parametrize("dense_limit", [0, 256], ids=["matrix-free", "multiplied out"])
def test_growth_against_dense_singular_values(monkeypatch, dense_limit):
    monkeypatch.setattr("howsmooth.dynamics.growth.MAX_DENSE_COORDINATES", dense_limit)
    x, field = normal(N, D), every_kind(D)["softmax"]
    found = perturbation_growth(field, x, 2.0, steps=6, depths=3, tol=1e-6)
    chain = steps_of(field, 2.0, 6)
    states = FlowDerivative(chain, x).states
    assert [g.maps for g in found] == [2, 4, 6] and found[-1].depth == pytest.approx(2.0)
    for g in found:
        truth = torch.linalg.matrix_norm(dense(whole(chain[: g.maps]), x), 2)
        assert at_most(g.lower, float(truth), tol=1e-9) and at_most(float(truth), g.upper, tol=1e-9)
        assert g.value == pytest.approx(float(truth), rel=1e-5)
        product = sum(math.log(torch.linalg.matrix_norm(dense(chain[k], states[k]), 2)) for k in range(g.maps))
        assert g.log_product == pytest.approx(product, abs=1e-4) and at_most(g.value, g.product, tol=1e-6)
        local = torch.linalg.matrix_norm(dense(field.on_tokens, states[g.maps]), 2)
        assert g.local == pytest.approx(float(local), rel=1e-4)
        moved = whole(chain[: g.maps])
        eta = 1e-6
        change = (moved(x + eta * g.direction) - moved(x - eta * g.direction)).norm() / (2 * eta)
        assert float(change) == pytest.approx(g.value, rel=1e-3)
    assert found[-1].as_record()["dtype"] == "float64"


@pytest.mark.parametrize("name", every_kind(D))
def test_local_constant_of_every_kind(name):
    field, x = every_kind(D)[name], normal(5, D)
    truth = float(torch.linalg.matrix_norm(dense(field.on_tokens, x), 2))
    found = local_constant(field, x, tol=1e-5)
    assert at_most(float(found.lower[0]), truth, tol=1e-7) and at_most(truth, float(found.upper[0]), tol=1e-7)


def test_the_product_bounds_the_flow_with_clustered_singular_values():
    """Each estimate is slightly below its σ₁ = 1; a product of forty estimates would be below σ₁ of the chain."""
    D = torch.linspace(0.95, 1, 400, dtype=torch.float64)[:, None]
    (grown,) = growth_through([lambda x: D * x] * 40, normal(400, 1), [40])
    assert grown.product >= 1 >= grown.value and grown.status == "converged"
    (loose,) = growth_through([lambda x: D.float() * x] * 2, normal(400, 1).float(), [2], tol=1e-7)
    assert loose.status != "converged"


def test_any_chain_of_maps():
    x = normal(3, 2)
    maps = [lambda x: 3 * x, lambda x: x.flip(0), lambda x: x @ torch.diag(torch.tensor([2.0, 0.1]).double())]
    found = growth_through(maps, x)
    assert [g.value for g in found] == pytest.approx([3.0, 3.0, 6.0], abs=1e-6) and found[0].local is None


def test_bad_input():
    x = normal(3, 2)
    for until in (0, -1, math.inf):
        with pytest.raises(InputError, match="until as a positive number"):
            perturbation_growth([lambda x: x], x, until)
    with pytest.raises(InputError, match="at least one map"):
        FlowDerivative([], x)
    with pytest.raises(InputError, match="depends on the tokens"):
        FlowDerivative([lambda x: x.detach()], x)
    with pytest.raises(InputError, match="after map 1"):
        FlowDerivative([lambda x: x, lambda x: x / 0], x)
    with pytest.raises(InputError, match="from 1 to 4 depths"):
        perturbation_growth([lambda x: x], x, 1.0, steps=4, depths=9)
    with pytest.raises(InputError, match="positive number of steps"):
        perturbation_growth([lambda x: x], x, 1.0, steps=0)
