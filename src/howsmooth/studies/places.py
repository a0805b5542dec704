"""Where in the text a worst direction sits: the tokens that carry most of it, and the share of every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, topk

NAMED_TOKENS = 3  # how many of the direction's tokens a record names
MOST_SHARES = 8192  # tokens beyond which a record names the largest shares only


def top_tokens(shares: Tensor, word: Callable[[int], str]) -> list[dict[str, Any]]:
    """The tokens that carry the most of the worst direction, with their share of its squared norm."""
    top = topk(shares.flatten(), min(NAMED_TOKENS, shares.numel()))
    return [{"position": i, "token": word(i), "share": share}
            for i, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


def all_shares(shares: Tensor) -> list[float] | None:
    """The share of every token, to three digits and zero below 10⁻⁶; None for texts too long for it.

    >>> import torch
    >>> all_shares(torch.tensor([0.123456, 1e-9]))
    [0.123, 0.0]
    """
    if shares.numel() > MOST_SHARES:
        return None
    return [float(f"{share:.3g}") if share >= 1e-6 else 0.0 for share in shares.flatten().tolist()]
