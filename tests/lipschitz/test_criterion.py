"""Which maps split: theorems on random measures, examples against duplicated dense Jacobians."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth import InputError
from howsmooth.attention.fields import (
    L2Field,
    LinearField,
    MeanPooling,
    Pointwise,
    SigmoidField,
    SinkhornField,
    SoftmaxField,
)
from howsmooth.lipschitz import splits
from howsmooth.lipschitz.criterion import criterion
from tests.tolerances import at_most

EYE, ONE = torch.eye(2, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, V = normal(2, 2, seed=1), normal(2, 2, seed=2)
FIELDS = [
    SoftmaxField.of(A, V),
    L2Field(A, V, EYE),
    L2Field(A, A, V),
    SinkhornField(0.2 * A, V),
    SigmoidField(A, V, 0.3),
    LinearField(A, V),
    MeanPooling(V),
    Pointwise(lambda x: torch.tanh(x @ A.T), 2),
]


def masses(n, seed):
    return normal(n, seed=100 + seed)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
@pytest.mark.parametrize("k", [2, 3])
def test_the_criterion_is_the_norm_of_the_duplicated_measure(field, k):
    for seed in range(2):
        x, m = 1.5 * normal(3, 2, seed=seed), masses(3, seed)
        found = criterion(field, x, m)
        after = max(found.norm, float(found.own.max()))
        pieces = (m[:, None] + torch.linspace(0.3, 1.0, k).log()).flatten()
        truth = criterion(field, x.repeat_interleave(k, 0), pieces)
        assert truth.norm == pytest.approx(after, rel=1e-10)


@pytest.mark.parametrize("field", FIELDS[:6], ids=lambda field: field.name)
def test_matrix_free_agrees(field):
    x, m = 1.5 * normal(4, 2, seed=7), masses(4, 7)
    found, truth = splits(field, x, m, tol=1e-6), criterion(field, x, m)
    assert found.ratio == pytest.approx(truth.ratio, rel=1e-6)


def test_times_of_fields():
    x, m, t = normal(4, 2, seed=3), masses(4, 3), torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    by_field = splits(SoftmaxField.of(A, V), x, m, t, tol=1e-6)
    by_layer = splits(SoftmaxField.of(A, V).layer, x, m, t, tol=1e-6)
    assert by_field.ratio == pytest.approx(by_layer.ratio, rel=1e-6)


NEVER = {
    "mean pooling": MeanPooling(V),
    "pointwise": FIELDS[-1],
    "sigmoid, A = I": SigmoidField(EYE, EYE),
    "linear, A = I": LinearField(EYE, EYE),
    "tied L2, QᵀQ = I": L2Field(TURN, TURN, EYE),
}


@pytest.mark.parametrize("name", NEVER)
def test_maps_that_never_split(name):
    for seed in range(40):
        n = 1 + seed % 4
        assert criterion(NEVER[name], 3 * normal(n, 2, seed=seed), masses(n, seed)).ratio <= 1 + 1e-12


def test_linear_attention_splits_only_at_independent_atoms():
    for seed in range(30):
        field = LinearField(normal(2, 2, seed=seed), normal(2, 2, seed=seed + 50))
        assert criterion(field, normal(3, 2, seed=seed), masses(3, seed)).ratio <= 1 + 1e-12
    alone = criterion(LinearField(TURN, EYE), torch.tensor([[1.0, 2.0]]))  # F(δ_x) = δ_0 for every x
    assert alone.norm <= 1e-15 and float(alone.own[0]) == pytest.approx(5.0) and alone.ratio == math.inf
    split = criterion(LinearField(TURN, EYE), torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    assert split.norm == pytest.approx(5.0)


def test_tied_l2_grows_by_at_most_the_norm_of_v():
    for seed in range(40):
        q, v = normal(2, 2, seed=seed), normal(2, 2, seed=seed + 50)
        found = criterion(L2Field(q, q, v), 2 * normal(3, 2, seed=seed + 9), masses(3, seed))
        size = float(torch.linalg.matrix_norm(v, ord=2))
        assert at_most(size, found.norm) and at_most(float(found.own.max()), found.norm + size) and found.ratio <= 2


def test_sinkhorn_two_atoms_on_the_line():
    """Closed form: t = π(x, y) solves (p − t)(q − t) = t² e^{a u²}; ‖D‖ = max(1, |1 − (u t)'/(pq)|)."""
    p, q = 1 / 3, 2 / 3
    for a, u in ((-1.0, 3.0), (-1.0, 5.0), (1.0, 2.0)):
        e = math.exp(a * u * u)
        t = (-1 + math.sqrt(1 - 4 * (1 - e) * p * q)) / (2 * (e - 1))
        slope = -2 * a * u / (1 / (p - t) + 1 / (q - t) + 2 / t)
        found = criterion(SinkhornField(a * ONE, ONE), torch.tensor([[0.0], [u]]), torch.tensor([p, q]).log())
        assert found.norm == pytest.approx(max(1.0, abs(1 - (t + u * slope) / (p * q))), rel=1e-6)
        assert found.own.tolist() == pytest.approx([(t / m) * (1 - t / m) * u * u for m in (p, q)], rel=1e-6)
        assert (found.ratio > 1) == (a < 0)


def test_sigmoid_derivative_of_one_atom_vanishes_but_not_after_splitting():
    t = 0.738830  # 2tσ(t) = 1: there x ↦ σ(−x²) x has a stationary point
    found = criterion(SigmoidField(-ONE, ONE), torch.tensor([[math.sqrt(t)]], dtype=torch.float64))
    assert found.norm < 1e-5 and found.ratio > 1e4


def test_bad_input():
    with pytest.raises(InputError, match="masses of at least"):
        criterion(FIELDS[0], normal(2, 2), torch.tensor([0.0, -700.0]))
