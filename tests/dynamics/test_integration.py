"""Integrators: order of convergence, closed forms, laws of the flow, blow-ups, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from howsmooth.attention import LinearField, SelfAttention, SoftmaxField
from howsmooth.dynamics import Velocity, integrate
from howsmooth.dynamics.declaration import SOLVERS
from howsmooth.dynamics.velocity import tangent
from howsmooth.errors import InputError
from tests.dynamics.fields import every_kind, normal
from tests.tolerances import assert_close, close

EYE = torch.eye(2, dtype=torch.float64)
SOFTMAX = SoftmaxField.of(EYE, torch.tensor([[0.3, -1.0], [1.0, 0.2]], dtype=torch.float64))
ADAPTIVE = ("rk45", "dop853", "lsoda", "radau", "torchdiffeq")


def turning(t: float) -> SoftmaxField:
    """Weights that depend on depth."""
    c, s = math.cos(t), math.sin(t)
    return SoftmaxField.of(EYE, torch.tensor([[c, -s], [s, c]], dtype=torch.float64))


@pytest.mark.parametrize("sphere", [False, True])
@pytest.mark.parametrize("scheme, order", [("residual", 1), ("rk4", 4)])
@pytest.mark.parametrize("weights", [SOFTMAX, turning], ids=["constant", "turning"])
def test_order_of_convergence(weights, scheme, order, sphere):
    x = normal(5, 2)
    velocity = Velocity(weights, sphere=sphere)
    truth = integrate(velocity, x, 1.0, solver="dop853", rtol=1e-12, atol=1e-13, frames=2).last
    gaps = [
        float((integrate(velocity, x, 1.0, solver=scheme, steps=steps, frames=2).last - truth).norm())
        for steps in (16, 32, 64)
    ]
    observed = [math.log2(a / b) for a, b in itertools.pairwise(gaps)]
    assert observed[-1] == pytest.approx(order, abs=0.15), observed


@pytest.mark.parametrize("solver", ADAPTIVE)
def test_adaptive_solvers_agree_with_a_closed_form(solver):
    # Mean pooling with the token itself left alone: x' = V x, whatever attention would do.
    V = torch.tensor([[-0.5, 1.0], [-1.0, -0.5]], dtype=torch.float64)
    x = normal(4, 2)
    found = integrate([lambda x: x @ V.mT], x, 2.0, solver=solver, rtol=1e-9, atol=1e-11, frames=[0.0, 0.7, 2.0])
    assert found.status == "finished" and found.times.tolist() == [0.0, 0.7, 2.0]  # exact: times as asked for
    for t, state in zip(found.times.tolist(), found.tokens, strict=True):
        assert_close(state, x @ torch.linalg.matrix_exp(t * V).mT, 1e-6)


@pytest.mark.parametrize("name", every_kind(2))
def test_every_kind_of_attention_is_permutation_equivariant(name):
    field, x = every_kind(2)[name], normal(6, 2)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    found = integrate(field, x, 0.5, rtol=1e-8, frames=2)
    assert found.status == "finished"
    step = integrate(field, x, 1e-6, solver="residual", steps=1, frames=2)
    assert_close((step.last - x) / 1e-6, field.on_tokens(x), 1e-9)
    permuted = integrate(field, x[order], 0.5, rtol=1e-8, frames=2).last
    if name == "masked":  # place matters there, and the first token sees nobody else
        alone = integrate(field, x[:1], 0.5, rtol=1e-8, frames=2).last
        assert_close(found.last[:1], alone, 1e-6)
    else:
        assert_close(permuted, found.last[order], 1e-6)


def test_closed_forms_of_sinkhorn_and_masked_attention():
    """Sinkhorn attention is doubly stochastic, so the mean obeys m' = Vm; with a mask the first token obeys x' = Vx."""
    fields, x = every_kind(2), normal(6, 2)
    V = fields["sinkhorn"].V
    found = integrate(fields["sinkhorn"], x, 0.5, rtol=1e-8, atol=1e-10, frames=2).last
    assert_close(found.mean(0), torch.linalg.matrix_exp(0.5 * V) @ x.mean(0), 1e-6)
    masked = integrate(fields["masked"], x, 0.5, rtol=1e-9, atol=1e-11, frames=2).last
    assert_close(masked[0], torch.linalg.matrix_exp(0.5 * fields["masked"].layer.wv) @ x[0], 1e-7)


def test_tokens_stay_on_their_spheres():
    x = normal(6, 3)
    radii = x.norm(dim=-1)
    field = every_kind(3)["softmax"]
    exact = integrate(Velocity(field, sphere=True), x, 5.0, rtol=1e-9, atol=1e-11, frames=2).last
    assert_close(exact.norm(dim=-1), radii, 1e-7)
    layers = integrate(Velocity(field, sphere=True), x, 5.0, solver="residual", steps=10, frames=2).last
    assert_close(layers.norm(dim=-1), radii)  # layer normalisation is exact at every step
    assert_close((tangent(x, field.on_tokens(x)) * x).sum(-1), torch.zeros(6, dtype=torch.float64))


def test_layers_of_a_list_have_equal_parts_of_the_depth():
    x = normal(3, 2)
    layers = [lambda x: x, lambda x: -2 * x]
    for solver in ("rk45", "torchdiffeq"):
        found = integrate(layers, x, 2.0, solver=solver, rtol=1e-10, atol=1e-12, frames=[1.0, 2.0])
        assert_close(found.tokens[0], x * math.e, 1e-7)
        assert_close(found.tokens[1], x * math.exp(-1), 1e-7)
    residual = integrate(layers, x, 2.0, solver="residual", steps=2, frames=2)
    assert_close(residual.last, -2 * x)  # (1 + 1)(1 − 2)
    rk4 = integrate(layers, x, 2.0, solver="rk4", steps=200, frames=2)
    assert_close(rk4.last, x * math.exp(-1), 1e-8)  # no stage looks across the jump


def test_a_drift_is_added():
    x = normal(3, 2)
    found = integrate(Velocity([lambda x: -x], drift=lambda t, x: x + t), x, 1.0, rtol=1e-9, frames=2)
    assert_close(found.last, x + 0.5, 1e-8)


@pytest.mark.parametrize("solver", [*ADAPTIVE, "residual", "rk4"])
def test_a_blow_up_is_located_and_the_trajectory_kept(solver):
    # Linear attention of one token on the line: x' = x³, so that x² = 1/(1 − 2t).
    field = LinearField(*(torch.ones(1, 1, dtype=torch.float64),) * 2)
    x = torch.ones(1, 1, dtype=torch.float64)
    steps = 2000 if solver in ("residual", "rk4") else None
    found = integrate(field, x, 1.0, solver=solver, steps=steps, frames=[0.0, 0.25, 0.9])
    assert found.status == "blew up" and found.token == 0 and "sphere" in found.remedy
    assert found.reached == pytest.approx(0.5, rel=0.02 if solver == "residual" else 0.002)
    assert found.times.tolist()[:2] == pytest.approx([0.0, 0.25])
    assert float(found.tokens[1]) == pytest.approx(2**0.5, rel=2e-3)
    assert torch.isfinite(found.tokens).all() and len(found.times) == 3


def test_the_token_that_blows_up_is_named():
    x = torch.tensor([[0.5], [0.1], [2.0], [0.2]], dtype=torch.float64)
    found = integrate([lambda x: x**3], x, 1.0)
    assert found.token == 2 and found.reached == pytest.approx(1 / 8, rel=1e-3)


def test_exponential_growth_is_no_blow_up():
    found = integrate(SoftmaxField.of(EYE, EYE), normal(5, 2), 40.0)
    assert found.status == "finished" and float(found.last.norm()) > 1e15


@pytest.mark.parametrize("solver, steps", [("rk45", None), ("residual", 50)])
def test_an_interruption_keeps_the_trajectory(solver, steps):
    def stop(t):
        if t > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        integrate([lambda x: -x], normal(3, 2), 1.0, solver=solver, steps=steps, frames=11, progress=stop)
    partial = stopped.value.partial
    assert partial.status == "interrupted" and 0 < partial.reached < 1 and len(partial.tokens) == len(partial.times) > 2
    assert partial.ending.startswith("interrupted at depth 0.") and partial.remedy


def test_a_step_limit_keeps_the_trajectory():
    for solver in ("rk45", "torchdiffeq"):
        found = integrate(SOFTMAX, normal(5, 2), 100.0, solver=solver, max_steps=5, frames=101)
        assert found.status == "step limit" and 0 < found.reached < 100 and "max_steps" in found.remedy


def test_noise_is_brownian_and_seeded():
    x = torch.zeros(4000, 2, dtype=torch.float64)
    still = [lambda x: 0 * x]
    found = integrate(still, x, 4.0, solver="residual", steps=8, noise=0.5, seed=3, frames=2)
    assert float(found.last.var()) == pytest.approx(0.25 * 4.0, rel=0.05)
    again = integrate(still, x, 4.0, solver="residual", steps=8, noise=0.5, seed=3, frames=2)
    other = integrate(still, x, 4.0, solver="residual", steps=8, noise=0.5, seed=4, frames=2)
    assert close(found.last, again.last) and not close(found.last, other.last)
    ball = normal(50, 3)
    on_sphere = integrate(Velocity([lambda x: 0 * x], sphere=True), ball, 1.0, solver="residual", steps=5, noise=1.0)
    assert_close(on_sphere.last.norm(dim=-1), ball.norm(dim=-1))


def test_float32_on_torch_solvers():
    x = normal(4, 2).float()
    found = integrate([lambda x: -x], x, 1.0, solver="torchdiffeq", rtol=1e-5, frames=2)
    assert found.dtype == torch.float32
    assert_close(found.last, x * math.exp(-1), 1e-4)
    with pytest.raises(InputError, match="torchdiffeq"):
        integrate([lambda x: -x], x, 1.0)


def test_a_record_has_plain_values():
    record = integrate([lambda x: -x], normal(4, 2), 1.0).as_record()
    assert record["n"] == 4 and record["d"] == 2 and record["dtype"] == "float64" and record["solver"] == "rk45"
    assert all(not isinstance(value, (torch.Tensor, np.generic)) for value in record.values())


WIDE = SelfAttention(EYE, EYE, torch.ones(3, 2, dtype=torch.float64))
X = normal(4, 2)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: integrate(WIDE, X, 1.0), "square"),
        (lambda: integrate([WIDE], X, 1.0), "square"),
        (lambda: integrate(lambda t: WIDE, X, 1.0), "square"),
        (lambda: SoftmaxField.of(EYE, EYE * math.nan), "finite"),
        (lambda: integrate([lambda x: x / 0], X, 1.0), "finite velocity"),
        (lambda: integrate(SOFTMAX, X * math.inf, 1.0), "token 0"),
        (lambda: integrate(SOFTMAX, X, -1.0), "until"),
        (lambda: integrate(SOFTMAX, X, math.nan), "until"),
        (lambda: integrate(SOFTMAX, X, 1.0, solver="euler"), "solver among"),
        (lambda: integrate(SOFTMAX, X, 1.0, solver="rk4"), "expected a number of steps for the solver rk4"),
        (lambda: integrate(SOFTMAX, X, 1.0, steps=3), "only with the solvers residual and rk4"),
        (lambda: integrate([SOFTMAX, SOFTMAX], X, 1.0, solver="rk4", steps=3), "multiple of the 2 layers"),
        (lambda: integrate(SOFTMAX, X, 1.0, rtol=0.0), "rtol"),
        (lambda: integrate(SOFTMAX, X, 1.0, max_steps=0), "max_steps"),
        (lambda: integrate(SOFTMAX, X, 1.0, frames=1), "at least 2"),
        (lambda: integrate(SOFTMAX, X, 1.0, frames=[0.5, 0.2]), "increasing"),
        (lambda: integrate(SOFTMAX, X, 1.0, noise=0.1), "Euler–Maruyama"),
        (lambda: integrate(SOFTMAX, X[0], 1.0), r"\(n, d\)"),
        (lambda: integrate(SOFTMAX, normal(600, 2), 1.0, solver="radau"), "implicit"),
        (lambda: integrate(Velocity(SOFTMAX, sphere=True), 0 * X, 1.0), "no direction"),
        (lambda: integrate([], X, 1.0), "at least one layer"),
        (lambda: Velocity(3.0), "function of depth"),
        (lambda: Velocity([SOFTMAX, SOFTMAX])(0.0, X), "pieces"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_all_solvers_are_tested():
    assert set(SOLVERS) == {*ADAPTIVE, "residual", "rk4"}
