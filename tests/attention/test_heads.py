"""`SelfAttention` and its Jacobian against the dense reference, and invalid arguments."""

import pytest
import torch

from howsmooth import InputError, Rotary, SelfAttention
from howsmooth.attention import blockwise, jacobian, reference
from tests.attention.cases import LAYERS, layer, normal, rotary
from tests.tolerances import assert_close

PADDING = torch.tensor([True, False, True, True])


@pytest.mark.parametrize("padding", [None, PADDING], ids=["all real", "padded"])
@pytest.mark.parametrize("name", LAYERS)
def test_operator_transpose_and_autograd_give_the_reference(name, padding):
    f, x = layer(name), normal(50, 4, 6)
    operator = f.jacobian(x, padding)
    expected = reference.jacobian(f, x, padding)
    assert operator.shape == tuple(expected.shape)
    assert_close(operator.dense(), expected)
    assert_close(torch.stack([operator.rmatvec(u) for u in torch.eye(20, dtype=torch.float64)]), expected)
    by_autograd = torch.func.jacrev(lambda y: f(y, padding))(x)
    assert_close(by_autograd.reshape(20, 24), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_and_stored_probabilities_do_not_change_products(name, monkeypatch):
    f, x, v = layer(name), normal(50, 4, 6), normal(51, 24)
    whole = f.jacobian(x)
    assert whole.linearised.kept and whole.dense_products
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1)
    monkeypatch.setattr(jacobian, "MAX_STORED_PROBABILITIES", 0)
    cut = f.jacobian(x)
    assert cut.linearised.kept is None and cut.dense_products is None
    for _ in range(2):
        assert_close(cut.matvec(v), whole.matvec(v))
        assert_close(cut.rmatvec(whole.matvec(v)), whole.rmatvec(whole.matvec(v)))


@pytest.mark.parametrize("name", LAYERS)
def test_sequences_of_a_batch_are_independent(name):
    f, x = layer(name), normal(50, 3, 4, 6)
    padding = torch.stack([PADDING, ~PADDING, torch.ones(4, dtype=torch.bool)])
    together = f.jacobian(x, padding)
    v = normal(51, 3, 24)
    assert together.batch == (3,)
    assert_close(together.matvec(v), torch.stack([f.jacobian(x[i], padding[i]).matvec(v[i]) for i in range(3)]))
    assert_close(f(x, padding), torch.stack([f(x[i], padding[i]) for i in range(3)]))


@pytest.mark.parametrize("name", LAYERS)
def test_heads_add_up_to_the_layer(name):
    f, x = layer(name), normal(50, 4, 6)
    assert_close(sum(f.head(i)(x) for i in range(f.heads)) + f.bo, f(x))
    concatenated = layer(name, d_out=None)
    assert_close(torch.cat([concatenated.head(i)(x) for i in range(f.heads)], -1), concatenated(x))


def test_the_jacobian_depends_on_the_query_bias_but_not_on_those_of_keys_and_values():
    f, x = layer("two heads"), normal(50, 4, 6)
    parts = dict(wq=f.wq, wk=f.wk, wv=f.wv, wo=f.wo, heads=2)
    truth = f.jacobian(x).dense()
    assert_close(SelfAttention(**parts, bq=f.bq).jacobian(x).dense(), truth)
    assert (SelfAttention(**parts).jacobian(x).dense() - truth).abs().max() > 0.1


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_is_orthogonal_and_relative(interleaved):
    rotate, x = rotary(interleaved), normal(1, 16, 5)
    assert_close(rotate.transpose(rotate(x)), x)
    same = normal(2, 1, 5).expand(16, 5)
    scores = rotate(same) @ rotate(same).T
    assert_close(scores.diagonal(3), scores[0, 3].expand(13))


def test_the_float64_reference_is_the_same_operator():
    f, x = layer("grouped").to(torch.float32), normal(50, 4, 6).float()
    precise = f.jacobian(x).precise()
    assert precise.dtype == torch.float64
    assert_close(precise.dense(), reference.jacobian(f, x))


def test_a_single_token_sees_only_itself():
    f, x = layer("two heads"), normal(50, 1, 6)
    assert_close(f.jacobian(x).dense(), f.wo @ f.wv)


def make(**changes):
    weights = dict(wq=normal(1, 6, 4), wk=normal(2, 6, 4), wv=normal(3, 6, 4), wo=normal(4, 4, 6), heads=2)
    return SelfAttention(**(weights | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(wq=normal(1, 6)), "wq with 2 axes"),
        (dict(wq=torch.ones(6, 4, dtype=torch.int64)), "wq with 2 axes of a floating dtype"),
        (
            dict(wq=normal(1, 6, 0), wk=normal(1, 6, 0), wv=normal(1, 6, 0)),
            r"wq of shape \(2 · head width, d > 0\), got",
        ),
        (dict(heads=4), r"wq of shape \(4 · head width, 4\)"),
        (dict(kv_heads=3, heads=2), "multiple of kv_heads"),
        (dict(wk=normal(2, 6, 5)), r"wk of shape \(2 · head width, 4\), got \(6, 5\)"),
        (dict(wk=normal(2, 4, 4)), "one head width"),
        (dict(wo=normal(4, 4, 5)), r"wo of shape \(d_out, 6\)"),
        (dict(bq=normal(5, 5)), "bq of the height of wq"),
        (dict(wo=None, bo=normal(5, 4)), "no wo"),
        (dict(wv=normal(3, 6, 4).float()), "one dtype"),
        (dict(wv=torch.full((6, 4), float("nan"), dtype=torch.float64)), "NaN or ∞ in wv"),
        (dict(rotary=(torch.ones(4, 3), torch.ones(4, 3))), "even r"),
    ],
)
def test_bad_weights_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("x", "padding", "message"),
    [
        (normal(1, 3, 5), None, r"\(n, 4\)"),
        (normal(1, 0, 4), None, "at least one token"),
        (normal(1, 3, 4).float(), None, "use .to()"),
        (normal(1, 3, 4), torch.ones(4, dtype=torch.bool), r"shape \(3,\)"),
    ],
)
def test_bad_tokens_are_refused_by_name(x, padding, message):
    f = make()
    with pytest.raises(InputError, match=message):
        f(x, padding)
    with pytest.raises(InputError, match=message):
        f.jacobian(x, padding)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(window=0), "window ≥ 1"),
        (dict(window=-1, causal=True), "window ≥ 1"),
        (dict(softcap=0.0), "softcap > 0"),
        (dict(scale=float("inf")), "finite scale"),
        (dict(score_bias=normal(1, 9, 9)), "score_bias table"),
        (dict(score_bias=normal(1, 5, 3, 3)), "score_bias table"),
    ],
)
def test_invalid_options_are_refused_by_the_map_and_its_jacobian(changes, message):
    f, x = make(**changes), normal(1, 3, 4)
    with pytest.raises(InputError, match=message):
        f(x)
    with pytest.raises(InputError, match=message):
        f.jacobian(x)


def test_a_bias_function_may_return_a_number():
    assert_close(make(score_bias=lambda i, j: 0.5)(normal(1, 3, 4)), make()(normal(1, 3, 4)))


def test_invalid_heads_tokens_and_tables_are_refused():
    f = make()
    with pytest.raises(InputError, match="head from 0 to 1, got 2"):
        f.head(2)
    with pytest.raises(InputError, match="finite tokens"):
        f.jacobian(torch.full((3, 4), float("inf"), dtype=torch.float64))
    nan = torch.full((4, 2), float("nan"))
    with pytest.raises(InputError, match="finite rotary"):
        Rotary(nan, nan)
    with pytest.raises(InputError, match="rotary tables as the weights are"):
        make(rotary=(torch.ones(4, 2), torch.ones(4, 2)))
    few = Rotary(torch.ones(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="at most 2 tokens"):
        make(rotary=few)(normal(1, 3, 4))
