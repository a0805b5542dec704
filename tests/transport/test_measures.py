"""Measures: constructors, invalid arguments, and push-forward by fields."""

import math

import numpy as np
import pytest
import torch

from howsmooth import InputError
from howsmooth.attention import SoftmaxField
from howsmooth.transport import TimedMeasure, TokenMeasure, push_forward
from tests.attention.cases import normal
from tests.attention.dense_fields import FIELDS, D, dense, layer
from tests.tolerances import assert_close, close

X, W = normal(1, 5, D), torch.softmax(normal(2, 5), 0)
TIMES = torch.tensor([0.2, 0.2, 0.7, 0.0, 0.7], dtype=torch.float64)


def atoms(measure) -> dict:
    """Weight of each distinct atom."""
    found = {}
    for row, mass in zip(measure._rows().tolist(), measure.weights.tolist(), strict=True):
        found[tuple(row)] = found.get(tuple(row), 0.0) + mass
    return found


@pytest.mark.parametrize("mu", [TokenMeasure(X, W), TimedMeasure(TIMES, X, W)], ids=["tokens", "timed"])
def test_repetition_order_and_merging_keep_the_measure(mu):
    for same in (mu.repeated(3), mu.permuted([4, 2, 0, 1, 3]), mu.repeated(2).merged(), mu.merged()):
        assert type(same) is type(mu)
        assert atoms(same) == pytest.approx(atoms(mu), rel=1e-14)
    assert mu.repeated(3).n == 15 and mu.repeated(3).merged().n == 5
    assert atoms(mu.moved(normal(3, 5, D), 1e-3)) != pytest.approx(atoms(mu), rel=1e-14)


def test_equal_points_at_different_times_are_different_atoms():
    twice = TimedMeasure([0.1, 0.2, 0.2], [[1.0], [1.0], [1.0]])
    assert twice.merged().weights.tolist() == pytest.approx([1 / 3, 2 / 3])
    times, index = twice.slices()
    assert times.tolist() == [0.1, 0.2] and [i.tolist() for i in index] == [[0], [1, 2]]  # exact: times as given
    assert twice.log_marginal().exp().tolist() == pytest.approx([1 / 3, 2 / 3])


def test_masses_of_any_size():
    tiny = TokenMeasure([[0.0], [1.0]], log_weights=[-2000.0, 0.0])
    assert close(tiny.log_weights, [-2000.0, 0.0]) and close(tiny.repeated(2).merged().log_weights[0], -2000.0)
    assert TokenMeasure([[0.0], [1.0]], [1e-40, 1.0]).weights.tolist() == pytest.approx([1e-40, 1.0], rel=1e-13, abs=0)


def test_constructors():
    draw = TokenMeasure.from_sampler(lambda n, g: torch.randn(n, 2, generator=g), 7, torch.Generator().manual_seed(1))
    assert draw.n == 7 and draw.equal
    timed = TimedMeasure.from_sampler(
        lambda n, g: (torch.rand(n, generator=g), torch.randn(n, 2, generator=g)), 7, torch.Generator().manual_seed(1)
    )
    assert isinstance(timed, TimedMeasure)
    counts, xs, ys = np.histogram2d([0.1, 0.2, 0.9, 0.9], [0.1, 0.1, 0.9, 0.1], bins=2, range=[[0, 1], [0, 1]])
    mu = TokenMeasure.from_histogram(counts, xs, ys, normalise=True)
    assert atoms(mu) == pytest.approx({(0.25, 0.25): 0.5, (0.75, 0.75): 0.25, (0.75, 0.25): 0.25})
    assert TokenMeasure([[1], [2]], np.array([1, 3]), normalise=True).weights.tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("name", FIELDS)
def test_push_forward_is_the_field_at_the_atoms(name):
    gamma, mu, timed = FIELDS[name], TokenMeasure(X, W), TimedMeasure(TIMES, X, W)
    assert_close(push_forward(gamma, mu).points, dense(gamma, X, X, W.log()))
    image = push_forward(gamma, timed)
    assert_close(image.points, dense(gamma, X, X, W.log(), TIMES, TIMES))
    # exact: copied from the measure
    assert torch.equal(image.times, timed.times) and torch.equal(image.log_weights, timed.log_weights)


@pytest.mark.parametrize("name", FIELDS)
def test_push_forward_does_not_depend_on_repetition_or_order(name):
    for mu in (TokenMeasure(X, W), TimedMeasure(TIMES, X, W)):
        image = push_forward(FIELDS[name], mu)
        assert_close(push_forward(FIELDS[name], mu.repeated(3)).points, image.points.repeat_interleave(3, 0), tol=1e-12)
        order = torch.tensor([4, 2, 0, 1, 3])
        assert_close(push_forward(FIELDS[name], mu.permuted(order)).points, image.points[order], tol=1e-12)


def test_one_atom_per_time_is_masked_attention():
    causal = layer(causal=True)
    for f in (causal, layer()):
        assert close(push_forward(SoftmaxField(f), TimedMeasure.from_sequence(X)).points, causal(X))


def test_invalid_arguments():
    for make, message in (
        (lambda: TokenMeasure(X, -W), "finite positive weights, got -"),
        (lambda: TokenMeasure(X, W * math.nan), "finite positive weights, got nan"),
        (lambda: TokenMeasure(X, W * math.inf), "finite positive weights, got inf"),
        (lambda: TokenMeasure([[1.0], [2.0]], [0.0, 1.0]), "leave out atoms without mass"),
        (lambda: TokenMeasure(X, 2 * W), "sum to 1, got a sum of 2; pass normalise=True"),
        (lambda: TokenMeasure(X, log_weights=W), "sum to 1"),
        (lambda: TokenMeasure([[1.0]], log_weights=[-math.inf]), "finite log weights"),
        (lambda: TokenMeasure(X, W, log_weights=W.log()), "got both"),
        (lambda: TokenMeasure(X, W[:3]), "a weight for each of 5 atoms"),
        (lambda: TokenMeasure(X[:0]), "not empty"),
        (lambda: TokenMeasure(X[0]), r"shape \(n, d\)"),
        (lambda: TokenMeasure(math.nan * X), "finite points"),
        (lambda: TokenMeasure("words"), "got str"),
        (lambda: TimedMeasure(TIMES + 0.5, X), r"times in \[0, 1\], got 1.2"),
        (lambda: TimedMeasure(TIMES * math.nan, X), r"times in \[0, 1\], got nan"),
        (lambda: TimedMeasure(TIMES[:2], X), "a time for each of 5 atoms"),
        (lambda: TokenMeasure.from_histogram([1.0, 2.0], [0.0, 1.0]), "one edge more"),
        (lambda: TokenMeasure.from_histogram([1.0], [1.0, 0.0]), "edges that increase"),
        (lambda: TokenMeasure.from_histogram([4.0], [0.0, 1.0]), "normalise=True"),
        (lambda: TokenMeasure.from_histogram([-1.0, 2.0], [0.0, 1.0, 2.0]), "positive"),
        (lambda: TokenMeasure.from_sampler(X, 3, 0), "a sampler"),
        (lambda: TokenMeasure(X).permuted([0, 1]), "permutation"),
        (lambda: TokenMeasure(X).repeated(0), "k ≥ 1"),
        (lambda: TokenMeasure(X).moved(X[:2], 1.0), "direction of shape"),
        (lambda: push_forward(FIELDS["mean"], TokenMeasure(X[:, :2])), "in dimension 3"),
        (lambda: push_forward(layer(), TokenMeasure(X)), "expected a field"),
        (lambda: push_forward(SoftmaxField(layer(causal=True)), TokenMeasure(X)), "TimedMeasure"),
    ):
        with pytest.raises(InputError, match=message):
            make()
    with pytest.raises(AttributeError):
        TokenMeasure(X).points = X


@pytest.mark.parametrize(
    "dtype, n, total", [(torch.bfloat16, 100, 1.5), (torch.float16, 1000, 0.6), (torch.float32, 100_000, 1.01)]
)
def test_low_precision_weights_must_sum_to_one(dtype, n, total):
    with pytest.raises(InputError, match="sum to 1"):
        TokenMeasure(torch.zeros(n, 1), torch.full((n,), total / n, dtype=dtype))
    rounded = torch.softmax(normal(1, 1000).float(), 0)
    assert TokenMeasure(torch.zeros(1000, 1), rounded).weights.sum() == pytest.approx(1, abs=1e-14)


def test_timed_histograms_and_samplers():
    counts, times, edges = [[1, 0], [2, 1]], [0.0, 0.5, 1.0], [0.0, 1.0, 2.0]
    mu = TimedMeasure.from_histogram(counts, times, edges, normalise=True)
    assert atoms(mu) == pytest.approx({(0.25, 0.5): 0.25, (0.75, 0.5): 0.5, (0.75, 1.5): 0.25})
    with pytest.raises(InputError, match="two axes for a timed measure"):
        TimedMeasure.from_histogram([1, 1], times)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match=r"times .n. and points"):
        TimedMeasure.from_sampler(lambda n, g: torch.rand(n, 2, generator=g), 3, generator)
    for cls, sampler in (
        (TokenMeasure, lambda n, g: torch.rand(n + 1, 2)),
        (TimedMeasure, lambda n, g: (torch.rand(1), torch.rand(1, 2))),
    ):
        with pytest.raises(InputError, match="expected 3 atoms"):
            cls.from_sampler(sampler, 3, generator)


def test_a_measure_copies_its_arguments():
    points, array = X.clone(), np.zeros((2, 1))
    mu, nu = TokenMeasure(points), TokenMeasure(array)
    points += 1
    array += 1
    assert torch.equal(mu.points, X) and not nu.points.any()  # exact: copied into the measure
