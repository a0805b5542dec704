"""Copies at consecutive positions of a causal layer, against the numbers of the theory and the bound on the limit."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attention import reference
from howsmooth.lipschitz import consecutive_copies, consecutive_limit
from tests.tolerances import at_most

ONE = torch.ones(1, 1, dtype=torch.float64)
LINE = SelfAttention(-ONE, ONE, ONE, scale=1.0, causal=True)
TOKENS = torch.tensor([[-3.0], [0.3]], dtype=torch.float64)


def test_the_norm_may_decrease():
    found = [consecutive_copies(LINE, TOKENS, k, tol=1e-6).value for k in (1, 2, 8, 32, 128)]
    assert found == pytest.approx([2.315, 2.261, 2.202, 2.180, 2.173], abs=6e-4)
    dense = reference.jacobian(LINE, TOKENS.repeat_interleave(8, 0))
    assert found[2] == pytest.approx(float(torch.linalg.matrix_norm(dense, ord=2)), rel=1e-6)


def test_limit_against_a_grid_of_shares():
    found = consecutive_limit(LINE, TOKENS)
    share = torch.logspace(-4, 0, 20001, dtype=torch.float64)
    e = torch.exp(-TOKENS[1] * (TOKENS - TOKENS[1])).flatten()  # weights of the second token's row
    w = torch.stack([e[0].expand_as(share), share * e[1]], -1)
    w = w / w.sum(-1, keepdim=True)
    variance = (w * TOKENS[:, 0] ** 2).sum(-1) - (w * TOKENS[:, 0]).sum(-1) ** 2
    assert found.own == pytest.approx(float(variance.max()), rel=1e-6) and found.token == 1
    assert found.running_mean == pytest.approx(2.0)
    assert at_most(found.value, consecutive_copies(LINE, TOKENS, 128).upper)  # still above its limit from here


def test_the_norm_of_one_token_grows_from_v_to_twice_v():
    one = TOKENS[:1]
    assert consecutive_copies(LINE, one, 1).value == pytest.approx(1.0)
    assert consecutive_limit(LINE, one).value == pytest.approx(2.0)
    values = [consecutive_copies(LINE, one, k).value for k in (2, 16, 256)]
    assert values == pytest.approx([1.14, 1.47, 1.69], abs=5e-3)  # Hardy's running mean


def test_heads_and_shared_values():
    g = torch.Generator().manual_seed(0)
    q, k, v, _o = (torch.randn(rows, 3, generator=g, dtype=torch.float64) for rows in (4, 2, 2, 3))
    f = SelfAttention(q, k, v, torch.randn(3, 4, generator=g, dtype=torch.float64), heads=2, kv_heads=1, causal=True)
    x = torch.randn(4, 3, generator=g, dtype=torch.float64)
    found = consecutive_limit(f, x)
    summed = f.wo[:, :2] @ v + f.wo[:, 2:] @ v
    assert found.running_mean == pytest.approx(2 * float(torch.linalg.matrix_norm(summed, ord=2)))
    assert at_most(0.8 * found.value, consecutive_copies(f, x, 96).upper)


def test_bad_input():
    with pytest.raises(InputError, match="causal"):
        consecutive_copies(SelfAttention(ONE, ONE, ONE), TOKENS, 2)
    for x in ("tokens", TOKENS[None]):
        for ask in (lambda x: consecutive_copies(LINE, x, 2), lambda x: consecutive_limit(LINE, x)):
            with pytest.raises(InputError, match="tokens of one sequence"):
                ask(x)
    with pytest.raises(InputError, match="k ≥ 1"):
        consecutive_copies(LINE, TOKENS, 0)
    turned = SelfAttention(
        *(torch.ones(2, 1, dtype=torch.float64) for _ in range(3)),
        causal=True,
        rotary=(torch.ones(4, 2, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)),
    )
    with pytest.raises(InputError, match="rotary"):
        consecutive_limit(turned, TOKENS)
