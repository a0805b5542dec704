"""Local constants at measures against dense derivatives in the weighted norm, for layers, fields and times."""

from __future__ import annotations

import pytest
import torch

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.attention import L2Attention
from howsmooth.attention.fields import (
    L2Field,
    LinearField,
    MeanPooling,
    Pointwise,
    SigmoidField,
    SinkhornField,
    SoftmaxField,
)
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz import lipschitz_quotients, mean_field_lipschitz
from howsmooth.transport import TimedMeasure, TokenMeasure
from tests.oracles import far_pair
from tests.tolerances import assert_close, at_most, close, less

D, M = 3, 7


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


A, V, X, LOGS = normal(1, D, D), normal(2, D, D), normal(3, M, D), normal(4, M)
TIMES = torch.tensor([0.3, 0.0, 0.3, 0.8, 0.5, 0.5, 1.0], dtype=torch.float64)  # with ties
LAYER = SelfAttention(normal(5, 4, D), normal(6, 4, D), normal(7, 4, D), normal(8, D, 4), bq=normal(9, 4), heads=2)
FIELDS = {
    "layer": LAYER,
    "softmax": SoftmaxField.of(A, V, normal(10, D)),
    "l2": L2Field(A, V, V),
    "sinkhorn": SinkhornField(0.3 * A, V),
    "sigmoid": SigmoidField(A, V, -0.4),
    "linear": LinearField(A, V),
    "mean": MeanPooling(V),
    "pointwise": Pointwise(torch.tanh, D),
}


def weighted_norm(push, x, logs) -> torch.Tensor:
    """‖D^½ ∂F D^{−½}‖ of any map of atoms, by automatic differentiation."""
    J = torch.autograd.functional.jacobian(push, x)
    root = torch.softmax(logs, -1).sqrt()
    J = root[:, None, None, None] * J / root[:, None]
    return torch.linalg.matrix_norm(J.flatten(2).flatten(0, 1), 2)


def softmax_by_hand(seen=None):
    """One-head attention of weighted atoms with a mask, written out."""
    c = normal(10, D)

    def push(x):
        scores = (x @ A.T + c) @ x.T + LOGS
        return torch.softmax(scores if seen is None else scores.masked_fill(~seen, -torch.inf), -1) @ x @ V.T

    return push


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_against_the_dense_derivative(name):
    f = FIELDS[name]
    field = SoftmaxField(f) if name == "layer" else f
    found = mean_field_lipschitz(f, (X, LOGS))
    truth = weighted_norm(lambda x: field.on_tokens(x, LOGS), X, LOGS)
    assert_close(torch.tensor(found.value, dtype=torch.float64), truth, tol=1e-10)
    assert at_most(found.lower, float(truth)) and at_most(float(truth), found.upper)
    assert found.confidence == 1.0 and found.check() == pytest.approx(found.value, rel=1e-5)


@pytest.mark.parametrize(
    "seen, times",
    [
        (None, None),
        (TIMES[None, :] <= TIMES[:, None], TIMES),
        (torch.ones(M, M, dtype=torch.bool).tril(), torch.linspace(0, 1, M, dtype=torch.float64)),
    ],
)
def test_softmax_with_times_written_out(seen, times):
    truth = weighted_norm(softmax_by_hand(seen), X, LOGS)
    found = mean_field_lipschitz(FIELDS["softmax"], (X, LOGS, times))
    assert_close(torch.tensor(found.value, dtype=torch.float64), truth, tol=1e-11)


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "layer"])
def test_times_with_ties_for_every_field(name):
    f = FIELDS[name]
    truth = weighted_norm(lambda x: f(x, x, LOGS, times=TIMES, source_times=TIMES), X, LOGS)
    found = mean_field_lipschitz(f, (X, LOGS, TIMES))
    assert_close(torch.tensor(found.value, dtype=torch.float64), truth, tol=1e-10)


def test_one_atom_for_each_time_is_the_causal_layer_in_order_of_time():
    causal = LAYER.replaced(causal=True)
    by_place = mean_field_lipschitz(causal, (X, LOGS))
    times, order = torch.linspace(0, 1, M, dtype=torch.float64), torch.tensor([4, 0, 6, 2, 5, 1, 3])
    by_time = mean_field_lipschitz(LAYER, (X[order], LOGS[order], times[order]))
    assert by_time.value == pytest.approx(by_place.value, rel=1e-12)
    assert_close(by_time.direction.abs(), by_place.direction[order].abs(), tol=1e-8)  # in the caller's order
    assert by_time.check() == pytest.approx(by_time.value, rel=1e-5)


@pytest.mark.parametrize("times", [None, TIMES])
def test_measures_and_tuples_give_the_same(times):
    logs = LOGS - torch.logsumexp(LOGS, 0)
    mu = TokenMeasure(X, log_weights=logs) if times is None else TimedMeasure(times, X, log_weights=logs)
    assert close(mean_field_lipschitz(LAYER, mu).value, mean_field_lipschitz(LAYER, (X, LOGS, times)).value)


@pytest.mark.parametrize("times", [None, TIMES])
def test_quotients_of_distances_tend_to_the_constant(times):
    """W₂ (d_2 with times) of the images over that of two measures, one moved along the worst direction."""
    logs = LOGS - torch.logsumexp(LOGS, 0)
    mu = TokenMeasure(X, log_weights=logs) if times is None else TimedMeasure(times, X, log_weights=logs)
    found = mean_field_lipschitz(FIELDS["softmax"], mu)
    way = found.direction / mu.weights.sqrt().unsqueeze(1)
    quotients = lipschitz_quotients(FIELDS["softmax"], mu, way, etas=(1e-2, 1e-3, 1e-4))
    errors = [abs(value / found.value - 1) for value in quotients.values]
    assert quotients.slope == pytest.approx(found.value, rel=1e-10)
    assert errors[2] < 1e-3 and less(errors[2], errors[1], errors[0])


def test_equal_masses_are_a_sequence():
    found = mean_field_lipschitz(LAYER, (X, torch.zeros(M, dtype=torch.float64)))
    assert found.value == pytest.approx(local_lipschitz(LAYER, X, tol=1e-9).value, rel=1e-8)


def test_matrix_free_and_dense_agree():
    x, logs = normal(20, 60, D), normal(21, 60)
    for times in (None, torch.arange(60).double() / 60, torch.arange(60).double().div(7).floor()):
        dense = mean_field_lipschitz(LAYER, (x, logs, times), dense=True)
        free = mean_field_lipschitz(LAYER, (x, logs, times), dense=False, tol=1e-6)
        assert at_most(free.lower, dense.value, tol=1e-9) and at_most(dense.value, free.upper, tol=1e-9)
        assert free.value == pytest.approx(dense.value, rel=1e-6)
        assert free.confidence == 0.999 and free.steps > 0


def test_single_precision_with_and_without_a_float64_reference():
    f, x, logs = LAYER.converted(dtype=torch.float32), normal(20, 60, D).float(), normal(21, 60).float()
    truth = mean_field_lipschitz(f.converted(dtype=torch.float64), (x.double(), logs.double()), dense=True).value
    for product_dtype in (None, torch.float32):
        found = mean_field_lipschitz(f, (x, logs), dense=False, tol=1e-2, product_dtype=product_dtype)
        assert at_most(found.lower, truth, found.upper) and found.dtype == torch.float32
        assert found.value == pytest.approx(truth, rel=1e-2)


def test_duplicated_atoms_change_nothing_unless_the_measure_splits():
    counts = torch.tensor([2, 1, 3, 1, 1, 1, 2])
    twice = X.repeat_interleave(counts, 0)
    logs = (LOGS - counts.double().log()).repeat_interleave(counts)
    once = mean_field_lipschitz(LAYER, (X, LOGS)).value
    assert at_most(once, mean_field_lipschitz(LAYER, (twice, logs)).value)


def test_not_converging_raises_with_the_partial_estimate():
    x, logs = normal(20, 60, D), normal(21, 60)
    with pytest.raises(NotConverged) as error:
        mean_field_lipschitz(LAYER, (x, logs), dense=False, tol=1e-9, max_steps=2)
    assert error.value.partial.direction.shape == x.shape
    found = mean_field_lipschitz(LAYER, (x, logs), dense=False, tol=1e-9, max_steps=2, strict=False)
    assert found.status == "step limit"


@pytest.mark.parametrize(
    "measure, message",
    [
        ((X,), "tuple of 1"),
        (X, "got Tensor"),
        ((X, LOGS[:3]), r"log weights of shape \(7,\)"),
        ((X, LOGS, TIMES[:2]), r"times of shape \(7,\)"),
        ((X[:, :2], LOGS), r"atoms of shape \(m, 3\)"),
        ((X[:0], LOGS[:0]), "m ≥ 1"),
        ((X, torch.full((M,), -torch.inf, dtype=torch.float64)), "leave out atoms without mass"),
        ((X * torch.nan, LOGS), "finite tensor"),
        ((X, torch.arange(M)), "floating dtype, got torch.int64"),
        ((X, torch.cat([torch.tensor([-3000.0]).double(), LOGS[1:]])), "two_atoms"),
    ],
)
def test_refused_measures(measure, message):
    with pytest.raises(InputError, match=message):
        mean_field_lipschitz(LAYER, measure)


def test_refused_maps():
    causal = LAYER.replaced(causal=True)
    with pytest.raises(InputError, match="atoms have no order; use TimedMeasure"):
        mean_field_lipschitz(causal, TokenMeasure(X))
    with pytest.raises(InputError, match="SelfAttention or a Field, got function"):
        mean_field_lipschitz(lambda x: x, (X, LOGS))
    with pytest.raises(InputError, match="product_dtype only with a layer"):
        mean_field_lipschitz(FIELDS["sigmoid"], (X, LOGS), product_dtype=torch.float32)


@pytest.mark.parametrize("offset", far_pair.OFFSETS)
def test_rounding_of_scores_is_in_the_interval(offset):
    x, one = far_pair.tokens(offset), torch.ones(1, 1, dtype=torch.float64)
    logs, times = torch.zeros(2, dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64)
    found = mean_field_lipschitz(SoftmaxField.of(-one, one), (x, logs, times))
    truth = far_pair.truths(x)[1]
    assert at_most(found.lower, truth, found.upper) and found.confidence == 1
    assert at_most(found.upper - found.lower, 1e-14 * (offset + 1) ** 2)


@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8])
def test_distance_attention_is_translation_invariant(offset):
    one, logs = torch.ones(1, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    truth = mean_field_lipschitz(L2Field(one, one, one), (x, logs)).value
    found = mean_field_lipschitz(L2Field(one, one, one), (x + offset, logs))
    assert at_most(found.lower, truth, found.upper) and found.value == pytest.approx(truth, rel=1e-15 * offset)
    assert local_lipschitz(L2Attention(one, one, one), x + offset).value == pytest.approx(
        local_lipschitz(L2Attention(one, one, one), x).value, rel=1e-15 * offset
    )
