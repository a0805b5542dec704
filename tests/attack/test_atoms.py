"""Attention on weighted atoms against repeated tokens, and against a dense derivative."""

import pytest
import torch

from howsmooth import InputError, local_lipschitz
from howsmooth.attention.weighted import WeightedAttention
from tests.attention.cases import layer, normal
from tests.tolerances import assert_close

PLAIN = ["one head", "two heads", "causal", "grouped", "one key head", "scale"]


def dense(f, x, a):
    """J in the weighted norm, by autograd through an explicit softmax with masses."""
    m, groups = x.shape[0], f.heads // f.kv_heads

    def heads(t, h, copies=1):
        return t.unflatten(-1, (h, -1)).transpose(0, 1).repeat_interleave(copies, 0)

    def atoms(x):
        q = heads(x @ f.wq.T + f.bq, f.heads)
        k, v = (heads(x @ w.T + b, f.kv_heads, groups) for w, b in ((f.wk, f.bk), (f.wv, f.bv)))
        weights = (f.scale * q @ k.mT).exp() * a
        if f.causal:
            weights = weights.tril()
        o = weights / weights.sum(-1, keepdim=True) @ v
        return o.transpose(0, 1).flatten(1) @ f.wo.T + f.bo

    D = torch.func.jacrev(atoms)(x)  # (m, d_out, m, d)
    D = D * (a[:, None, None, None] / a[None, None, :, None]).sqrt()
    return atoms(x), D.reshape(m * f.d_out, m * f.d)


def drawn(name):
    f = layer(name)
    return f, normal(30, 2, 4, f.d) * 0.7, normal(31, 2, 4) * 1.5


@pytest.mark.parametrize("name", PLAIN)
def test_against_the_dense_derivative(name):
    f, x, logs = drawn(name)
    atoms = WeightedAttention(f)
    J = atoms.jacobian(x, logs)
    found = J.dense()
    for i in range(2):
        image, truth = dense(f, x[i], logs[i].softmax(-1))
        assert_close(atoms(x[i], logs[i]), image)
        assert_close(found[i], truth)
        e = normal(33, truth.shape[0])
        assert_close(atoms.jacobian(x[i], logs[i]).rmatvec(e), truth.T @ e)


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_in_positions_and_masses(name):
    f, x, logs = drawn(name)
    J = WeightedAttention(f).jacobian(x, logs)
    u, v = normal(34, 2, J.shape[0]), normal(35, 2, J.shape[1])
    in_x, in_logs = J.gradient(u, v)
    for i in range(2):
        at = (x[i].clone().requires_grad_(), logs[i].clone().requires_grad_())
        truth = torch.autograd.grad(u[i] @ dense(f, at[0], at[1].softmax(-1))[1] @ v[i], at)
        assert_close(in_x[i], truth[0])
        assert_close(in_logs[i], truth[1])


@pytest.mark.parametrize("name", PLAIN)
def test_equal_masses_are_the_plain_map(name):
    f, x, _ = drawn(name)
    J = WeightedAttention(f).jacobian(x, torch.full((2, 4), 3.0, dtype=torch.float64))
    assert_close(J.dense(), f.jacobian(x).dense())


def test_rational_masses_are_repeated_tokens_that_move_together():
    f, x, _ = drawn("two heads")
    x, counts = x[0], torch.tensor([5, 1, 2, 3])
    whole = f.jacobian(x.repeat_interleave(counts, 0)).dense().unflatten(0, (11, -1)).unflatten(-1, (11, -1))
    first = counts.cumsum(0) - counts
    # Copies of atom j that move together by ε have unit norm if |ε| = 1/√count. Outputs are repeated as well.
    together = torch.stack([block.sum(-2) for block in whole.split(counts.tolist(), dim=-2)], -2)[first]
    roots = counts.double().sqrt()
    truth = together * roots[:, None, None, None] / roots[:, None]
    J = WeightedAttention(f).jacobian(x, counts.double().log())
    assert_close(J.dense(), truth.flatten(2).flatten(0, 1))


def test_masses_of_very_different_size():
    f, x, _ = drawn("one head")
    logs = torch.tensor([0.0, -60.0, -1.0, -120.0], dtype=torch.float64)
    assert_close(WeightedAttention(f).jacobian(x[0], logs).dense(), dense(f, x[0], logs.softmax(-1))[1], tol=1e-10)


def test_the_weighted_map_has_the_same_derivative():
    f, x, logs = drawn("causal")
    atoms = WeightedAttention(f)
    root = logs[0].softmax(-1).sqrt().unsqueeze(-1)
    value = local_lipschitz(atoms.rescaled(logs[0]), root * x[0], tol=1e-6).value
    truth = torch.linalg.matrix_norm(dense(f, x[0], logs[0].softmax(-1))[1], 2)
    assert_close(torch.tensor(value), truth, tol=1e-6)


@pytest.mark.parametrize("name", ["softcap", "rotary", "bias function", "bias table", "window"])
def test_refused_layers(name):
    with pytest.raises(InputError, match="weighted tokens: expected"):
        WeightedAttention(layer(name))


@pytest.mark.parametrize(
    "x, logs, message",
    [
        (
            normal(1, 2, 6),
            torch.tensor([0.0, -torch.inf], dtype=torch.float64),
            "finite log_weights, got -inf; leave out",
        ),
        (normal(1, 2, 6), torch.tensor([torch.nan, 0.0], dtype=torch.float64), "finite log_weights, got nan"),
        (normal(1, 2, 6), normal(2, 3), r"log_weights of shape \(2,\), one for each token, got shape \(3,\)"),
        (normal(1, 2, 6), [0.0, 0.0], "log_weights as a tensor .* got list"),
        ([1.0], normal(2, 1), r"tokens as a tensor \(…, m, 6\), got list"),
        (normal(1, 2, 5), normal(2, 2), r"tokens of shape \(n, 6\)"),
    ],
)
def test_refused_atoms(x, logs, message):
    atoms = WeightedAttention(layer("one head"))
    for call in (atoms, atoms.jacobian):
        with pytest.raises(InputError, match=message):
            call(x, logs)


def test_refused_weights_of_the_map():
    with pytest.raises(InputError, match="finite log_weights, got inf"):
        WeightedAttention(layer("one head")).rescaled(torch.tensor([torch.inf]))
