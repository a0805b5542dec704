"""Who sees whom by time: softmax attention and plain integrals over the points with times up to one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention.op import attend

# Pairs (place, point) held at once by an integral in blocks.
BLOCK_PAIRS = 1 << 21


def attend_by_time(q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor | None,
                   source_times: Tensor | None) -> Tensor:
    """`attend` where query i sees the keys of source times ≤ its own; q (…, h, m, k), times (…, m).

    Nothing of size m·n is kept. One point per time is the causal op on sorted tokens, and as fast.
    """
    if times is None:
        return attend(q, k, v, scale=scale)
    if times.dim() == 1:
        return _attend_one(q, k, v, scale, times, source_times)
    lead = times.shape[:-1]
    members = zip(*(t.flatten(0, len(lead) - 1) for t in (q, k, v, times, source_times)), strict=True)
    outputs = [_attend_one(a, b, c, scale, t, s) for a, b, c, t, s in members]
    return torch.stack(outputs).unflatten(0, lead)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor, source_times: Tensor) -> Tensor:
    if torch.equal(times, source_times):
        order = torch.argsort(times, stable=True)
        steps = times[order].diff()
        if (steps > 0).all():
            if (times.diff() > 0).all():
                return attend(q, k, v, scale=scale, causal=True)
            back = torch.argsort(order)
            return attend(*(t[..., order, :] for t in (q, k, v)), scale=scale, causal=True)[..., back, :]

    def hidden(i: Tensor, j: Tensor) -> Tensor:
        seen = source_times[j] <= times[i]
        return torch.where(seen, 0.0, -torch.inf)

    return attend(q, k, v, scale=scale, score_bias=hidden)


def integrate(kernel, x: Tensor, points: Tensor, log_weights: Tensor, values: Tensor, times: Tensor | None,
              source_times: Tensor | None) -> Tensor:
    """∫ k(x, y) v(y) dμ(y), or with times dμ(y | τ ≤ s), a block of places at a time; kernel: rows, points → pairs."""
    pairs = points.shape[-2] * max(1, x.shape[:-2].numel())
    rows = max(1, BLOCK_PAIRS // pairs)
    pieces = []
    for first in range(0, x.shape[-2], rows):
        block = kernel(x[..., first:first + rows, :], points)
        weights = torch.log_softmax(log_weights, -1).unsqueeze(-2).exp()
        if times is not None:
            # In logarithms, since what is seen at first may weigh less than the smallest double.
            seen = source_times.unsqueeze(-2) <= times[..., first:first + rows].unsqueeze(-1)
            nothing = ~seen.any(-1, keepdim=True)
            weights = torch.softmax(log_weights.unsqueeze(-2).masked_fill(~seen & ~nothing, -torch.inf), -1)
            weights = weights.masked_fill(nothing, 0.0)
        pieces.append((block * weights) @ values)
    return torch.cat(pieces, -2)
