"""The quick test for finite entries, against a look at each of them."""

import pytest
import torch

from howsmooth.attention.weights import is_finite

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("entries", [[], [1.0, -2.0], [INF], [INF, -INF], [1.0, NAN], [-INF, 1.0]], ids=str)
def test_every_entry_counts(entries, dtype):
    t = torch.tensor(entries, dtype=dtype)
    assert is_finite(t) == bool(torch.isfinite(t).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_finite_entries_whose_sum_overflows_are_finite(dtype):
    t = torch.full((4,), torch.finfo(dtype).max, dtype=dtype, requires_grad=True)
    assert not torch.isfinite(t.sum()) and is_finite(t)
    assert not is_finite(torch.cat([t, t.new_tensor([INF])]))
