"""Gaussian flows: against closed forms, quadrature, the fields themselves and particles."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy.linalg import sqrtm

from howsmooth import InputError, SelfAttention
from howsmooth.attention.fields import L2Field, LinearField, MeanPooling, SigmoidField, SinkhornField, SoftmaxField
from howsmooth.dynamics.gaussian import GaussianState, blow_up_time, closure, covariance_at
from howsmooth.dynamics.gaussian_flows import SOLVERS, compare_particles, gaussian_flow
from tests.tolerances import FLOAT64, assert_close, at_most, close, less

EYE = torch.eye(2, dtype=torch.float64)


def draw(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def state(seed: int, d: int = 2, scale: float = 0.5) -> GaussianState:
    root = draw(seed, d, d, scale=scale)
    return GaussianState(draw(seed + 1, d, scale=scale), root @ root.mT)


def two_heads(d: int = 2) -> SelfAttention:
    """Return a layer with two heads and all biases."""
    names = ("wq", "wk", "wv", "bq", "bk", "bv")
    shapes = ((2 * d, d),) * 3 + ((2 * d,),) * 3
    weights = {name: draw(20 + i, *shape, scale=0.5) for i, (name, shape) in enumerate(zip(names, shapes, strict=True))}
    return SelfAttention(**weights, wo=draw(30, d, 2 * d, scale=0.5), bo=draw(31, d), heads=2)


FIELDS = {
    "softmax": SoftmaxField.of(draw(0, 2, 2, scale=0.6), draw(1, 2, 2, scale=0.6), draw(2, 2, scale=0.5)),
    "heads": SoftmaxField(two_heads()),
    "l2": L2Field(draw(3, 3, 2, scale=0.5), draw(4, 3, 2, scale=0.5), draw(5, 2, 2, scale=0.6)),
    "sinkhorn": SinkhornField(draw(6, 2, 2), draw(7, 2, 2, scale=0.6), eps=0.7),
    "linear": LinearField(draw(8, 2, 2, scale=0.6), draw(9, 2, 2, scale=0.6)),
    "mean": MeanPooling(draw(10, 2, 2)),
}


def quadrature(gaussian: GaussianState, count: int = 22) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and log weights of a Gauss–Hermite rule for N(α, S) in the plane, exact to float64."""
    from numpy.polynomial.hermite_e import hermegauss

    nodes, weights = (torch.from_numpy(t) for t in hermegauss(count))
    grid = torch.cartesian_prod(nodes, nodes)
    return gaussian.mean + grid @ gaussian.root, torch.cartesian_prod(weights.log(), weights.log()).sum(-1)


@pytest.mark.parametrize("name", FIELDS)
def test_on_a_gaussian_the_field_is_the_affine_map_of_the_closure(name):
    gaussian, places = state(40), draw(50, 5, 2)
    points, log_weights = quadrature(gaussian)
    at_mean, slope = (torch.from_numpy(t) for t in closure(FIELDS[name])(gaussian.mean.numpy(), gaussian.root.numpy()))
    exact = at_mean + (places - gaussian.mean) @ slope.mT
    assert_close(exact, FIELDS[name](places, points, log_weights), 1e-8)


@pytest.mark.parametrize("name", FIELDS)
def test_singular_covariances(name):
    direction = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    line = GaussianState(draw(41, 2), 0.5 * direction.mT @ direction)
    points, log_weights = quadrature(line)
    at_mean, slope = (torch.from_numpy(t) for t in closure(FIELDS[name])(line.mean.numpy(), line.root.numpy()))
    places = draw(51, 4, 2)  # off the line as well
    assert_close(at_mean + (places - line.mean) @ slope.mT, FIELDS[name](places, points, log_weights), 1e-8)


@pytest.mark.parametrize("name", FIELDS)
def test_trajectory_solves_the_covariance_equation(name):
    """S' = BS + SBᵀ and α' = g by central differences of the trajectory."""
    flow = gaussian_flow(FIELDS[name], state(42), 0.02, frames=3, rtol=1e-12)
    middle = flow.state(1)
    at_mean, slope = (torch.from_numpy(t) for t in closure(FIELDS[name])(middle.mean.numpy(), middle.root.numpy()))
    drift = slope @ middle.covariance
    assert_close((flow.covariances[2] - flow.covariances[0]) / 0.02, drift + drift.mT, 1e-3)
    assert_close((flow.means[2] - flow.means[0]) / 0.02, at_mean, 1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_closed_form_with_identity_values(solver):
    a, gaussian = draw(60, 3, 3), state(61, 3)
    end = blow_up_time(a, gaussian)
    flow = gaussian_flow(
        SoftmaxField.of(a, torch.eye(3, dtype=torch.float64)), gaussian, 0.8 * end, frames=5, solver=solver, rtol=1e-8
    )
    for t, covariance in zip(flow.times.tolist(), flow.covariances, strict=True):
        assert_close(covariance, covariance_at(a, gaussian, t), 1e-5)
        inverse = torch.linalg.inv(gaussian.covariance) - t * (a + a.mT)
        assert_close(covariance_at(a, gaussian, t) @ inverse, torch.eye(3, dtype=torch.float64), 1e-9)


def test_mean_of_symmetric_scores_in_closed_form():
    """A = Aᵀ, V = I: α(t) = eᵗ (I − 2tS₀A)^{−½} α₀."""
    a, gaussian = draw(62, 2, 2), state(63)
    a = -a @ a.mT  # nothing blows up
    flow = gaussian_flow(SoftmaxField.of(a, EYE), gaussian, 1.5, frames=4)
    for t, mean in zip(flow.times.tolist(), flow.means, strict=True):
        root = torch.from_numpy(sqrtm((EYE - 2 * t * gaussian.covariance @ a).numpy()).real)
        assert_close(mean, math.exp(t) * torch.linalg.solve(root, gaussian.mean), 1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_blow_up_time_with_identity_values(seed):
    a, gaussian = draw(seed, 3, 3), state(70 + seed, 3)
    end = blow_up_time(a, gaussian)
    flow = gaussian_flow(SoftmaxField.of(a, torch.eye(3, dtype=torch.float64)), gaussian, 2 * end)
    assert flow.status == "blew up" and at_most(abs(flow.blow_up.time - end), 1e-4 * end)
    assert len(flow.times) >= 101 and less(float(flow.times[-1]), end)  # the trajectory is kept
    root = gaussian.root
    top = root @ torch.linalg.eigh(root @ (a + a.mT) @ root)[1][:, -1]
    assert abs(float(flow.blow_up.direction @ top) / float(top.norm())) > 1 - 1e-4
    assert f"{flow.blow_up.time:.6g}" in flow.ending and "stop before" in flow.remedy


def test_blow_up_for_singular_covariances_and_no_blow_up():
    line = GaussianState.of([0.0, 0.0], [[4.0, 0.0], [0.0, 0.0]])
    a = torch.tensor([[0.5, 3.0], [-1.0, 9.0]], dtype=torch.float64)
    flow = gaussian_flow(SoftmaxField.of(a, EYE), line, 1.0)
    assert flow.blow_up.time == pytest.approx(1 / 4, rel=1e-4) == pytest.approx(blow_up_time(a, line))
    # exact: every product with this row is zero
    assert float(flow.covariances[-1][1].abs().max()) == 0.0  # what has no variance gets none
    assert blow_up_time(-EYE, line) == math.inf
    assert gaussian_flow(SoftmaxField.of(-EYE, EYE), line, 50.0).status == "finished"
    point = GaussianState.of([1.0, 0.0], torch.zeros(2, 2))
    assert blow_up_time(a, point) == math.inf
    dirac = gaussian_flow(SoftmaxField.of(a, -EYE), point, 1.0)
    # exact: every product with a zero covariance is zero
    assert dirac.last.mean[0] == pytest.approx(math.exp(-1)) and float(dirac.covariances.abs().max()) == 0.0


def test_blow_up_of_other_values_and_kinds():
    """Diagonal scores and values decouple: S_i' = 2 v_i a_i S_i²; linear attention in d = 1 also has α²."""
    values, scores, start = (torch.tensor(t, dtype=torch.float64) for t in ([2.0, -1.0], [0.3, -4.0], [1.0, 0.2]))
    flow = gaussian_flow(SoftmaxField.of(scores.diag(), values.diag()), GaussianState(start * 0, start.diag()), 5.0)
    times = 1 / (2 * values * scores * start)
    assert flow.blow_up.time == pytest.approx(float(times.min()), rel=1e-4)
    assert flow.blow_up.directions[:, 0].tolist() == pytest.approx([0.0, 1.0], abs=1e-6)  # its sign is decided
    few = gaussian_flow(SoftmaxField.of(scores.diag(), values.diag()), flow.start, 5.0, frames=2)
    with pytest.raises(InputError, match="take more frames"):
        compare_particles(few, SoftmaxField.of(scores.diag(), values.diag()), 10)
    one = torch.ones(1, 1, dtype=torch.float64)
    # α' = (S + α²)α and S' = 2(S + α²)S: S/α² is constant, α² blows up like that of (α²)' = 2(1 + S₀/α₀²)α⁴.
    flow = gaussian_flow(LinearField(one, one), GaussianState.of([0.5], [[0.75]]), 5.0)
    assert flow.blow_up.time == pytest.approx(1 / (2 * 4 * 0.25), rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_blow_up_time_of_full_matrices(seed):
    """The decoupled flow S_i' = 2 v_i a_i S_i² in skew coordinates x = Ty: no matrix is diagonal, t* is the same."""
    values, scores, start = (torch.diag(draw(100 + 3 * seed + k, 3)) for k in range(3))
    start, t = start.abs() + 0.1 * torch.eye(3, dtype=torch.float64), draw(120 + seed, 3, 3)
    back = torch.linalg.inv(t)
    rates = 2 * (values @ scores @ start).diag()
    rates[0] = rates[0].abs()  # one at least blows up
    scores[0, 0] = rates[0] / (2 * values[0, 0] * start[0, 0])
    field = SoftmaxField.of(back.mT @ scores @ back, t @ values @ back)
    flow = gaussian_flow(field, GaussianState(torch.zeros(3), t @ start @ t.mT), 2 / float(rates.max()))
    assert flow.blow_up.time == pytest.approx(1 / float(rates.max()), rel=1e-3)
    fastest = t[:, int(rates.argmax())]
    assert abs(float(flow.blow_up.direction @ fastest) / float(fastest.norm())) > 1 - 1e-3


def test_exponential_growth_is_no_blow_up():
    flow = gaussian_flow(MeanPooling(40 * EYE), GaussianState.of([1.0, 0.0], EYE), 10.0)
    assert flow.status == "overflow" and flow.blow_up is None and "stop earlier" in flow.remedy
    assert float(flow.times[-1]) == pytest.approx(120 * math.log(10) / 40, rel=0.1)
    assert gaussian_flow(MeanPooling(20 * EYE), GaussianState.of([1.0, 0.0], EYE), 10.0).status == "finished"


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "mean"])
def test_covariances_are_positive_and_tokens_move_by_the_affine_map(name):
    flow = gaussian_flow(FIELDS[name], state(43), 2.0, frames=21)
    assert close(flow.covariances, flow.covariances.mT, tol=1e-15)
    assert float(torch.linalg.eigvalsh(flow.covariances)[:, 0].min()) >= 0
    tokens = flow.start.sample(500, torch.Generator().manual_seed(0))
    assert_close(flow.push(tokens, 0), tokens, FLOAT64)
    begin, end = GaussianState.fitted(tokens), GaussianState.fitted(flow.push(tokens))
    assert_close(end.covariance, flow.maps[-1] @ begin.covariance @ flow.maps[-1].mT, 1e-9)


def test_affine_equivariance():
    """With x = Ty, scores TᵀAT and values T⁻¹VT move y as A and V move x."""
    a, v, t, gaussian = draw(80, 2, 2), draw(81, 2, 2), draw(82, 2, 2), state(83)
    back = torch.linalg.inv(t)
    for kind in (SoftmaxField.of, SinkhornField, LinearField):
        flow = gaussian_flow(kind(a, v), gaussian, 0.3)
        seen = GaussianState(back @ gaussian.mean, back @ gaussian.covariance @ back.mT)
        other = gaussian_flow(kind(t.mT @ a @ t, back @ v @ t), seen, 0.3)
        assert flow.status == other.status == "finished"
        assert_close(t @ other.means[-1], flow.means[-1], 1e-6)
        assert_close(t @ other.covariances[-1] @ t.mT, flow.covariances[-1], 1e-6)


def test_order_of_the_distance_between_gaussians():
    near = GaussianState.of([1.0, 0.0], [[4.0, 0.0], [0.0, 1.0]])
    assert GaussianState.standard(2).distance(near) == pytest.approx(math.sqrt(1 + 1))
    assert near.distance(near) == pytest.approx(0, abs=1e-7)


def bad(value: float) -> torch.Tensor:
    return torch.tensor([[value, 0.0], [0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: GaussianState.of([0, 0], [[1, 0.5], [0, 1]]), "symmetric covariance"),
        (lambda: GaussianState.of([0, 0], [[1, 2], [2, 1]]), "without negative eigenvalues, got one of -1"),
        (lambda: GaussianState.of([0, 0, 0], [[1, 0], [0, 1]]), r"covariance \(d, d\)"),
        (lambda: GaussianState.of([0, math.nan], [[1, 0], [0, 1]]), "finite mean"),
        (lambda: GaussianState([0], [[1]]), "as tensors"),
        (
            lambda: gaussian_flow(SoftmaxField.of(EYE, torch.ones(3, 2).double()), GaussianState.standard(2), 1.0),
            "square V",
        ),
        (lambda: SoftmaxField.of(bad(math.inf), EYE), "finite"),
        (lambda: gaussian_flow(SigmoidField(EYE, EYE), GaussianState.standard(2), 1.0), "do not stay Gaussian"),
        (
            lambda: gaussian_flow(
                SoftmaxField(SelfAttention(EYE, EYE, EYE, causal=True)), GaussianState.standard(2), 1.0
            ),
            "got one with a causal mask",
        ),
        (lambda: gaussian_flow(EYE, GaussianState.standard(2), 1.0), "a Field, got Tensor"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(3), 1.0), "on R\\^2"),
        (lambda: gaussian_flow(FIELDS["softmax"], EYE, 1.0), "GaussianState to start from"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(2), -1.0), "positive finite time"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(2), 1.0, solver="euler"), "lsoda, dop853"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(2), 1.0, rtol=0), "rtol"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(2), 1.0, frames=1), "frames"),
        (lambda: gaussian_flow(FIELDS["softmax"], GaussianState.standard(2), 1.0, max_steps=0), "max_steps"),
        (lambda: covariance_at(EYE, GaussianState.standard(2), 0.6), "before the blow-up at 0.5"),
        (lambda: blow_up_time(torch.ones(2, 3), GaussianState.standard(2)), r"matrix \(2, 2\)"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_step_limit_keeps_the_trajectory():
    flow = gaussian_flow(SoftmaxField.of(EYE, EYE), GaussianState.standard(2), 1.0, max_steps=30)
    assert flow.status == "step limit" and "max_steps" in flow.remedy and "step limit at t" in flow.ending
    t = float(flow.times[-1])
    assert 0 < t < 0.5
    assert_close(flow.covariances[-1], covariance_at(EYE, GaussianState.standard(2), t), 1e-6)


def test_progress_is_reported_after_each_step():
    seen = []
    flow = gaussian_flow(
        SoftmaxField.of(EYE, EYE), GaussianState.standard(2), 1.0, max_steps=30, progress=lambda *at: seen.append(at)
    )
    times, steps = zip(*seen, strict=True)
    assert steps == (*range(1, 31), *range(1, 31))  # twice: the frames are spread over the time that was reached
    assert all(less(a, b) for a, b in pairwise(times[:30])) and close(times[29], float(flow.times[-1]))


def test_a_failing_solver_is_not_reported_as_a_step_limit(monkeypatch):
    class Stuck(SOLVERS["rk45"]):
        def step(self):
            self.status = "failed"

    monkeypatch.setitem(SOLVERS, "rk45", Stuck)
    eye = torch.eye(2, dtype=torch.float64)
    flow = gaussian_flow(SoftmaxField.of(-eye, eye), GaussianState.standard(2), 1.0, solver="rk45")
    assert flow.status == "step too small" and "rtol" in flow.remedy and "max_steps" not in flow.remedy
