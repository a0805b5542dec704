"""The implementation that is named is the one that `attend` runs, and the reason is that of the kernels."""

from __future__ import annotations

import pytest
import torch

from howsmooth import attend, kernels
from howsmooth.attention import implementation
from howsmooth.attention.backend import BLOCKS, KERNELS


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
@pytest.mark.parametrize("supported", [True, False])
def test_the_named_implementation_runs(lead, supported, monkeypatch):
    """The kernels are replaced by blocks of queries that note the call, so that both choices can run on a CPU."""
    seen, calls = [], []

    def unsupported(q, k, v, *others, score_bias=None, padding=None, precision=None, sparse=False):
        seen.append((q.shape, padding.shape))
        return None if supported else "not today"

    def forward(q, k, v, padding=None, **options):
        calls.append(q.shape)
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_zeros(*q.shape[:-1], 2)

    monkeypatch.setattr(kernels, "unsupported", unsupported)
    monkeypatch.setattr(kernels, "forward", forward)
    q, kv = torch.zeros(*lead, 4, 3, 8), torch.zeros(2, 5, 8)  # keys are shared by the batch
    padding = torch.ones(5, dtype=torch.bool)
    found = implementation(q, kv, kv, padding=padding)
    assert found == ((KERNELS, None) if supported else (BLOCKS, "not today"))
    attend(q, kv, kv, padding=padding)
    assert len(calls) == supported
    assert len(set(seen)) == 1, "the kernels are asked about the same shapes"


def test_the_reason_is_that_of_the_kernels():
    x = torch.zeros(1, 2, 4, 300, dtype=torch.float64)
    found = implementation(x, x, x)
    assert found.name == BLOCKS and found.reason == kernels.unsupported(x, x, x)
