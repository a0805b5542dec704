"""z = e^{−tV}x: against the tokens themselves at moderate depth, against fifty digits at large depth."""

from __future__ import annotations

import mpmath
import pytest
import torch

from howsmooth.attention import L2Attention, SelfAttention, SoftmaxField
from howsmooth.dynamics import Renormalised, Velocity, integrate
from howsmooth.dynamics.renormalised import softmax_average
from howsmooth.errors import InputError
from tests.dynamics.fields import normal
from tests.tolerances import assert_close

A = torch.tensor([[1.0, 0.3], [-0.2, 0.7]], dtype=torch.float64)
VS = {
    "identity": torch.eye(2, dtype=torch.float64),
    "one leading direction": torch.tensor([[1.0, 0.5], [0.0, 0.2]], dtype=torch.float64),
    "spiral": torch.tensor([[0.3, -1.0], [1.0, 0.3]], dtype=torch.float64),
    "Jordan block": torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64),
    "decaying": -torch.eye(2, dtype=torch.float64),
}
C = torch.tensor([0.4, -0.6], dtype=torch.float64)


def velocity_in_fifty_digits(V, c, t: float, z) -> torch.Tensor:
    """Σ_j P_ij V (z_j − z_i) with the true e^{tV}, in mpmath. Shares no code with the package."""
    with mpmath.workdps(50 + int(1.5 * abs(t) * float(V.abs().sum()))):
        n, d = z.shape
        M = mpmath.expm(mpmath.mpf(t) * mpmath.matrix(V.tolist()), method="taylor")
        points = [mpmath.matrix(row) for row in z.tolist()]
        x = [M * p for p in points]
        form, bias, v = mpmath.matrix(A.tolist()), mpmath.matrix(c.tolist()), mpmath.matrix(V.tolist())
        out = []
        for i in range(n):
            query = form * x[i] + bias
            s = [sum(query[a] * x[j][a] for a in range(d)) for j in range(n)]
            top = max(s)
            weights = [mpmath.exp(value - top) for value in s]
            total = sum(weights)
            mean = sum((w * p for w, p in zip(weights, points, strict=True)), mpmath.zeros(d, 1)) / total
            out.append([float(entry) for entry in v * (mean - points[i])])
        return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", VS)
@pytest.mark.parametrize("t", [0.0, 1.0, 6.0])
def test_velocity_is_exact(name, t, bias):
    V, z, c = VS[name], normal(4, 2), C if bias else 0 * C
    if name == "decaying":
        z = z * torch.exp(torch.tensor(0.5 * t))  # such tokens grow in these coordinates
    found = Renormalised(SoftmaxField.of(A, V, c if bias else None)).at(t)(z)
    assert_close(found, velocity_in_fifty_digits(V, c, t, z), 1e-8)


@pytest.mark.parametrize("t", [40.0, 400.0, 1e6])
@pytest.mark.parametrize("name", ["identity", "one leading direction"])
def test_velocity_far_beyond_overflow(name, t):
    V, z = VS[name], normal(4, 2)
    found = Renormalised(SoftmaxField.of(A, V)).at(t)(z)
    assert torch.isfinite(found).all()
    if t <= 400:
        assert_close(found, velocity_in_fifty_digits(V, 0 * C, t, z), 1e-9)


def test_cancelled_scores_are_exact_to_rounding():
    # Two keys that no digit of the score can tell apart share the query; the third gets nothing.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    P = Renormalised(SoftmaxField.of(VS["identity"], VS["identity"])).probabilities(1e5, z)
    assert_close(P, torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize("name", ["identity", "one leading direction", "spiral", "Jordan block"])
@pytest.mark.parametrize("causal", [False, True])
def test_flow_agrees_with_the_tokens_themselves(name, causal):
    V, x, eye = VS[name], normal(6, 2), torch.eye(2, dtype=torch.float64)
    layer = SelfAttention(A, eye, V, bq=C, scale=1.0, causal=causal)
    renormalised = Renormalised(layer)
    plain = integrate(layer, x, 2.0, solver="dop853", rtol=1e-10, atol=1e-11, frames=3)
    z = integrate(Velocity(renormalised.at), x, 2.0, solver="dop853", rtol=1e-10, atol=1e-11, frames=3)
    for t, a, b in zip(plain.times.tolist(), plain.tokens, z.tokens, strict=True):
        assert_close(renormalised.renormalise(t, a), b, 1e-8)
        assert_close(renormalised.restore(t, b), a, 1e-8)


def test_trajectory_to_large_depth_in_thirty_digits():
    z = torch.tensor([[1.0], [0.4], [-0.7]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    found = integrate(Velocity(Renormalised(SoftmaxField.of(one, one)).at), z, 12.0, rtol=1e-10, atol=1e-12, frames=2)
    with mpmath.workdps(30):
        state, steps = [mpmath.mpf(v) for v in (1.0, 0.4, -0.7)], 600
        h = mpmath.mpf(12) / steps

        def slope(t, y):
            scale, out = mpmath.exp(2 * t), []
            for i in range(3):
                weights = [mpmath.exp(scale * y[i] * (v - y[i])) for v in y]
                out.append(sum(w * (v - y[i]) for w, v in zip(weights, y, strict=True)) / sum(weights))
            return out

        for k in range(steps):
            t = k * h
            a = slope(t, state)
            b = slope(t + h / 2, [y + h / 2 * s for y, s in zip(state, a, strict=True)])
            c = slope(t + h / 2, [y + h / 2 * s for y, s in zip(state, b, strict=True)])
            d = slope(t + h, [y + h * s for y, s in zip(state, c, strict=True)])
            state = [y + h / 6 * (p + 2 * q + 2 * r + s) for y, p, q, r, s in zip(state, a, b, c, d, strict=True)]
    assert_close(found.last[:, 0], torch.tensor([float(v) for v in state], dtype=torch.float64), 1e-6)


def test_softmax_average_equals_attend():
    q, k, v = normal(300, 2), normal(300, 2, seed=1), normal(300, 2, seed=2)
    for scale in (1.0, 1e3, 1e200):
        with torch.no_grad():
            quick = softmax_average(q, k, v, scale)
        with torch.enable_grad():
            assert_close(quick, softmax_average(q, k, v, scale), 1e-10)


def test_bad_input():
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="2 heads"):
        Renormalised(SelfAttention(eye, eye, eye, heads=2))
    with pytest.raises(InputError, match="softmax attention"):
        Renormalised(L2Attention(eye, eye, eye))
    with pytest.raises(InputError, match="value or output bias"):
        Renormalised(SelfAttention(eye, eye, eye, bv=C))
    with pytest.raises(InputError, match="stay in renormalised"):
        Renormalised(SelfAttention(eye, eye, eye)).restore(1e4, eye)
