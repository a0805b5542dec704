"""Rank correlations against SciPy, ties and resamples; undefined cases; coverage of intervals; valid p-values."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from experiments.prediction.correlation import p_values, permuted, rank_correlation, reliability
from howsmooth.errors import InputError
from tests.tolerances import less


def tied(generator: np.random.Generator, m: int) -> tuple[np.ndarray, np.ndarray]:
    x = generator.integers(0, 6, m).astype(float)
    return x, x + generator.integers(-3, 4, m)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    return stats.spearmanr(x, y).statistic


@pytest.mark.parametrize("m", [4, 17, 60])
def test_scipy_agrees_on_ties(m):
    generator = np.random.default_rng(m)
    for _ in range(10):
        x, y = tied(generator, m)
        if np.ptp(x) and np.ptp(y):
            found = rank_correlation(x, y, resamples=100)
            assert found.value == pytest.approx(spearman(x, y), abs=1e-12)
            assert found.kendall == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("scope", ["within", "pooled"])
@pytest.mark.parametrize("texts", [12, 30])
def test_intervals_are_those_of_scipy_where_scipy_has_one(texts, scope):
    """The same draws of texts, each with all its layers; the bias differs by half a draw."""
    generator = np.random.default_rng(texts)
    x, noise = generator.normal(size=(2, texts, 2))
    y = x + noise

    def statistic(drawn):
        if scope == "pooled":
            return spearman(x[drawn].ravel(), y[drawn].ravel())
        return np.mean([spearman(a, b) for a, b in zip(x[drawn].T, y[drawn].T, strict=True)])

    theirs = stats.bootstrap(
        (np.arange(texts),), statistic, n_resamples=500, vectorized=False, rng=np.random.default_rng(3)
    ).confidence_interval
    found = rank_correlation(x, y, scope=scope, resamples=500, seed=3)
    assert found.dropped == 0 and (found.lower, found.upper) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_constant_resamples_are_dropped():
    """One text in eight differs, and a third of the resamples miss it: SciPy has no interval then."""
    x, y = np.arange(8.0), np.eye(8)[4]
    found = rank_correlation(x, y)
    drawn = np.random.default_rng(0).integers(8, size=(1000, 8))
    assert found.dropped == sum((rows == 4).all() or not (rows == 4).any() for rows in drawn) > 250
    assert less(found.lower, found.value) and less(found.value, found.upper)


def test_within_is_the_mean_of_layers_and_pooled_is_all_rows():
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(2, 12, 3))
    within, pooled = (rank_correlation(x, y, scope=scope) for scope in ("within", "pooled"))
    assert within.value == pytest.approx(
        np.mean([stats.spearmanr(a, b).statistic for a, b in zip(x.T, y.T, strict=True)])
    )
    assert pooled.value == pytest.approx(stats.spearmanr(x.ravel(), y.ravel()).statistic)


def test_layers_alone_explain_a_pooled_correlation():
    generator = np.random.default_rng(2)
    layers = 10.0 * np.arange(3)
    x, y = generator.normal(size=(2, 40, 3)) + layers
    pooled, within = (rank_correlation(x, y, scope=scope) for scope in ("pooled", "within"))
    assert pooled.value > 0.85 and pooled.expected > 0.85 and pooled.p > 0.05
    assert abs(within.value) < 0.3 and within.lower < 0 < within.upper and abs(within.expected) < 1e-12


def test_expected_is_the_mean_of_all_permutations():
    x, y = np.random.default_rng(8).normal(size=(2, 4, 2)) + np.array([0.0, 1.0])
    every = [stats.spearmanr(x.ravel(), y[list(order)].ravel()).statistic for order in permutations(range(4))]
    assert rank_correlation(x, y, scope="pooled").expected == pytest.approx(np.mean(every))


def test_p_of_few_texts_is_that_of_all_permutations():
    x, y = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    seen = abs(stats.spearmanr(x, y).statistic)
    every = [abs(stats.spearmanr(x, list(order)).statistic) >= seen - 1e-12 for order in permutations(y)]
    assert rank_correlation(x, y, resamples=20_000).p == pytest.approx(np.mean(every), abs=0.015)


def test_permutations_are_the_same_for_all_pairs():
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(2, 9, 2))
    expected, null = permuted(x, y, permutations=50, seed=4)
    orders = np.argsort(np.random.default_rng(4).random((50, 9)), axis=1)
    wanted = [
        np.mean([stats.spearmanr(a, b).statistic for a, b in zip(x.T, y[order].T, strict=True)]) for order in orders
    ]
    np.testing.assert_allclose(null, wanted, atol=1e-12)
    assert abs(expected) < 1e-12


def test_adjusted_p_counts_the_whole_family():
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(20, 30)), generator.normal(size=30)
    y_true = x[0] + 0.1 * generator.normal(size=30)
    null = np.stack([permuted(each, y_true)[1] for each in x])
    observed = np.array([spearman(each, y_true) for each in x])
    alone, together = p_values(observed, null), p_values(observed, null, together=True)
    assert (together >= alone).all() and together[0] == pytest.approx(1 / 1001)
    # Twenty nulls: one of them is below 5 % by itself more often than not, and hardly ever in the family.
    below = np.zeros(2)
    for trial in range(60):
        y = generator.normal(size=30)
        null = np.stack([permuted(each, y, permutations=200, seed=trial)[1] for each in x])
        observed = np.array([spearman(each, y) for each in x])
        below += [p_values(observed, null).min() < 0.05, p_values(observed, null, together=True).min() < 0.05]
    assert below[0] > 25 and below[1] <= 9


def test_deviations_are_compared_in_units_of_their_own_spread():
    """A pair that varies three times as much must not mask one that is significant in its own units."""
    generator = np.random.default_rng(9)
    null = generator.normal(size=(2, 1000)) * np.array([[0.1], [0.3]])
    p = p_values(np.array([0.4, 0.0]), null, together=True)
    assert p[0] < 0.01 and p[1] == 1


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_coverage_of_intervals(rho):
    """95 % of 200 intervals at 25 texts, within four standard deviations of the count."""
    truth = 6 / math.pi * math.asin(rho / 2)
    hits = 0
    for trial in range(200):
        generator = np.random.default_rng([trial, round(10 * rho)])
        a, b = generator.normal(size=(2, 25))
        found = rank_correlation(a, rho * a + math.sqrt(1 - rho**2) * b, resamples=300, seed=trial)
        hits += found.lower <= truth <= found.upper
    assert 0.95 * 200 - 4 * math.sqrt(200 * 0.05 * 0.95) < hits


def test_rows_of_one_text_do_not_count_as_independent():
    """The same text in four layers is one text: the interval is as wide as with one layer."""
    generator = np.random.default_rng(6)
    x, noise = generator.normal(size=(2, 30))
    y = x + noise
    one, four = (rank_correlation(np.stack([x] * k, 1), np.stack([y] * k, 1)) for k in (1, 4))
    assert four.upper - four.lower == pytest.approx(one.upper - one.lower)


@pytest.mark.parametrize(
    "x, y, why",
    [
        ([1, 1, 1, 1], [1, 2, 3, 4], "the predictor is constant"),
        ([1, 2, 3, 4], [5, 5, 5, 5], "the outcome is constant"),
        ([1, 2], [1, 2], "2 texts"),
        ([math.nan] * 3 + [1], [1, 2, 3, 4], "1 texts"),
        ([[1, 1], [2, 1], [3, 1]], [[1, 2], [2, 3], [3, 1]], "constant in a layer"),
    ],
)
def test_undefined_correlations_have_a_reason_and_no_value(x, y, why):
    found = rank_correlation(x, y)
    assert found.value is None and found.lower is None and found.p is None
    assert found.status.startswith("undefined") and why in found.status


def test_seeds_reproduce_and_missing_texts_are_left_out():
    generator = np.random.default_rng(7)
    x, y = generator.normal(size=(2, 12))
    assert rank_correlation(x, y, seed=3) == rank_correlation(x, y, seed=3) != rank_correlation(x, y, seed=4)
    gaps = x.copy()
    gaps[5] = math.nan
    assert rank_correlation(gaps, y).value == pytest.approx(stats.spearmanr(np.delete(x, 5), np.delete(y, 5)).statistic)


def test_a_perfect_order_has_a_perfect_interval():
    found = rank_correlation(np.arange(10), np.exp(np.arange(10)))
    assert (found.value, found.lower, found.upper) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: rank_correlation([1, 2, 3], [1, 2]), "one shape"),
        (lambda: rank_correlation([1, 2, 3], [1, 2, 3], scope="between"), "within, pooled"),
        (lambda: rank_correlation([1, 2, 3], [1, 2, 3], confidence=1.0), "between 0 and 1"),
        (lambda: rank_correlation([1, 2, 3], [1, 2, 3], resamples=5), "100 resamples"),
        (lambda: reliability([1.0], [1.0, 2.0]), "as many predictions"),
        (lambda: reliability([0.0, 1.0], [1.0, 2.0]), "positive predictions"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_reliability_by_quantiles():
    predicted = np.arange(1.0, 21.0)
    bins = reliability(predicted[::-1], 2 * predicted[::-1], bins=4)
    assert [each["count"] for each in bins] == [5] * 4 and [each["ratio"] for each in bins] == pytest.approx([2.0] * 4)
    assert [each["predicted"] for each in bins] == pytest.approx([3, 8, 13, 18])
    assert len(reliability([1.0, 2.0], [1.0, 1.0], bins=5)) == 2
