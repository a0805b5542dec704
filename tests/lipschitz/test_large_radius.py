"""The limit of large tokens against dense derivatives at growing radii."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attention import reference
from howsmooth.attention.argmax import argmax_keys
from howsmooth.lipschitz import argmax_share, large_radius_limit, largest_probabilities, lipschitz_at_scales
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import assert_close, at_most, close

N, D = 4, 6
PLAIN = [name for name in LAYERS if LAYERS[name].get("softcap") is None]


def dense_limit(f, argmax):
    """Σ_h W_h V_h ε_{m_h(i)}, written out block by block."""
    n = argmax.shape[1]
    blocks = torch.zeros(n, f.d_out, n, f.d, dtype=torch.float64)
    for h in range(f.heads):
        one = f.head(h)
        product = one.wv
        if f.wo is None:
            product = torch.zeros(f.d_out, f.d, dtype=torch.float64)
            w = one.wv.shape[0]
            product[h * w : (h + 1) * w] = one.wv
        else:
            product = one.wo @ one.wv
        for i, j in enumerate(argmax[h].tolist()):
            if j >= 0:
                blocks[i, :, j] += product
    return blocks.reshape(n * f.d_out, n * f.d)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("d_out", [5, None])
def test_the_derivative_tends_to_the_limit(name, d_out):
    f, x = layer(name, d_out=d_out), normal(21, N, D)
    limit = large_radius_limit(f, x)
    # Biases shift scores by ρ·(size): they are outrun where ρ·gap is several times their size.
    far = 100 / min(limit.gap, 1.0)
    truth = reference.jacobian(f, far * x)
    assert_close(limit.operator.dense(), truth, 1e-9)
    assert_close(limit.operator.dense(), dense_limit(f, limit.argmax))
    norm = float(torch.linalg.matrix_norm(truth, 2))
    assert at_most(limit.lower, norm, limit.upper, tol=1e-9)
    u, v = normal(1, limit.operator.shape[0]), normal(2, limit.operator.shape[1])
    assert_close(u @ limit.operator.matvec(v), limit.operator.rmatvec(u) @ v)
    assert int(limit.multiplicities.sum()) == f.heads * N


def test_one_head_is_a_formula():
    f, x = layer("one head"), normal(3, 9, D)
    limit = large_radius_limit(f, x)
    most = int(limit.multiplicities.max())
    # exact: a formula has no width: both ends are its value
    assert limit.confidence == 1.0 and limit.lower == limit.upper
    assert limit.value == pytest.approx(float(torch.linalg.matrix_norm(f.wo @ f.wv, 2)) * math.sqrt(most))
    assert limit.value == pytest.approx(float(torch.linalg.matrix_norm(limit.operator.dense(), 2)))


@pytest.mark.parametrize("causal", [False, True])
def test_one_large_token_is_the_argmax_of_every_row(causal):
    """All tokens in a half-space, one of them large along its axis: ‖V‖√n, also masked if the large one is first."""
    eye = torch.eye(3, dtype=torch.float64)
    f = SelfAttention(eye, eye, 2 * eye, causal=causal)
    x = 0.1 * normal(1, 12, 3)
    x[:, 0] = 1.0
    x[0, 0] = 10.0
    limit = large_radius_limit(f, x)
    assert limit.argmax.tolist() == [[0] * 12]
    assert limit.value == pytest.approx(2 * math.sqrt(12))
    assert lipschitz_at_scales(f, x, [10.0], tol=1e-8)[0].value == pytest.approx(limit.value, rel=1e-6)


def test_constants_at_scales_converge_above_the_argmax_scale():
    f, x = layer("two heads", biases=False), normal(21, N, D)
    limit = large_radius_limit(f, x)
    settled = limit.argmax_scale
    estimates = lipschitz_at_scales(f, x, [settled / 4, settled, 2 * settled, 4 * settled], tol=1e-9)
    errors = [abs(estimate.value / limit.value - 1) for estimate in estimates]
    assert errors[0] > 1e-3 and errors[1] < 1e-2 and errors[2] < 1e-6 and errors[3] < 1e-6
    assert all(len(estimate.as_record()) for estimate in estimates)


def test_causal_rows_have_an_argmax_among_earlier_keys():
    eye = torch.eye(2, dtype=torch.float64)
    x = torch.tensor([[1.0, 0], [2, 0], [3, 0]], dtype=torch.float64)
    assert large_radius_limit(SelfAttention(eye, eye, eye, causal=True), x).argmax.tolist() == [[0, 1, 2]]
    assert large_radius_limit(SelfAttention(eye, eye, eye), x).argmax.tolist() == [[2, 2, 2]]


def test_infinite_offsets_mask_and_finite_ones_do_not_matter():
    eye = torch.eye(2, dtype=torch.float64)
    x = torch.tensor([[1.0, 0], [2, 0], [3, 0]], dtype=torch.float64)
    offsets = torch.tensor([[0.0, 50.0, -torch.inf]] * 2 + [[-torch.inf] * 3], dtype=torch.float64)
    f = SelfAttention(eye, eye, eye, score_bias=offsets)
    limit = large_radius_limit(f, x)
    assert limit.argmax.tolist() == [[1, 1, -1]] and limit.multiplicities.tolist() == [[0, 2, 0]]
    assert_close(limit.operator.dense(), reference.jacobian(f, 20 * x), 1e-9)
    assert limit.value == pytest.approx(math.sqrt(2))


def test_gap_is_the_smallest_difference_of_two_largest_scores():
    eye = torch.eye(1, dtype=torch.float64)
    x = torch.tensor([[1.0], [2.0], [2.5]], dtype=torch.float64)
    assert large_radius_limit(SelfAttention(eye, eye, eye), x).gap == pytest.approx(0.5)  # row 0: 2.5 before 2.0
    assert large_radius_limit(SelfAttention(eye, eye, eye), x[:1]).gap == math.inf


def test_refusals():
    eye = torch.eye(2, dtype=torch.float64)
    x = normal(1, 3, 2)
    with pytest.raises(InputError, match="soft cap"):
        large_radius_limit(SelfAttention(eye, eye, eye, softcap=3.0), x)
    x[1] = x[0]
    with pytest.raises(InputError, match=r"tie in head 0, row \d \(gap"):
        large_radius_limit(SelfAttention(eye, eye, eye), 0 * x)
    with pytest.raises(InputError, match="factors"):
        lipschitz_at_scales(SelfAttention(eye, eye, eye), x, [-1.0])
    with pytest.raises(InputError, match="threshold"):
        argmax_share(SelfAttention(eye, eye, eye), x, 0.0)
    with pytest.raises(InputError, match=r"large_radius_limit: .*\(n, d\) of its width"):
        large_radius_limit(SelfAttention(eye, eye, eye), torch.ones(3, 5, dtype=torch.float64))
    with pytest.raises(InputError, match=r"large_radius_limit: .* within float64"):
        large_radius_limit(SelfAttention(eye, eye, eye), 1e160 * normal(1, 3, 2))
    with pytest.raises(InputError, match=r"\(n, d\)"):
        large_radius_limit(SelfAttention(eye, eye, eye), x[None])


@pytest.mark.parametrize("radii", [5, "12", ["a"], None, [], [math.inf], [0.0], [10**400], torch.ones(2, 2)], ids=str)
def test_wrong_scales_are_refused(radii):
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="lipschitz_at_scales: expected positive finite factors"):
        lipschitz_at_scales(SelfAttention(eye, eye, eye), eye, radii)
    with pytest.raises(InputError, match=r"lipschitz_at_scales: expected tokens as a tensor .* got list"):
        lipschitz_at_scales(SelfAttention(eye, eye, eye), [[1.0, 2.0]], [1.0])


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(threshold="a"), "threshold above 0 and up to 1, got 'a'"),
        (dict(threshold=math.nan), "threshold above 0"),
        (dict(threshold=None), "threshold above 0"),
        (dict(padding=torch.zeros(2, dtype=torch.bool)), "at least one real token"),
        (dict(padding=[True, False]), "padding as a tensor of dtype bool"),
    ],
)
def test_wrong_arguments_of_argmax_share_are_refused(change, message):
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match=message):
        argmax_share(SelfAttention(eye, eye, eye), eye, **change)


@pytest.mark.parametrize("name", PLAIN)
def test_argmax_is_that_of_the_dense_scores(name):
    f, x = layer(name, biases=False), normal(21, N, D)
    found = argmax_keys(f.converted(dtype=torch.float32), x.float())
    assert found.lead.dtype == torch.float64
    s, _ = reference.scores(*(1e6 * t for t in f.project(x)[:2]), **f.pattern())  # offsets that are finite drown
    s = s.expand(f.heads, N, N)
    assert torch.equal(found.key, s.argmax(-1)) and found.first_tie is None
    if name != "window":
        two = s.topk(2, -1).values / 1e12
        assert found.gap == pytest.approx(float((two[..., 0] - two[..., 1]).min()), rel=1e-4)


def test_ties_are_relative_to_the_size_of_queries_and_keys():
    """The largest score is near zero, and its rounding error is that of the products in its sum."""
    eye = torch.eye(2, dtype=torch.float64)
    f = SelfAttention(eye, eye, eye, scale=1.0)
    x = torch.tensor([[1.0, 0.0], [0.0, -1.0], [1e-14, -1.0]], dtype=torch.float64)
    tie = argmax_keys(f, x)
    assert tie.first_tie == (0, 1) and tie.tied.tolist() == [[False, True, True]]
    x[2, 1] = -1.1
    assert argmax_keys(f, x).first_tie is None


@pytest.mark.parametrize("name", LAYERS)
def test_largest_probabilities(name):
    f, x = layer(name), 2 * normal(4, N, D)
    q, k, _ = f.project(x)
    padding = torch.tensor([True, False, True, True])
    for real in (None, padding):
        s, _ = reference.scores(q, k, padding=real, **f.pattern())
        truth = reference.probabilities(s).amax(-1)
        truth = truth if real is None else truth[:, real]
        assert_close(largest_probabilities(f, x, real), truth)
        for threshold in (0.5, 0.99):
            assert close(argmax_share(f, x, threshold, real), (truth >= threshold).double().mean(-1))


def test_share_grows_to_one_with_the_radius():
    f, x = layer("two heads"), normal(4, 12, D)
    shares = [float(argmax_share(f, rho * x).min()) for rho in (0.01, 100.0)]
    assert shares[0] == 0 and shares[1] == 1  # exact: none and all of the rows, divided by their number
