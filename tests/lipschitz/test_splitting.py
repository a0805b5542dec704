"""The splitting formula against duplicated dense Jacobians, the numbers of the theory, and refused input."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError, Rotary, SelfAttention
from howsmooth.attention import L2Attention, reference
from howsmooth.attention.fields import L2Field, SoftmaxField
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.lipschitz import splits
from howsmooth.lipschitz.rowwise import plus_identity, rowwise_jacobian, spectral_norms
from howsmooth.transport import TimedMeasure, TokenMeasure
from tests.oracles import far_pair
from tests.oracles.splitting import split_norm
from tests.tolerances import at_most, less

EXACT = 1e-12
ONE = torch.ones(1, 1, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(d=4, heads=1, kv_heads=None, biased=False, **traits) -> SelfAttention:
    kv, k, w, d_out = kv_heads or heads, 2, 3, d
    rows = [
        normal(heads * k, d, seed=1),
        normal(kv * k, d, seed=2),
        normal(kv * w, d, seed=3),
        normal(d_out, heads * w, seed=4),
    ]
    biases = {f"b{name}": normal(len(m), seed=10 + i) for i, (name, m) in enumerate(zip("qkvo", rows, strict=True))}
    return SelfAttention(*rows, heads=heads, kv_heads=kv_heads, **(biases if biased else {}), **traits)


def turns(positions=6):
    angle = normal(positions, 1, seed=8).repeat(1, 2)
    return Rotary(angle.cos(), angle.sin())


def line(a: float, **traits) -> SelfAttention:
    one = torch.ones(1, 1, dtype=torch.float64)
    return SelfAttention(a * one, one, one, scale=1.0, **traits)


def tokens(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


LAYERS = {
    "one head": layer(),
    "heads, biases": layer(heads=2, biased=True),
    "shared keys, soft cap": layer(heads=2, kv_heads=1, biased=True, softcap=3.0),
    "masked": layer(heads=2, biased=True, causal=True),
    "rotary": layer(heads=2, biased=True, rotary=turns()),
    "masked rotary": layer(heads=2, causal=True, rotary=turns()),
}
MASSES = torch.tensor([0.5, 0.01, 0.2, 0.19, 0.1], dtype=torch.float64).log()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_formula_is_the_norm_of_the_duplicated_sequence(name, k):
    for seed, size in ((0, 0.5), (1, 1.5), (2, 4.0)):
        f, x = LAYERS[name], size * normal(4, 4, seed=20 + seed)
        found = splits(f, x, tol=1e-9)
        truth = split_norm(f, x, k)
        assert at_most(abs(found.after - truth), EXACT * truth)


@pytest.mark.parametrize("name", ["one head", "heads, biases", "shared keys, soft cap"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_masses_split_unequally(name, k):
    f, x = LAYERS[name], 1.5 * normal(5, 4, seed=5)
    found = splits(f, x, MASSES, tol=1e-9)
    truth = split_norm(f, x, k, MASSES, seed=k)
    assert at_most(abs(found.after - truth), EXACT * truth)


@pytest.mark.parametrize("k", [2, 3])
def test_times_with_ties_and_masses(k):
    f, x = LAYERS["heads, biases"], 1.5 * normal(5, 4, seed=6)
    times = torch.tensor([0.5, 0.0, 0.5, 1.0, 0.25], dtype=torch.float64)
    found = splits(f, x, MASSES, times, tol=1e-9)
    truth = split_norm(f, x, k, MASSES, times)
    assert at_most(abs(found.after - truth), EXACT * truth)


@pytest.mark.parametrize("name", ["heads, biases", "masked rotary"])
def test_residual(name):
    f, x = LAYERS[name], 2.0 * normal(4, 4, seed=7)
    found = splits(f, x, residual=True, tol=1e-9)
    truth = split_norm(f, x, 2, residual=True)
    assert at_most(abs(found.after - truth), EXACT * truth)
    assert abs(found.after - splits(f, x, tol=1e-9).after) > 1e-3


def test_random_measures_include_both_decisions():
    """Among random measures on a line some split and some do not, so the tests above cover both."""
    decisions = {splits(line(-1.0), 3 * normal(3, 1, seed=seed)).status for seed in range(30)}
    assert decisions == {"splits", "does not split"}


def test_ratio_is_that_of_the_duplicated_sequence():
    """If a measure splits, duplication increases the norm by the ratio."""
    x = tokens(4.0, 0.3)
    found = splits(line(-1.0), x, tol=1e-9)
    assert found.splits and found.atom == 1 and found.atoms.tolist() == [1]
    alone = float(torch.linalg.matrix_norm(reference.jacobian(line(-1.0), x), ord=2))
    assert found.ratio == pytest.approx(split_norm(line(-1.0), x, 2) / alone, rel=EXACT)
    low, high = found.interval
    assert less(1, low) and at_most(low, found.ratio, high)


def test_positive_a_splits_slightly():
    found = splits(line(1.0), tokens(0.2, 10.0))
    assert found.splits  # at a tolerance of 1e-3 it is undecided: it was made again
    assert found.own.largest == pytest.approx(10.3937, abs=5e-5)
    assert found.norm.value == pytest.approx(10.3630, abs=5e-5)


def test_a_tie_stays_undecided():
    """Two tokens for which both norms agree to the last digits: the result is undecided."""

    def plain(z, points, log_weights):
        return 2 * z

    found = splits(plain, tokens(1.0, 2.0))
    assert found.status == "undecided" and not found.splits
    low, high = found.interval
    assert low <= 1 <= high and high - low < 1e-7


@pytest.mark.parametrize("name", LAYERS)
def test_query_derivatives_against_automatic_differentiation(name):
    f, x = LAYERS[name], 1.5 * normal(4, 4, seed=9)
    keys, values = f.project(x)[1:]

    def at(z):  # the query moves, keys and values stay
        o = reference.forward(f.project(z)[0], keys, values, **f.pattern()).transpose(-3, -2).flatten(-2)
        return o @ f.wo.T

    whole = torch.func.jacrev(at)(x)  # (n, d_out, n, d)
    truth = torch.stack([whole[i, :, i] for i in range(len(x))])
    own = QueryDerivative(f, x)
    assert at_most((own.dense() - truth).abs().max(), EXACT * truth.abs().max())
    u = normal(*own.matvec(x).shape, seed=3)
    assert (own.rmatvec(u) - torch.einsum("noi,no->ni", truth, u)).abs().max() <= 1e-11
    exact = torch.linalg.matrix_norm(truth, ord=2)
    assert (torch.linalg.matrix_norm(own.cores(), ord=2) - exact).abs().max() <= 1e-11
    some = own.at(torch.tensor([3, 1]))
    assert (some.matvec(x[[3, 1]]) - own.matvec(x)[[3, 1]]).abs().max() <= 1e-13


def test_wide_layers_by_lanczos_agree_with_dense_matrices():
    d, heads = 120, 6
    f = SelfAttention(*(normal(120, d, seed=s) / 6 for s in range(4)), heads=heads)
    x = normal(80, d, seed=30)
    own = QueryDerivative(f, x)
    found = spectral_norms(own, tol=1e-4)
    truth = torch.linalg.matrix_norm(own.dense(), ord=2)
    assert set(found.status) == {"converged"}
    assert at_most(found.lower, truth, found.upper)
    top = int(truth.argmax())
    assert at_most(float((found.upper - found.lower)[top]), 1e-4 * float(truth[top]))
    by_products = spectral_norms(rowwise_jacobian(lambda z: _with_fixed_keys(f, x, z), x), tol=1e-4)
    assert at_most(by_products.lower, truth, by_products.upper)


def _with_fixed_keys(f, x, z):
    from howsmooth import attend

    q, (_, k, v) = f.project(z)[0], f.project(x)
    return attend(q, k, v, **f.pattern()).transpose(-3, -2).flatten(-2) @ f.wo.T


@pytest.mark.parametrize("timed", [False, True])
def test_measures(timed):
    """The norm after splitting a measure is the norm of the measure with duplicated atoms."""
    f, x = LAYERS["heads, biases"], 2.0 * normal(5, 4, seed=12)
    if timed:
        mu = TimedMeasure(torch.tensor([0.0, 0.25, 0.25, 0.5, 1.0], dtype=torch.float64), x, log_weights=MASSES)
    else:
        mu = TokenMeasure(x, log_weights=MASSES)
    once, twice = splits(f, mu, tol=1e-9), splits(f, mu.repeated(2), tol=1e-9)
    assert [twice.norm.value, twice.after] == pytest.approx([once.after, once.after], rel=1e-9)
    with pytest.raises(InputError, match="from the measure alone"):
        splits(f, mu, MASSES)


def test_single_precision_layers_are_compared_in_float64():
    f, x = line(-1.0).to(torch.float32), tokens(4.0, 0.3).float()
    assert splits(f, x).splits


def test_record():
    import json

    record = splits(line(-1.0), tokens(4.0, 0.3)).as_record()
    assert json.loads(json.dumps(record)) == record
    assert at_most(record["ratio_lower"], record["ratio"], record["ratio_upper"])
    assert record["norm"]["status"] == "converged"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((tokens(1.0, 2.0)[:, 0],), "atoms as a floating tensor"),
        ((tokens(1.0, float("nan")),), "finite atoms"),
        (([1.0],), "atoms as a floating tensor"),
        ((tokens(1.0, 2.0), torch.zeros(3)), "log_weights as 2 finite numbers"),
        ((tokens(1.0, 2.0), torch.tensor([0.0, -torch.inf])), "atoms without mass"),
        ((tokens(1.0, 2.0), None, [0, 1]), "times as 2 finite numbers"),
        ((normal(3, 2),), "tokens of shape"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        splits(line(-1.0), *arguments)


def test_bad_maps():
    with pytest.raises(InputError, match="one by one"):
        splits(lambda z, points, log_weights: z.flip(0), normal(3, 2))
    with pytest.raises(InputError, match="one output for each"):
        splits(lambda z, points, log_weights: z[:1], normal(3, 2))
    with pytest.raises(InputError, match="as wide as the input"):
        splits(SelfAttention(normal(2, 2), normal(2, 2), normal(3, 2)), normal(4, 2), residual=True)


@pytest.mark.parametrize("offset", far_pair.OFFSETS)
def test_query_derivative_norms_far_from_zero(offset):
    """Differences of 1/offset at offset: the interval includes the cancellation, and is not much wider."""
    x = far_pair.tokens(offset)
    own, _ = far_pair.truths(x)
    for f in (line(-1.0), SoftmaxField.of(*(torch.full((1, 1), s, dtype=torch.float64) for s in (-1, 1)))):
        found = splits(f, x).own
        assert at_most(found.lower, own) and at_most(own, found.upper)
        rounding = torch.finfo(torch.float64).eps * (offset + 1) ** 2
        assert at_most((found.upper - found.lower).max(), 64 * rounding * own[0])


def test_a_residual_keeps_the_hidden_error():
    large, small = (
        QueryDerivative(SelfAttention(-ONE, ONE, v * ONE, scale=1.0), far_pair.tokens(1e5)) for v in (1e12, 1.0)
    )
    assert large.own_error > 1e-7 and plus_identity(large).own_error == large.own_error  # exact: copied from the layer
    assert less(0, plus_identity(small).own_error, 1e-10 * small.own_error)  # 10⁻¹¹ beside 1
    found = spectral_norms(rowwise_jacobian(lambda z: 1e8 * (z * 1e8 - 1e8).sin(), tokens(1.0, 2.0)))
    truth = 1e16 * torch.cos(torch.tensor([0.0, 1e8], dtype=torch.float64)).abs()
    assert at_most(found.lower, truth) and at_most(truth, found.upper)
    assert less(1e-9 * truth[1], found.upper[1] - found.lower[1])  # a unit of rounding moves the second by 1e-8


@pytest.mark.parametrize(
    "f", [line(-1.0), SoftmaxField.of(-ONE, ONE), L2Field(ONE, ONE, ONE)], ids=["layer", "softmax", "l2"]
)
def test_extreme_masses(f):
    """With a mass of e^−92 the other atom is practically alone: ∂₁G vanishes and the norm is that of V."""
    for residual in (False, True):
        found = splits(f, tokens(1.0, 2.0), torch.tensor([-92.0, 0.0], dtype=torch.float64), residual=residual)
        assert found.status == "does not split" and found.norm.value == pytest.approx(1 + residual)
    with pytest.raises(InputError, match="masses of at least"):
        splits(f, tokens(1.0, 2.0), torch.tensor([-1500.0, 0.0], dtype=torch.float64))


def test_causal_layers_require_times_and_dtypes_may_differ():
    single = SoftmaxField.of(-ONE.float(), ONE.float())
    assert splits(single, TokenMeasure(tokens(1.0, 2.0).float())).norm.dtype == torch.float64
    for f in (line(-1.0, causal=True), SoftmaxField(line(-1.0, causal=True))):
        with pytest.raises(InputError, match="TimedMeasure for a causal layer"):
            splits(f, TokenMeasure(tokens(1.0, 2.0)))


def test_a_module_of_tokens_alone_is_refused_by_name():
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="got L2Attention, a map of tokens alone; pass the field"):
        splits(L2Attention(eye, eye, eye), torch.zeros(3, 2, dtype=torch.float64))
