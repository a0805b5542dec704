"""Coverage and sharpness: intervals contain the truth at least as often as their confidence."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from howsmooth.spectral import MatrixOperator, plan, singular_values
from howsmooth.spectral.certificate import (
    chebyshev,
    is_bound_within,
    kuczynski_wozniakowski,
    lanczos_polynomial,
    smallest_bound,
    start_component,
    sufficient_steps,
)
from tests.tolerances import at_most, less

TRIALS, SIZE = 400, 40


def hard_spectra(steps):
    """Eigenvalues of JᵀJ that are hard for few Lanczos steps, among them those where |T_{2q−1}| is 1."""
    nodes = 0.8 * np.sin(np.arange(2 * steps - 1) * math.pi / (2 * (2 * steps - 1))) ** 2
    return {
        "chebyshev": np.r_[1.0, np.resize(nodes, SIZE - 1)],
        "isolated top": np.r_[1.0, np.full(SIZE - 1, 0.3)],
        "pair": np.r_[1.0, np.full(SIZE - 1, 0.85)],
        "slope": np.linspace(1, 0, SIZE),
        "edge": 1 - np.linspace(0, 1, SIZE) ** 2,
    }


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("name", hard_spectra(2))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_interval_holds_with_its_confidence(name, steps, dtype):
    """A diagonal J costs no generality: the start is rotation invariant. One batch is 400 trials."""
    sigma = torch.from_numpy(np.sqrt(hard_spectra(steps)[name])).to(dtype)
    operator = MatrixOperator(torch.diag(sigma).expand(TRIALS, SIZE, SIZE))
    confidence = 0.8
    found = singular_values(operator, confidence=confidence, max_steps=steps, tol=1e-9, strict=False)
    inside = ((found.lower <= 1) & (found.upper >= 1)).double().mean().item()
    # Three standard deviations below the confidence.
    assert at_most(confidence - 3 * math.sqrt(confidence * (1 - confidence) / TRIALS), inside)
    assert (found.lower <= 1).all()


@pytest.mark.parametrize("steps", [8, 25])
@pytest.mark.parametrize("name", ["pair", "slope", "edge"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_confidence_holds_with_three_stored_vectors(name, steps, dtype):
    """After orthogonality is lost, the bound from the recurrence alone must still hold."""
    sigma = torch.from_numpy(np.sqrt(hard_spectra(5)[name])).to(dtype)
    operator = MatrixOperator(torch.diag(sigma).expand(TRIALS, SIZE, SIZE))
    full = plan(operator, max_steps=steps)
    least = full.total - (steps - 3) * full.bytes_per_vector
    confidence = 0.8
    found = singular_values(operator, confidence=confidence, max_steps=steps, tol=1e-9, strict=False, max_memory=least)
    inside = ((found.lower <= 1) & (found.upper >= 1)).double().mean().item()
    assert at_most(confidence - 3 * math.sqrt(confidence * (1 - confidence) / TRIALS), inside)
    assert (found.lower <= 1).all()


def test_a_larger_start_component_fails():
    """With a c three times too large the same trials must fail: the tests of coverage have power."""
    misses = {}
    for factor in (1, 3):
        missed = 0
        for trial in range(300):
            ritz, last, coupling, _ = lanczos(np.r_[1.0, np.full(SIZE - 1, 0.3)], 2, seed=trial, extra=0.05)
            c = min(1.0, factor * start_component(SIZE, 0.2))
            missed += lanczos_polynomial(ritz, last, coupling, c, 1e6)[0] * ritz[0, -1] < 1
        misses[factor] = missed / 300
    assert misses[1] <= 0.2 + 3 * 0.025
    assert misses[3] > 0.3


def lanczos(eigenvalues, steps, *, seed, extra=0.0):
    """Dense textbook Lanczos in float64: (ritz, last, coupling, polynomial values) for one start."""
    rng = np.random.default_rng(seed)
    eigenvalues = eigenvalues - extra * np.r_[0.0, rng.random(len(eigenvalues) - 1)]
    V = [rng.standard_normal(len(eigenvalues))]
    V[0] /= np.linalg.norm(V[0])
    diagonal, coupling = [], []
    for _ in range(steps):
        w = eigenvalues * V[-1]
        diagonal.append(V[-1] @ w)
        for _ in range(2):
            w -= np.array(V).T @ (np.array(V) @ w)
        coupling.append(np.linalg.norm(w))
        V.append(w / coupling[-1])
    T = np.diag(diagonal) + np.diag(coupling[:-1], 1) + np.diag(coupling[:-1], -1)
    values, vectors = np.linalg.eigh(T)
    return values[None], vectors[-1][None], np.array(coupling)[None], (np.array(diagonal), np.array(V))


def test_the_closed_form_agrees_with_the_recurrence():
    """At its root Σ p_j(x)² = 1/c², with p_j from the three-term recurrence."""
    ritz, last, coupling, (diagonal, _) = lanczos(np.linspace(0, 1, 50), 9, seed=1)
    c = 1e-3
    x = ritz[0, -1] * lanczos_polynomial(ritz, last, coupling, c, 1e6)[0]
    p = [0.0, 1.0]
    b = np.r_[0.0, coupling[0]]
    for j in range(9):
        p.append(((x - diagonal[j]) * p[-1] - b[j] * p[-2]) / b[j + 1])
    assert sum(v**2 for v in p) == pytest.approx(1 / c**2, rel=1e-3)


def test_each_basis_vector_is_its_polynomial_of_the_start():
    """⟨v_{j+1}, y⟩ = p_j(λ₁) b, the identity behind the bound, on the top eigenvector."""
    eigenvalues = np.linspace(0, 1, 50)
    _, _, coupling, (diagonal, V) = lanczos(eigenvalues, 6, seed=2)
    p, b = [0.0, 1.0], np.r_[0.0, coupling[0]]
    for j in range(6):
        p.append(((1 - diagonal[j]) * p[-1] - b[j] * p[-2]) / b[j + 1])
    np.testing.assert_allclose(V[:, -1], np.array(p[1:]) * V[0, -1], rtol=1e-8)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.2, 0.9, 0.999])
def test_the_start_component_is_exceeded(size, delta):
    """Exact law of a coordinate of a uniform unit vector: b² is Beta(1/2, (N − 1)/2)."""
    c = start_component(size, delta)
    missed = 0.0 if size == 1 else betainc(0.5, (size - 1) / 2, c**2)
    assert missed <= delta * (1 + 1e-12) and c <= 1


@pytest.mark.parametrize("size", [2, 50, 10**6])
@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.5])
def test_the_published_bound_is_never_smaller(size, delta):
    for steps in (1, 2, 5, 20, 100, 1000):
        assert chebyshev(steps, start_component(size, delta)) <= kuczynski_wozniakowski(steps, size, delta)


def test_published_figures():
    """N = 4·10⁵, δ = 10⁻³: about 1 % after 50 steps and 0.25 % after 100."""
    for steps, width in ((50, 0.0107), (100, 0.0026)):
        assert kuczynski_wozniakowski(steps, 400_000, 1e-3) ** 0.5 - 1 == pytest.approx(width, rel=0.1)


def test_sufficient_steps_are_sufficient_and_not_too_many():
    for size, tol in ((10, 1e-2), (10**6, 1e-4)):
        q, c = sufficient_steps(size, 1e-3, tol), start_component(size, 1e-3)
        assert chebyshev(q, c) ** 0.5 <= 1 + tol < chebyshev(q - 1, c) ** 0.5


def test_the_lanczos_polynomial_is_far_sharper():
    """On a spectrum with a gap, at the step where it certifies 1e-3, the others give more than 10 %."""
    sigma = torch.from_numpy(0.9 ** np.arange(300))
    found = singular_values(MatrixOperator(torch.diag(sigma)))
    assert found.width.item() <= 1e-3
    c = start_component(300, 1e-3)
    assert chebyshev(found.steps, c) ** 0.5 - 1 > 0.1
    assert found.steps * 5 < sufficient_steps(300, 1e-3, 1e-3)


def test_higher_confidence_widens_the_interval():
    sigma = torch.diag(torch.linspace(1, 0, 100, dtype=torch.float64))
    widths = [
        singular_values(MatrixOperator(sigma), confidence=p, max_steps=10, strict=False).width.item()
        for p in (0.5, 0.9, 0.999, 0.999999)
    ]
    assert at_most(*widths) and less(widths[0], 0.8 * widths[-1])


@settings(max_examples=150)
@given(
    eigenvalues=st.lists(st.floats(0, 1), min_size=9, max_size=30, unique_by=lambda x: round(x, 3)),
    steps=st.integers(1, 6),
    seed=st.integers(0, 999),
    delta=st.sampled_from([1e-6, 1e-3, 0.2, 0.999]),
    orthogonal=st.booleans(),
    size=st.sampled_from([1, 2, 40, 10**6]),
    factor=st.floats(-12, 12),
)
def test_the_cheap_test_agrees_with_the_bound(eigenvalues, steps, seed, delta, orthogonal, size, factor):
    """`is_bound_within` is true from the ratio of `smallest_bound` on, up to the bisection's 1e-5."""
    ritz, last, coupling, _ = lanczos(np.array(eigenvalues), steps, seed=seed)
    coupling = np.maximum(coupling, 1e-15 * ritz[:, -1:])
    rest = (ritz, last, coupling, size, delta, orthogonal)
    excess = smallest_bound(*rest) - 1
    accuracy = 1e-5 * excess + 1e-15
    assert is_bound_within(1 + excess + accuracy, *rest).all()
    if (excess > 1e-12).all():
        assert not is_bound_within(1 + excess - accuracy, *rest).any()
    assert not is_bound_within(np.array([1 - 1e-9]), *rest).any()
    ratio = 1 + excess * math.exp(factor)
    if abs(factor) > 1e-4 and (excess > 1e-10).all():
        assert (is_bound_within(ratio, *rest) == (factor > 0)).all()


def test_one_dimension_needs_one_step():
    """N = 1: both give 1 exactly."""
    rest = (np.ones((1, 1)), np.ones((1, 1)), np.full((1, 1), 1e-15), 1, 0.9)
    assert smallest_bound(*rest) <= 1 and is_bound_within(np.ones(1), *rest).all()


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_ritz_value_of_zero_leaves_the_ceiling_and_warns_of_nothing(orthogonal):
    ritz, entries, coupling = np.array([[0.0, 0.0], [0.5, 1.0]]), np.full((2, 2), 0.5), np.full((2, 2), 1e-3)
    found = lanczos_polynomial(ritz, entries, coupling, start_component(10, 0.01), 2.5, orthogonal)
    assert found[0] == 2.5  # exact: the ceiling
    assert less(found[1], 2.5)
    assert not is_bound_within(np.array([1.1, 1.1]), ritz, entries, coupling, 10, 0.01, orthogonal)[0]
