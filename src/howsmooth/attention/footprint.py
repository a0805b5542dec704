"""Memory of a layer's derivative, known from shapes alone: what a plan counts with before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from howsmooth.attention import blockwise

if TYPE_CHECKING:
    from howsmooth.attention.heads import SelfAttention

# The probabilities of a layer are kept between products if they take no more than this many bytes: at 12 heads in
# float32 that is up to n = 1182. Beyond, they are computed again in each product.
KEEP_PROBABILITIES = 64 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes, as `LinearOperator` has them: inside a product, held, held by the twin, and of a number in the twin."""

    workspace: int
    held: int
    twin_held: int
    twin_size: int


def kept_scores(attention: SelfAttention, n: int, members: int, size: int, fused: bool) -> int:
    """Bytes of the probabilities that are kept between products; 0 where they are not."""
    scores = members * attention.heads * n * n * size * (1 if attention.softcap is None else 2)
    return scores if not fused and scores <= KEEP_PROBABILITIES else 0


def footprint(attention: SelfAttention, n: int, dtype: torch.dtype, products: torch.dtype | None = None,
              members: int = 1, fused: bool = False) -> Footprint:
    """What the derivative at `members` sequences of n tokens takes; `fused` where the kernels serve it.

    >>> from howsmooth.attention import SelfAttention
    >>> layer = SelfAttention(*(torch.ones(4, 4) for _ in range(3)))
    >>> footprint(layer, 2**20, torch.float32, torch.float32, fused=True).twin_held
    0
    """
    rounded = products is not None and products != dtype
    without_twin = dtype == torch.float64 or (products is not None and not rounded)
    twin_size = 0 if without_twin else 4 if rounded else 8
    size, single = (products or dtype).itemsize, dtype.itemsize
    entries = len(attention.wq) + len(attention.wk) + len(attention.wv)
    projected, weights = members * n * entries, entries * attention.d * single

    def held(size: int, fused: bool) -> int:
        # By the kernels q, k, v and the output stay; blocks have copies of some, and small layers their probabilities.
        tensors = size * projected * 3 // 2 if fused else size * 2 * projected
        return tensors + weights * max(size, 4) // single + kept_scores(attention, n, members, size, fused)

    if fused and twin_size < 8:
        workspace = single * 5 * projected // 2  # scores are never stored: projections, and what comes back
    else:
        # Three blocks and a few tensors of the size of q, k and v are live at once. The rest, found by measurement, is
        # left for what allocators and matrix libraries take.
        rows = blockwise.block_rows((members, attention.heads, n, 0), n, attention)
        workspace = single * (7 * rows * members * attention.heads * n + 5 * projected)
    return Footprint(workspace, held(size, fused), held(twin_size, fused and twin_size < 8) if twin_size else 0,
                     twin_size)
