"""What one call of attention looks like: its largest logit, its entropy, and the token that gets the most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from howsmooth.attention import blockwise
from howsmooth.attention.op import pattern_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


_DEFAULTS: dict[str, Any] = dict(scale=None, causal=False, window=None, softcap=None, score_bias=None)


class AttentionStatistics(NamedTuple):
    """Statistics of the scores and the probabilities P of one attention, over all heads and queries.

    Attributes:
        largest_logit: Largest score that is not masked.
        entropy: Mean over heads and queries of −Σⱼ P_ij log P_ij, in nats.
        sink_share: Largest share of attention that one key gets: the mean of P_ij over heads and queries.
        sink_position: The position of that key.
    """

    largest_logit: float
    entropy: float
    sink_share: float
    sink_position: int


@torch.no_grad()
def attention_statistics(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b hkv m k"],
    v: Float[Tensor, "b hkv m w"],
    *,
    padding: Bool[Tensor, "b m"] | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> AttentionStatistics:
    """Compute the statistics of a call of `attend`, with its arguments; a block of queries at a time.

    Args:
        q: Queries.
        k: Keys.
        v: Values; only their shape matters.
        padding: True where the key is real.
        sinks: As `attend`: scores of keys without a value, (h,). What they get is attention that no token gets.
        **options: The other arguments of `attend` that belong to the scores: scale, causal, window, …

    Returns:
        The statistics. Queries that see no key are left out.

    Example:
        >>> q, k = torch.tensor([[[[0.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
        >>> found = attention_statistics(q, k, k)
        >>> found.largest_logit, round(found.entropy, 4), found.sink_share, found.sink_position
        (0.0, 0.6931, 0.5, 0)
    """
    q, k, v = (t.detach() if t.dtype.itemsize >= 4 else t.detach().float() for t in (q, k, v))
    bias = options.get("score_bias")
    if isinstance(bias, Tensor) and bias.is_floating_point():
        options["score_bias"] = bias.to(q.dtype)
    pattern = pattern_of(q, k, v, **(_DEFAULTS | options))
    b, h, _, _ = q.shape
    received = q.new_zeros(k.shape[2])
    largest, entropy, rows = -torch.inf, 0.0, 0
    for first, last in blockwise.spans(q, k, pattern):
        s, _, start, stop = blockwise.block_scores(pattern.scale * q, k, pattern, padding, first, last)
        if start == stop:
            continue
        s = blockwise.unfold(s, h)
        seen = s > -torch.inf
        shown = s if sinks is None else torch.cat([s, sinks.to(s)[:, None, None].expand(b, -1, last - first, 1)], -1)
        log_p = s - shown.logsumexp(-1, keepdim=True)
        p = torch.where(seen, log_p, -torch.inf).exp()
        received[start:stop] += p.sum((0, 1, 2))
        entropy -= float(torch.where(seen, p * log_p, 0.0).sum())
        rows += int(seen.any(-1).sum())
        largest = max(largest, float(s.max()))
    shares = received / max(rows, 1)
    position = int(shares.argmax())
    return AttentionStatistics(largest, entropy / max(rows, 1), float(shares[position]), position)
