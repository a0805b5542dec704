"""Fields against their definitions: values, weights, times, derivatives, invalid input."""

import math

import pytest
import torch

from howsmooth import InputError, NotConverged
from howsmooth.attention import L2Field, LinearField, MeanPooling, Pointwise, SigmoidField, SinkhornField, SoftmaxField
from howsmooth.attention.fields import integrals, sinkhorn
from tests.attention.cases import normal
from tests.attention.dense_fields import FIELDS, A, D, V, dense, layer
from tests.tolerances import assert_close, close

every = pytest.mark.parametrize("name", FIELDS)
X, Y, LOGS = normal(21, 4, D), normal(22, 6, D), 2 * normal(23, 6)
TIMES, SOURCE_TIMES = torch.tensor([0.5, 0.0, 1.0, 0.3]), torch.tensor([0.5, 0.0, 0.3, 0.3, 0.9, 0.0])


@every
def test_definition(name):
    gamma = FIELDS[name]
    assert (gamma.d, gamma.d_out) == (D, 2)
    assert_close(gamma(X, Y), dense(gamma, X, Y))
    assert_close(gamma(X, Y, LOGS), dense(gamma, X, Y, LOGS))
    assert_close(gamma.on_tokens(Y, LOGS), dense(gamma, Y, Y, LOGS))
    assert_close(gamma(X, Y, LOGS + 7.0), gamma(X, Y, LOGS))  # log weights up to a constant


@every
def test_times_condition_the_measure(name):
    gamma = FIELDS[name]
    assert_close(
        gamma(X, Y, LOGS, times=TIMES, source_times=SOURCE_TIMES), dense(gamma, X, Y, LOGS, TIMES, SOURCE_TIMES)
    )
    late = torch.ones(6)
    unseen = gamma(X, Y, LOGS, times=torch.tensor([0.0, 0.0, 0.0, 1.0]), source_times=late)
    if name == "layer":  # its output bias is added to all outputs
        unseen = unseen - gamma.layer.bo
    if name != "pointwise":
        assert_close(unseen[:3], torch.zeros(3, 2, dtype=torch.float64))


@every
def test_batches(name):
    gamma = FIELDS[name]
    x, y, logs = normal(24, 2, 4, D), normal(25, 2, 6, D), normal(26, 2, 6)
    times, sources = torch.stack([TIMES, TIMES.flip(0)]), torch.stack([SOURCE_TIMES, SOURCE_TIMES.flip(0)])
    assert_close(gamma(x, y, logs), torch.stack([gamma(*member) for member in zip(x, y, logs, strict=True)]))
    assert_close(gamma(x, y[0], logs), torch.stack([gamma(a, y[0], b) for a, b in zip(x, logs, strict=True)]))
    masked = [gamma(x[i], y[i], logs[i], times=times[i], source_times=sources[i]) for i in range(2)]
    assert_close(gamma(x, y, logs, times=times, source_times=sources), torch.stack(masked))
    assert_close(
        gamma(x, y, logs, times=TIMES, source_times=SOURCE_TIMES)[1],
        gamma(x[1], y[1], logs[1], times=TIMES, source_times=SOURCE_TIMES),
    )
    assert_close(torch.func.vmap(gamma)(x, y, logs), gamma(x, y, logs))


@every
def test_repeated_points_have_the_sum_of_their_weights(name):
    gamma = FIELDS[name]
    twice, logs = torch.cat([Y, Y[:2]]), torch.cat([LOGS, LOGS[:2]])
    doubled = LOGS + torch.tensor([math.log(2)] * 2 + [0.0] * 4, dtype=torch.float64)
    assert_close(gamma(X, twice, logs), gamma(X, Y, doubled), tol=1e-12)
    sources = torch.cat([SOURCE_TIMES, SOURCE_TIMES[:2]])
    assert_close(
        gamma(X, twice, logs, times=TIMES, source_times=sources),
        gamma(X, Y, doubled, times=TIMES, source_times=SOURCE_TIMES),
        tol=1e-12,
    )


@every
def test_the_order_of_points_is_irrelevant(name):
    gamma, order = FIELDS[name], torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(gamma.on_tokens(Y[order], LOGS[order]), gamma.on_tokens(Y, LOGS)[order], tol=1e-12)
    assert_close(
        gamma(Y[order], Y[order], LOGS[order], times=SOURCE_TIMES[order], source_times=SOURCE_TIMES[order]),
        gamma(Y, Y, LOGS, times=SOURCE_TIMES, source_times=SOURCE_TIMES)[order],
        tol=1e-12,
    )


@every
@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_in_x_points_and_weights(name, masked):
    """Forward and reverse mode against autograd through the definition (Sinkhorn: through 300 unrolled steps)."""
    gamma = FIELDS[name]
    times = dict(times=TIMES, source_times=SOURCE_TIMES) if masked else {}
    truth = torch.func.jacrev(lambda x, y, a: dense(gamma, x, y, a, *times.values()), (0, 1, 2))(X, Y, LOGS)

    def f(x, y, a):
        return gamma(x, y, a, **times)

    for found, exact in zip(torch.func.jacrev(f, (0, 1, 2))(X, Y, LOGS), truth, strict=True):
        assert_close(found, exact, tol=1e-10)
    tangents = (normal(31, 4, D), normal(32, 6, D), normal(33, 6))
    moved = sum(torch.tensordot(j, t, t.dim()) for j, t in zip(truth, tangents, strict=True))
    assert_close(torch.func.jvp(f, (X, Y, LOGS), tangents)[1], moved, tol=1e-10)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    (f(x, y, LOGS).sum() + 0 * y.sum() + 0 * x.sum()).backward()
    assert_close(x.grad, truth[0].sum((0, 1)), tol=1e-10)
    assert_close(y.grad, truth[1].sum((0, 1)), tol=1e-10)


@every
def test_second_derivatives(name):
    gamma = FIELDS[name]
    weights = normal(34, 6, 2)
    found = (
        torch.func.hessian(lambda y: (weights * gamma.on_tokens(y, LOGS)).sum())(Y)
        if name != "layer"
        else (torch.func.jacrev(torch.func.jacrev(lambda y: (weights * gamma.on_tokens(y, LOGS)).sum()))(Y))
    )
    step, direction = 1e-5, normal(35, 6, D)
    gradient = torch.func.grad(lambda y: (weights * gamma.on_tokens(y, LOGS)).sum())
    quotient = (gradient(Y + step * direction) - gradient(Y - step * direction)) / (2 * step)
    assert_close(torch.tensordot(found, direction, 2), quotient, tol=1e-7)


def test_causal_layers_are_masked_by_index_or_by_time():
    masked, times = SoftmaxField(layer(causal=True)), torch.arange(6) / 5
    assert close(masked.on_tokens(Y), masked.layer(Y))
    assert close(SoftmaxField(layer())(Y, Y, times=times, source_times=times), masked.layer(Y))
    assert_close(masked.on_tokens(Y, LOGS), dense(masked, Y, Y, LOGS, times, times))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(masked(Y[order], Y[order], times=times[order], source_times=times[order]), masked.layer(Y)[order])
    with pytest.raises(InputError, match="as many rows of x as points for a causal layer"):
        masked(X, Y)


def test_blocks_do_not_change_the_result(monkeypatch):
    for name in ("sigmoid", "linear"):
        whole = FIELDS[name](X, Y, LOGS, times=TIMES, source_times=SOURCE_TIMES)
        monkeypatch.setattr(integrals, "BLOCK_PAIRS", 7)
        assert_close(FIELDS[name](X, Y, LOGS, times=TIMES, source_times=SOURCE_TIMES), whole)
        monkeypatch.undo()


@every
def test_weights_below_the_smallest_double(name):
    """At time 0 only weights of e^{−2000} are visible; conditioned, they are 1/2 each."""
    gamma = FIELDS[name]
    logs = torch.tensor([-2000.0, -2000.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    sources = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert_close(gamma(X, Y, logs, times=torch.zeros(4), source_times=sources), gamma(X, Y[:2]))


def test_sinkhorn_has_the_right_marginals_and_the_closed_form_of_gaussians():
    """E Γ = Vα, and on a large symmetric sample the cross-covariance of x and Γ(x) is that of the Gaussian coupling."""
    gamma = FIELDS["sinkhorn"]
    weights = torch.softmax(LOGS, 0)
    assert_close(weights @ gamma.on_tokens(Y, LOGS), V @ (weights @ Y), tol=1e-12)
    # d = 1 on a fine grid, where sums are integrals: s = S A, and the coupling's correlation (√(1+4s²) − 1)/(2s).
    x = torch.linspace(-8, 8, 401, dtype=torch.float64)
    one = SinkhornField(torch.tensor([[0.6]], dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    slope = one.on_tokens(x[:, None], -x.square() / 2)[200:, 0][[20, 60, 100]] / x[200:][[20, 60, 100]]
    assert_close(slope, torch.full((3,), (math.sqrt(1 + 4 * 0.36) - 1) / 1.2, dtype=torch.float64), tol=1e-9)


def test_sinkhorn_raises_when_it_does_not_converge():
    with pytest.raises(NotConverged, match="larger eps") as caught:
        SinkhornField(40 * A, V, max_steps=3).on_tokens(Y)
    assert caught.value.partial.shape == (6,)
    assert not sinkhorn._differentiated(Y, LOGS)


def test_invalid_arguments_are_refused():
    gamma = FIELDS["linear"]
    for wrong, message in (
        ((X[:, :2], Y), "x of shape"),
        ((X, Y[:0]), "points of shape"),
        ((X.long(), Y), "floating dtype"),
        ((X.float(), Y), "one dtype"),
        ((X, Y, LOGS[:3]), "log_weights of shape"),
        (([1.0], Y), "got list"),
        ((normal(1, 2, 4, D), normal(1, 3, 6, D)), "leading axes"),
    ):
        with pytest.raises(InputError, match=message):
            gamma(*wrong)
    with pytest.raises(InputError, match="together, got only times"):
        gamma(X, Y, times=TIMES)
    with pytest.raises(InputError, match=r"times of shape \(…, 4\)"):
        gamma(X, Y, times=SOURCE_TIMES, source_times=SOURCE_TIMES)
    for make in (
        lambda: LinearField(A[:2], V),
        lambda: SigmoidField(A, V[:, :2]),
        lambda: MeanPooling(math.nan * V),
        lambda: L2Field(A, A[:2], V),
        lambda: SinkhornField(A, V, eps=0.0),
        lambda: Pointwise(3, D),
        lambda: SoftmaxField.of(A, V.float()),
        lambda: SoftmaxField.of(V, V),
        lambda: MeanPooling(V[0]),
        lambda: Pointwise(lambda x: x[..., :1], D)(X, Y),
        lambda: SoftmaxField(layer(window=2)),
    ):
        with pytest.raises(InputError, match="expected"):
            make()
    with pytest.raises(InputError, match="as the weights are"):
        FIELDS["softmax"](X.float(), Y.float())


@pytest.mark.parametrize("name", FIELDS)
def test_weights_and_times_are_checked(name):
    f, x, logs = FIELDS[name], normal(1, 4, D), normal(2, 4)
    assert_close(f(x, x, logs.float()), f(x, x, logs.float().double()))
    for broken in (dict(log_weights=logs.log()), dict(times=logs.log(), source_times=logs)):
        with pytest.raises(InputError, match="expected finite"):
            f(x, x, **broken)


def test_the_weights_of_the_published_code_are_those_of_another_query():
    """The code for flows of Gaussians has exp(2⟨Qx, Ky⟩/√d − |Ky|²): those of Q/√d, since |Qx|² cancels."""
    q, k = normal(41, 2, D), normal(42, 2, D)
    weights = torch.softmax(2 * (X @ q.T) @ (Y @ k.T).T / math.sqrt(D) - (Y @ k.T).square().sum(-1), -1)
    assert_close(L2Field(q / math.sqrt(D), k, V)(X, Y), weights @ Y @ V.T)
    assert not close(L2Field(q, k, V)(X, Y), weights @ Y @ V.T)
