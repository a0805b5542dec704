"""Distances against brute force over permutations, linear programming and closed forms; metric axioms; certificates."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from howsmooth import InputError
from howsmooth.errors import NotConverged
from howsmooth.transport import (
    TimedMeasure,
    TokenMeasure,
    conditional_distance,
    gaussian_wasserstein,
    solvers,
    wasserstein,
)
from tests.attention.cases import normal
from tests.tolerances import assert_close, at_most, close, less

EXPONENTS = [1, 1.5, 2, 3, math.inf]
exponents = pytest.mark.parametrize("p", EXPONENTS)


def measure(seed: int, n: int, d: int = 2, equal: bool = False) -> TokenMeasure:
    return TokenMeasure(normal(seed, n, d), None if equal else torch.softmax(normal(seed + 1, n), 0))


def brute_force(mu, nu, p) -> float:
    distances = torch.cdist(mu.points, nu.points)
    best = math.inf
    for order in itertools.permutations(range(mu.n)):
        moved = distances[range(mu.n), order]
        best = min(best, float(moved.max() if math.isinf(p) else (moved**p).mean() ** (1 / p)))
    return best


def linear_programme(mu, nu, p) -> float:
    """W_p by SciPy's linear programming; for p = ∞ the smallest distance within which a coupling exists."""
    distances = torch.cdist(mu.points, nu.points, compute_mode="donot_use_mm_for_euclid_dist").numpy().ravel()
    rows = np.kron(np.eye(mu.n), np.ones(nu.n))
    cols = np.kron(np.ones(mu.n), np.eye(nu.n))
    equations, sides = np.vstack([rows, cols]), np.concatenate([mu.weights.numpy(), nu.weights.numpy()])
    if math.isfinite(p):
        return linprog(distances**p, A_eq=equations, b_eq=sides).fun ** (1 / p)
    for t in np.sort(distances):
        if linprog(distances > t, A_eq=equations, b_eq=sides).fun < 1e-9:
            return t
    return None


@exponents
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_equal_masses_against_all_permutations(seed, d, p):
    mu, nu = measure(seed, 5, d, equal=True), measure(seed + 9, 5, d, equal=True)
    found = wasserstein(mu, nu, p)
    assert found.value == pytest.approx(brute_force(mu, nu, p), rel=1e-12)
    assert found.gap <= 1e-12


@exponents
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_any_masses_against_the_linear_programme(seed, d, p):
    mu, nu = measure(seed, 4, d), measure(seed + 9, 6, d)
    found = wasserstein(mu, nu, p, plan=True)
    assert found.value == pytest.approx(linear_programme(mu, nu, p), rel=1e-7)
    assert found.gap <= 1e-12
    plan = found.plan.dense(4, 6)
    assert_close(plan.sum(1), mu.weights)
    assert_close(plan.sum(0), nu.weights)
    moved = torch.cdist(mu.points, nu.points)
    value = moved[plan > 0].max() if math.isinf(p) else (plan * moved**p).sum() ** (1 / p)
    assert float(value) == pytest.approx(found.value, rel=1e-12)


@exponents
@pytest.mark.parametrize("d", [1, 2])
def test_repetition_and_order_do_not_matter(d, p):
    mu, nu = measure(1, 5, d), measure(11, 7, d)
    value = wasserstein(mu, nu, p).value
    assert wasserstein(mu.repeated(3), nu, p).value == pytest.approx(value, rel=1e-12)
    assert wasserstein(
        mu, nu.repeated(2).permuted(torch.randperm(14, generator=torch.Generator().manual_seed(1))), p
    ).value == pytest.approx(value, rel=1e-12)
    assert close(wasserstein(mu.repeated(2), mu, p).value, 0)
    plan = wasserstein(mu.repeated(2), nu.repeated(3), p, plan=True).plan.dense(10, 21)
    assert_close(plan.sum(1), mu.repeated(2).weights)
    assert_close(plan.sum(0), nu.repeated(3).weights)


def test_translations_and_lists():
    mu, shift = measure(1, 40, 3), normal(5, 3)
    moved = mu.with_points(mu.points + shift)
    found = wasserstein([mu, mu, mu], [moved] * 3, 2)
    assert [one.value for one in found] == pytest.approx([float(shift.norm())] * 3, rel=1e-12)
    assert found[0].method == "simplex" and found[0].as_record()["p"] == 2


@pytest.mark.parametrize("equal", [True, False])
def test_reduced_costs_do_not_change_the_optimum(monkeypatch, equal):
    """The same distance with and without initial potentials from Sinkhorn, and a duality gap of about zero."""
    mu, nu = measure(1, 320, 5, equal), measure(7, 320, 5, equal)
    warm = wasserstein(mu, nu)
    monkeypatch.setattr(solvers, "SINKHORN_MIN_PAIRS", 10**9)
    assert wasserstein(mu, nu).value == pytest.approx(warm.value, rel=1e-13)
    assert warm.gap <= 1e-11 and warm.method == ("assignment" if equal else "simplex")
    cost = torch.cdist(mu.points, nu.points).square().numpy()
    monkeypatch.undo()
    a, b = mu.weights.numpy(), nu.weights.numpy()
    reduced, f, g = solvers.reduce_costs(cost, a, b)
    assert reduced.min() >= -1e-12 and np.abs(cost - f[:, None] - g - reduced).max() < 1e-12
    assert less(0.95 * warm.value**2, a @ f + b @ g) and at_most(a @ f + b @ g, warm.value**2)
    assert math.isnan(wasserstein(mu, nu, certify=False).gap) == equal


def test_older_versions_of_pot_get_reduced_costs(monkeypatch):
    import ot

    mu, nu = measure(1, 320, 5), measure(7, 300, 5)
    found, emd = wasserstein(mu, nu), ot.emd
    monkeypatch.setattr(ot, "emd", lambda a, b, M, numItermax, log: emd(a, b, M, numItermax=numItermax, log=log))
    again = wasserstein(mu, nu)
    assert again.value == pytest.approx(found.value, rel=1e-13) and max(found.gap, again.gap) < 1e-11


def test_squared_distances_are_accurate():
    x, y = normal(1, 30, 4), normal(2, 40, 4)
    for shift in (0.0, 30.0):
        exact = (x[:, None] - y[None] - shift).square().sum(-1)
        assert_close(
            torch.from_numpy(solvers.squared_distances(x.numpy(), (y + shift).numpy())) / exact,
            torch.ones(30, 40, dtype=torch.float64),
        )


def test_a_suboptimal_plan_leaves_a_gap(monkeypatch):
    """The certificate rejects the identity permutation where it is not optimal."""
    import scipy.optimize

    monkeypatch.setattr(scipy.optimize, "linear_sum_assignment", lambda c: (np.arange(len(c)), np.arange(len(c))))
    with pytest.raises(NotConverged, match="duality gap") as stopped:
        wasserstein(measure(1, 6, 2, True), measure(2, 6, 2, True), plan=True)
    assert stopped.value.partial.gap > 1e-2 and stopped.value.partial.plan is not None


def log_brute_force(distances, p) -> float:
    """W_p over all permutations, in logarithms, where a large p would overflow."""
    n, logs = len(distances), distances.log()
    best = min(float(torch.logsumexp(p * logs[range(n), order], 0)) for order in itertools.permutations(range(n)))
    return math.exp((best - math.log(n)) / p)


@pytest.mark.parametrize("far, p", [(100, 200), (1e9, 50), (1e3, 500), (1e4, 4), (1e6, 2)])
@pytest.mark.parametrize("equal", [True, False])
def test_far_atoms_do_not_hide_the_others(far, p, equal):
    """Two equal atoms are far away; distances to them, raised to p, exceed the others beyond float64 precision."""
    for seed in range(3):
        x, y = normal(seed, 6, 2), normal(seed + 50, 6, 2)
        x[0] = y[0] = far
        mu, nu = TokenMeasure(x), TokenMeasure(y)
        truth = log_brute_force(torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"), p)
        if not equal:  # the same measures, with an atom split into unequal parts at nearly the same point
            cut = torch.tensor([1.0, 1, 1, 1, 1, 0.4, 0.6], dtype=torch.float64) / 6
            mu = TokenMeasure(torch.cat([x, x[5:] + 1e-13]), cut)
        found = wasserstein(mu, nu, p)
        assert found.value == pytest.approx(truth, rel=1e-9)
        assert found.gap <= 1e-9 and found.method == ("assignment" if equal else "simplex")


def test_masses_of_any_size():
    """Two atoms that stand for 10⁴⁰ tokens: the light one moves, and its distance is accurate."""
    for d in (1, 2):
        points = torch.zeros(2, d, dtype=torch.float64)
        points[1, 0] = 1.0
        for log in (-40 * math.log(10), -1000.0):
            mu = TokenMeasure(points, log_weights=[0.0, log])
            nu = mu.with_points(points * 1.25)
            for p in (1, 2, 7):
                assert wasserstein(mu, nu, p).value == pytest.approx(0.25 * math.exp(log / p), rel=1e-12)
            assert wasserstein(mu, nu, math.inf).value == pytest.approx(0.25)


def test_slightly_different_masses_are_distinguished():
    """A mass of 10⁻¹² over a distance of √2 is above rounding."""
    points = torch.eye(2, dtype=torch.float64)
    mu = TokenMeasure(points, [0.5, 0.5])
    nu = TokenMeasure(points, [0.5 + 1e-12, 0.5 - 1e-12])
    assert wasserstein(mu, nu).value == pytest.approx(math.sqrt(2e-12), rel=1e-3)
    assert wasserstein(mu, TokenMeasure(points, [0.5 + 2e-16, 0.5 - 2e-16])).value < 1e-7


def test_small_displacements_are_accurate():
    x = normal(1, 50, 4)
    for eta in (1e-6, 1e-12):
        u = normal(2, 50, 4)
        mu, nu = TokenMeasure(x, torch.softmax(normal(3, 50), 0)), None
        nu = mu.moved(u, eta)
        exact = math.sqrt(float(mu.weights @ (nu.points - x).square().sum(1)))
        assert wasserstein(mu, nu).value == pytest.approx(exact, rel=1e-13)


def test_gaussians():
    """Commuting covariances, a batch, singular ones, and the limit of samples in d = 1."""
    m, other = normal(1, 3, 2), normal(2, 3, 2)
    s, t = torch.rand(3, 2, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    t[0, 0] = 0
    q = torch.linalg.qr(normal(3, 3, 2, 2))[0]
    turned = [q @ torch.diag_embed(v.square()) @ q.mT for v in (s, t)]
    exact = ((m - other).square().sum(1) + (s - t).square().sum(1)).sqrt()
    found = gaussian_wasserstein(m, turned[0], other, turned[1])
    assert_close(found[1:], exact[1:])
    assert_close(found[0], exact[0], tol=1e-8)  # the square root of a singular matrix has half of the digits
    a, b = (w @ w.mT for w in (normal(4, 3, 3), normal(5, 3, 3)))
    zero = torch.zeros(3, dtype=torch.float64)
    root = torch.linalg.eigh(a).eigenvectors * torch.linalg.eigvalsh(a).sqrt() @ torch.linalg.eigh(a).eigenvectors.T
    trace = torch.linalg.eigvalsh(root @ b @ root).clamp(min=0).sqrt().sum()
    assert float(gaussian_wasserstein(zero, a, zero, b)) ** 2 == pytest.approx(
        float(a.trace() + b.trace() - 2 * trace), rel=1e-10
    )
    assert float(gaussian_wasserstein(zero, a, zero, a)) < 1e-13
    quantiles = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000).unsqueeze(1)
    line = wasserstein(TokenMeasure(quantiles), TokenMeasure(3 * quantiles + 1)).value
    assert line == pytest.approx(math.sqrt(5), rel=1e-3)
    for wrong, message in (
        ((m[0], turned[0][0], zero, a), "one dimension"),
        ((zero, -a, zero, b), "negative"),
        ((zero, a[:2], zero, b), "covariance"),
        ((zero * math.nan, a, zero, b), "finite"),
    ):
        with pytest.raises(InputError, match=message):
            gaussian_wasserstein(*wrong)


small = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(*[st.integers(-3, 3)] * 2), min_size=n, max_size=n),
        st.lists(st.integers(1, 5), min_size=n, max_size=n),
    )
)


@settings(max_examples=60)
@given(small, small, small, st.sampled_from(EXPONENTS), st.sampled_from([1, 2]))
def test_metric_axioms(one, two, three, p, d):
    """On a coarse grid, where atoms coincide and distances tie."""
    mu, nu, xi = (
        TokenMeasure(torch.tensor(points, dtype=torch.float64)[:, :d], torch.tensor(weights), normalise=True)
        for points, weights in (one, two, three)
    )
    value = wasserstein(mu, nu, p).value
    assert value == pytest.approx(wasserstein(nu, mu, p).value, rel=1e-9, abs=1e-9)
    assert close(wasserstein(mu, mu, p).value, 0)
    assert at_most(value, wasserstein(mu, xi, p).value + wasserstein(xi, nu, p).value + 1e-7)
    # exact: points of a coarse grid, copied
    assert (value > 1e-3) == (
        abs(mu.merged().n - nu.merged().n) > 0
        or not (
            torch.equal(mu.merged().points, nu.merged().points)
            and torch.allclose(mu.merged().weights, nu.merged().weights)
        )
    )
    if p != math.inf:
        assert at_most(value, wasserstein(mu, nu, math.inf).value + 1e-7)


TIMES = torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0, 1.0], dtype=torch.float64)


def timed(seed: int, order=None) -> TimedMeasure:
    mu = TimedMeasure(TIMES, normal(seed, 6, 2))
    return mu if order is None else mu.permuted(order)


@exponents
@pytest.mark.parametrize("seed", range(3))
def test_conditional_distance_against_all_permutations_within_slices(seed, p):
    mu, nu = timed(seed), timed(seed + 5, [5, 1, 0, 2, 4, 3])
    found = conditional_distance(mu, nu, p, plan=True)
    best = math.inf
    for order in itertools.permutations(range(6)):
        if torch.equal(mu.times, nu.times[list(order)]):
            moved = (mu.points - nu.points[list(order)]).norm(dim=1)
            best = min(best, float(moved.max() if math.isinf(p) else (moved**p).mean() ** (1 / p)))
    assert found.value == pytest.approx(best, rel=1e-12)
    # exact: times as given
    assert torch.equal(mu.times[found.plan.rows], nu.times[found.plan.cols])  # nothing moves in time
    assert_close(found.plan.dense(6, 6).sum(0), nu.weights)
    assert found.value == pytest.approx(conditional_distance(mu.repeated(3), nu, p).value, rel=1e-12)


@exponents
def test_conditional_distance_of_a_sequence(p):
    x, y = normal(1, 30, 3), normal(2, 30, 3)
    moved = (x - y).norm(dim=1)
    exact = moved.max() if math.isinf(p) else (moved**p).mean() ** (1 / p)
    found = conditional_distance(TimedMeasure.from_sequence(x), TimedMeasure.from_sequence(y), p)
    assert found.value == pytest.approx(float(exact), rel=1e-13)
    assert_close(found.slices, moved)


def test_different_marginals_in_time_have_infinite_distance():
    mu = timed(1)
    later = TimedMeasure(TIMES.clamp(max=0.9), mu.points)
    found = conditional_distance(mu, later)
    assert found.value == math.inf and found.reason == "time 1.0 occurs in the first alone"
    assert found.as_record()["value"] == "inf"
    heavier = TimedMeasure(TIMES, mu.points, [0.2, 0.1, 0.1, 0.2, 0.2, 0.2])
    reason = conditional_distance(mu, heavier).reason
    assert reason == "time 0.0 has mass 0.1666666667 in the first and 0.2 in the second"
    again = TimedMeasure(TIMES, mu.points, [1 / 6, 0.1, 0.1, 0.3, 1 / 6, 1 / 6])  # same marginal, other slices
    assert 0 < conditional_distance(mu, again).value < math.inf


@pytest.mark.parametrize("masked", [False, True])
def test_plans_as_maps(masked):
    mu = TimedMeasure(TIMES, normal(1, 6, 2)) if masked else measure(1, 4)
    nu = (
        TimedMeasure([0.0, 0.0, 0.5, 0.5, 1.0], normal(2, 5, 2), [1 / 12, 1 / 12, 0.25, 0.25, 1 / 3])
        if masked
        else (measure(5, 6))
    )
    distance = conditional_distance if masked else wasserstein
    found = distance(mu, nu, plan=True)
    x, y = found.plan.refined(mu, nu)
    assert distance(x, mu).value < 1e-7 and distance(y, nu).value < 1e-7
    straight = math.sqrt(float(x.weights @ (x.points - y.points).square().sum(1)))
    assert straight == pytest.approx(found.value, rel=1e-12)
    half = x.moved(y.points - x.points, 0.5)  # on a geodesic, the midpoint has half the distance
    assert distance(mu, half).value == pytest.approx(found.value / 2, rel=1e-9)
    plan = found.plan.dense(mu.n, nu.n)
    assert_close(found.plan.barycentric(mu, nu), plan @ nu.points / mu.weights.unsqueeze(1))


def test_refusals(monkeypatch):
    mu = measure(1, 3)
    for wrong, message in (
        ((mu, measure(1, 3, 1)), "one dimension"),
        ((mu, mu, 0.5), "p ≥ 1"),
        ((mu, mu, "2"), "p ≥ 1"),
        ((mu, mu.points), "TokenMeasures, got Tensor"),
        ((mu, timed(1)), "use conditional_distance"),
        (([mu], [mu, mu]), "as many measures"),
    ):
        with pytest.raises(InputError, match=message):
            wasserstein(*wrong)
    for wrong, message in (
        ((mu, mu), "TimedMeasures, got TokenMeasure"),
        ((timed(1), timed(1), math.nan), "p ≥ 1"),
        ((timed(1), TimedMeasure([0.5], [[1.0]])), "one dimension"),
    ):
        with pytest.raises(InputError, match=message):
            conditional_distance(*wrong)
    monkeypatch.setitem(__import__("sys").modules, "ot", None)
    with pytest.raises(InputError, match=r"pip install 'howsmooth\[transport\]'"):
        wasserstein(mu, measure(4, 4))


def test_each_gaussian_of_a_batch_is_checked():
    """The tolerance of a small covariance does not depend on a large one in the same batch."""
    s = torch.stack([1e20 * torch.eye(2), torch.diag(torch.tensor([1.0, -1.0]))]).double()
    m = torch.zeros(2, 2, dtype=torch.float64)
    with pytest.raises(InputError, match="negative eigenvalues"):
        gaussian_wasserstein(m, s, m, s)
    with pytest.raises(InputError, match="as tensors"):
        gaussian_wasserstein([0.0], [[1.0]], [0.0], [[1.0]])
