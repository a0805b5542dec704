"""PyTorch's own samples of `scaled_dot_product_attention`, from its tests of all operators, through the drop-in.

They are read from the installed torch. Those with dropout are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from howsmooth import InputError, scaled_dot_product_attention
from tests.tolerances import assert_close

Case = tuple[tuple[Tensor, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def samples() -> list[Case]:
    """The tensors and options of each sample, in float64, with gradients."""
    pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest: pip install expecttest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules for other devices, which torch imports along
        from torch.testing._internal import common_methods_invocations as operators
    name = "nn.functional.scaled_dot_product_attention"
    (operator,) = (operator for operator in operators.op_db if operator.name == name)
    return [
        ((sample.input, *sample.args), sample.kwargs)
        for sample in operator.sample_inputs("cpu", torch.float64, requires_grad=True)
    ]


@pytest.fixture(scope="module")
def cases(samples: list[Case]) -> list[Case]:
    """The samples without dropout."""
    found = [(tensors, options) for tensors, options in samples if not options.get("dropout_p")]
    assert len(found) > 10  # as many as there are, and not none
    assert any("attn_mask" in options for _, options in found)
    return found


def test_outputs(cases):
    for tensors, options in cases:
        assert_close(
            scaled_dot_product_attention(*tensors, **options), F.scaled_dot_product_attention(*tensors, **options)
        )


def test_gradients_in_both_modes(cases):
    """`check_batched_grad` applies `vmap` to the backward pass."""
    for tensors, options in cases:
        f = partial(scaled_dot_product_attention, **options)
        assert gradcheck(f, tensors, fast_mode=True, check_forward_ad=True, check_batched_grad=True)


def test_second_derivatives_in_both_modes(cases):
    for tensors, options in cases:
        f = partial(scaled_dot_product_attention, **options)
        assert gradgradcheck(f, tensors, fast_mode=True, check_fwd_over_rev=True, check_batched_grad=True)


def test_vmap(cases):
    for tensors, options in cases:
        tensors = tuple(t.detach() for t in tensors)
        several = tuple(torch.stack([t, t.flip(-2), 2 * t]) for t in tensors)
        f: Callable[..., Tensor] = partial(scaled_dot_product_attention, **options)
        found = torch.func.vmap(f)(*several)
        assert_close(found, torch.stack([f(*one) for one in zip(*several, strict=True)]))
        tangents = torch.func.vmap(lambda *one, f=f: torch.func.jvp(f, one, one)[1])(*several)
        assert_close(tangents, torch.stack([torch.func.jvp(f, one, one)[1] for one in zip(*several, strict=True)]))


def test_dropout_is_refused(samples):
    refused = [(tensors, options) for tensors, options in samples if options.get("dropout_p")]
    assert refused
    for tensors, options in refused:
        with pytest.raises(InputError, match=r"expected dropout_p = 0, got 0\.5"):
            scaled_dot_product_attention(*tensors, **options)
