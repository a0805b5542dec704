"""Memory: planned before a solve, never exceeded, and without effect on the result."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from howsmooth.errors import InputError
from howsmooth.spectral import FunctionOperator, MatrixOperator, plan, singular_values
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import at_most, less


class LiveBytes(TorchDispatchMode):
    """Peak of the bytes in live storages that tensor operations created."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def _freed(self, key, size):
        self.known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):  # storages from before are not counted
                self.known.add(tensor.untyped_storage()._cdata)
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
                    self.peak = max(self.peak, self.now)
        return out


def decaying(size, dtype):
    """A diagonal operator whose products take little memory; its spectrum needs dozens of steps."""
    diagonal = torch.linspace(1, 0, size, dtype=dtype)
    reference = FunctionOperator(
        lambda v: diagonal.double() * v, lambda u: diagonal.double() * u, (size, size), dtype=torch.float64
    )
    return FunctionOperator(
        lambda v: diagonal * v,
        lambda u: diagonal * u,
        (size, size),
        dtype=dtype,
        workspace=8 * size,
        precise=lambda: reference,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("stored", [3, 8, 30])
@pytest.mark.parametrize("name", ["flat", "clustered", "separated"])
def test_limited_memory_gives_the_same_result(name, stored, dtype):
    matrix = matrix_with(SPECTRA[name], rows=300, cols=300).to(dtype)
    operator = MatrixOperator(matrix)
    needed = plan(operator, max_steps=60)
    limit = needed.total - (60 - stored) * needed.bytes_per_vector
    assert plan(operator, max_memory=limit, max_steps=60).stored == stored
    free = singular_values(operator, max_steps=60, strict=False, tol=1e-2)
    limited = singular_values(operator, max_steps=60, strict=False, tol=1e-2, max_memory=limit)
    truth = largest(matrix)
    assert free.status == "converged"
    assert at_most(limited.lower, truth, limited.upper)
    assert limited.value.item() == pytest.approx(free.value.item(), rel=1e-4)
    assert limited.status == "converged"
    # The vector comes from a second pass: it must attain the value and be as good a singular vector.
    assert at_most(limited.residual, 3 * free.residual + 1e-4 * truth)
    if free.steps > stored:
        assert limited.products > free.products


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [1, 3])
def test_the_plan_is_not_exceeded(dtype, k):
    operator = decaying(20_000, dtype)
    for limit in (None, plan(operator, k=k).total // 2):
        budget = plan(operator, max_memory=limit, k=k)
        with LiveBytes() as live:
            singular_values(operator, k=k, tol=1e-2, max_memory=limit, strict=False)
        assert budget.bytes_per_vector * 8 < live.peak <= budget.total
        assert limit is None or budget.total <= limit


def test_the_basis_grows_with_the_steps_taken():
    """A solve that ends early must not allocate memory for the longest one."""
    operator = MatrixOperator(matrix_with(SPECTRA["separated"], rows=2000, cols=2000))
    budget = plan(operator)
    with LiveBytes() as live:
        found = singular_values(operator)
    assert found.steps < 20 < budget.max_steps
    assert less(live.peak, budget.total / 3)


def test_live_bytes_counts_live_storages():
    with LiveBytes() as live:
        kept = torch.ones(1000)
        torch.zeros(500)
        del kept
        torch.zeros(100)
    assert live.peak == 4000 + 2000 and live.now == 0


def test_too_little_memory_is_refused_with_the_minimum():
    operator = MatrixOperator(torch.ones(40, 50))
    with pytest.raises(InputError, match=r"at least (\d+) bytes") as caught:
        plan(operator, max_memory=1000, max_steps=20)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    assert plan(operator, max_memory=least, max_steps=20).stored == 3
    with pytest.raises(InputError):
        plan(operator, max_memory=least - 1, max_steps=20)
    with pytest.raises(InputError, match="at least"):
        singular_values(operator, max_memory=1000)


def test_the_plan_as_text():
    text = str(plan(MatrixOperator(torch.ones(40, 50)), max_steps=20))
    assert "20 basis vectors" in text and "MiB" in text
