"""Functions with casts to a coarser dtype: the interval contains the exact norm and the norm with the casts."""

from contextlib import nullcontext

import pytest
import torch

from howsmooth import InputError, NotConverged, SelfAttention, attend, local_lipschitz
from howsmooth.lipschitz import AutodiffJacobian, token_gains
from howsmooth.lipschitz.casts import CastDetector, evaluated_in_float64
from howsmooth.lipschitz.rowwise import rowwise_jacobian, spectral_norms
from howsmooth.spectral import MatrixOperator, power_method, singular_values
from tests.attention.cases import normal
from tests.tolerances import FLOAT32, assert_close, at_most, less

N, D = 5, 4


def dense(f, x):
    return torch.autograd.functional.jacobian(f, x).double().reshape(-1, x.numel())


def sigma_1(matrix):
    return float(torch.linalg.svdvals(matrix)[0])


def weights(seed, dtype=torch.float32):
    return [normal(seed * 10 + i, D, D).to(dtype) for i in range(3)]


def mix(x, wq, wk, wv):
    """One head in plain operations, exact in the dtype of its input."""
    return torch.softmax((x @ wq) @ (x @ wk).T / D**0.5, -1) @ (x @ wv)


def under_autocast(half):
    def f(ws):
        def run(x):
            with torch.autocast("cpu", dtype=half):
                return mix(x, *ws)

        return run

    return f


def by_hand(half):
    return lambda ws: lambda x: mix(x.to(half), *(w.to(half) for w in ws)).to(x.dtype)


def softmax_in_float32(ws):
    def f(x):
        q, k, v = (x @ w for w in ws)
        return torch.softmax(q @ k.T / D**0.5, -1, dtype=torch.float32).to(x.dtype) @ v

    return f


NARROWING = {
    "autocast bf16": (under_autocast(torch.bfloat16), torch.float32),
    "autocast fp16": (under_autocast(torch.float16), torch.float32),
    "bf16 by hand": (by_hand(torch.bfloat16), torch.float32),
    "fp16 by hand": (by_hand(torch.float16), torch.float32),
    "bf16 by hand in float64": (by_hand(torch.bfloat16), torch.float64),
    "float32 by hand in float64": (by_hand(torch.float32), torch.float64),
    "softmax in float32 in float64": (softmax_in_float32, torch.float64),
}


@pytest.mark.parametrize("name", NARROWING)
def test_interval_contains_the_norm_with_and_without_the_casts(name):
    make, dtype = NARROWING[name]
    for seed in range(8):
        ws, x = weights(seed, dtype), normal(seed * 10 + 5, N, D).to(dtype)
        f = make(ws)
        exact = sigma_1(dense(lambda y, ws=ws: mix(y, *(w.double() for w in ws)), x.double()))
        found = local_lipschitz(f, x, strict=False, seed=seed)
        assert at_most(found.lower, exact, found.upper)
        assert at_most(found.lower, sigma_1(dense(f, x)), found.upper, tol=1e-6)
        assert found.value == pytest.approx(exact, rel=1e-3)
        assert less(found.upper - found.lower, 0.5 * found.value)
        if "float32" in name:
            assert found.status == "converged"


def test_status_reports_the_precision_limit_of_casts():
    ws, x = weights(1), normal(15, N, D).float()
    with pytest.raises(NotConverged, match=r"precision limit.*rounding"):
        local_lipschitz(under_autocast(torch.bfloat16)(ws), x)
    assert local_lipschitz(under_autocast(torch.bfloat16)(ws), x, tol=0.4).status == "converged"


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_interval_allows_for_the_coarsest_dtype_if_float64_is_refused(half):
    for seed in range(8):
        ws, x = weights(seed), normal(seed * 10 + 5, N, D).float()
        f = by_hand(half)(ws)

        def float32_only(y, f=f):
            assert y.dtype == torch.float32
            return f(y)

        with pytest.warns(UserWarning, match="its casts are measured as part of it"):
            found = local_lipschitz(float32_only, x, strict=False, seed=seed)
        exact = sigma_1(dense(lambda y, ws=ws: mix(y, *(w.double() for w in ws)), x.double()))
        assert at_most(found.lower, exact, found.upper)
        assert found.status == "precision limit"


def test_a_function_that_writes_into_a_captured_tensor_is_differentiated_as_it_is():
    buffer, x = torch.zeros(N, D), normal(1, N, D).float()

    def f(y):
        buffer.copy_(y.detach())
        return 2 * y

    with pytest.raises(NotImplementedError, match="write into float64 alone"):
        evaluated_in_float64(f)(x.double())
    with pytest.warns(UserWarning, match="NotImplementedError: expected to write into float64 alone"):
        found = local_lipschitz(f, x)
    assert at_most(found.lower, 2.0, found.upper)
    assert_close(buffer, x, FLOAT32)


def test_captured_float32_weights_are_converted_to_float64():
    ws, x = weights(2), normal(25, N, D).float()
    operator = AutodiffJacobian(lambda y: mix(y, *ws), x)
    assert not operator.casts and operator.precise().dtype == torch.float64
    assert_close(operator.precise().dense(), dense(lambda y: mix(y, *(w.double() for w in ws)), x.double()))


def test_only_casts_to_a_coarser_dtype_are_detected():
    x = normal(1, N, N)
    with CastDetector() as seen:
        mask = torch.full((N, N), -torch.inf).triu(1)  # a constant in float32
        torch.softmax(x + mask, -1) @ x.float().double()
    assert seen.unit == torch.finfo(torch.float32).eps
    with CastDetector() as seen:
        torch.softmax(x + mask, -1) @ (x > 0).double()
    assert seen.unit == 0
    with CastDetector() as seen, torch.autocast("cpu", dtype=torch.bfloat16):
        x.float() @ x.float()
    assert seen.unit == torch.finfo(torch.bfloat16).eps


def test_integers_are_converted_to_float64():
    y = evaluated_in_float64(lambda x: x / (torch.arange(3).float() + 3))(torch.ones(3))
    assert_close(y, 1 / (torch.arange(3).double() + 3))


def test_without_casts_there_are_no_additional_products():
    ws, x = weights(3, torch.float64), normal(35, N, D)
    operator = AutodiffJacobian(lambda y: mix(y, *ws), x)
    found, same = singular_values(operator), singular_values(MatrixOperator(operator.dense()))
    assert not operator.casts and found.products == same.products


@pytest.mark.parametrize("of", ["input", "output"])
@pytest.mark.parametrize("name", ["autocast bf16", "bf16 by hand in float64", "float32 by hand in float64"])
def test_gains_of_tokens_allow_for_casts(name, of):
    make, dtype = NARROWING[name]
    for seed in range(4):
        ws, x = weights(seed, dtype), normal(seed * 10 + 5, N, D).to(dtype)
        f = make(ws)
        found = token_gains(f, x, of=of, strict=False, seed=seed)
        for g, y in ((lambda y, ws=ws: mix(y, *(w.double() for w in ws)), x.double()), (f, x)):
            blocks = dense(g, y).view(N, D, N, D)
            truth = torch.stack(
                [
                    torch.linalg.matrix_norm(
                        blocks[:, :, j].flatten(0, 1) if of == "input" else blocks[j].flatten(1), 2
                    )
                    for j in range(N)
                ]
            )
            assert at_most(found.lower, truth, tol=1e-6) and at_most(truth, found.upper, tol=1e-6)


@pytest.mark.parametrize("width", [4, 100])
def test_rowwise_norms_allow_for_casts(width):
    """Small operators are formed as matrices, large ones are solved by Lanczos."""
    w, x = normal(1, width, width), normal(2, N, width)

    def f(y):
        return torch.tanh((y.bfloat16() @ w.bfloat16()).double())

    exact = torch.func.vmap(torch.func.jacrev(lambda y: torch.tanh(y @ w)))(x)
    found = spectral_norms(rowwise_jacobian(f, x))
    truth = torch.linalg.matrix_norm(exact, 2)
    assert at_most(found.lower, truth) and at_most(truth, found.upper)


def test_autocast_around_a_solver_is_refused():
    x, one = normal(1, 3, 3).float(), torch.eye(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for solve in (
            lambda: local_lipschitz(lambda y: y @ x, x),
            lambda: singular_values(MatrixOperator(x)),
            lambda: local_lipschitz(SelfAttention(one, one, one), x),
            lambda: AutodiffJacobian(torch.tanh, x),
            lambda: power_method(MatrixOperator(x)),
        ):
            with pytest.raises(InputError, match=r"no autocast around.*inside of the function"):
                solve()


@pytest.mark.parametrize("size", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("float32_only", [False, True])
def test_attend_inside_a_function_at_large_scores(size, float32_only):
    """Tokens far apart attend only to themselves, and the derivative is the identity."""
    eye = torch.eye(D)
    x = (2 * size) ** 0.5 * eye

    def f(y):
        assert not float32_only or y.dtype == torch.float32
        return attend(*((y @ eye)[None] for _ in range(3)))[0]

    with pytest.warns(UserWarning, match="does not run in float64") if float32_only else nullcontext():
        found = local_lipschitz(f, x, strict=False)
    assert at_most(found.lower, 1.0, found.upper) and found.status == "converged"


@pytest.mark.parametrize("size", [1e3, 1e4])
def test_attend_inside_a_function_at_unsaturated_large_scores(size):
    for seed in range(25):
        ws, x = weights(seed), normal(seed * 10 + 5, N, D)
        scores = (x @ ws[0].double()) @ (x @ ws[1].double()).T / D**0.5
        x = (x * (size / scores.abs().max()) ** 0.5).float()
        found = local_lipschitz(lambda y, ws=ws: attend(*((y @ w)[None] for w in ws))[0], x, strict=False, seed=seed)
        exact = sigma_1(dense(lambda y, ws=ws: mix(y, *(w.double() for w in ws)), x.double()))
        assert at_most(found.lower, exact, found.upper)
