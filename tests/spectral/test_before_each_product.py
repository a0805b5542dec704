"""`before_each_product`: a solve is watched and stopped from outside."""

import threading

import pytest
import torch

from howsmooth import local_lipschitz
from howsmooth.spectral import MatrixOperator, before_each_product, power_method, singular_values
from tests.attention.cases import layer, normal


class Stop(BaseException):
    """Raised by the hook."""


def stop_after(products: int):
    calls = []

    def hook() -> None:
        if len(calls) == products:
            raise Stop
        calls.append(products)

    return hook, calls


@pytest.mark.parametrize("solve", [singular_values, power_method])
def test_an_exception_ends_the_solve_before_the_next_product(solve):
    applied = []

    class Counted(MatrixOperator):
        def matvec(self, v):
            applied.append("J")
            return super().matvec(v)

        def rmatvec(self, u):
            applied.append("Jᵀ")
            return super().rmatvec(u)

    hook, calls = stop_after(3)
    with pytest.raises(Stop), before_each_product(hook):
        solve(Counted(normal(1, 40, 30)))
    assert applied == ["J", "Jᵀ", "J"] and len(calls) == 3
    assert singular_values(Counted(normal(1, 40, 30))).status == "converged"  # the hook is gone


def test_the_hook_sees_solves_deep_inside():
    calls = []
    with before_each_product(lambda: calls.append(1)):
        estimate = local_lipschitz(layer("causal"), normal(50, 4, 6))
    assert len(calls) == estimate.products > 0


def test_other_threads_are_not_affected():
    found = []

    def solve() -> None:
        found.append(singular_values(MatrixOperator(torch.eye(3))).status)

    hook, _ = stop_after(0)
    with before_each_product(hook):
        thread = threading.Thread(target=solve)
        thread.start()
        thread.join()
    assert found == ["converged"]
