"""Scores and masks of attention: everything of it that is not q, k or v."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

if TYPE_CHECKING:
    from howsmooth.attention.sparse import SparseMask


ScoreFunction = Callable[[Tensor, Tensor], Tensor]
ScoreBias = ScoreFunction | Tensor


class ScoreOptions(TypedDict):
    """The arguments of `attend` that determine scores and masks."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    score_bias: ScoreBias | None


@dataclass(frozen=True, eq=False)
class Pattern:
    """The scores `s_ij = c(scale · q_i·k_j) + β_ij` and the visible pairs (i, j).

    c is the identity, or the soft cap `c(s) = cap · tanh(s/cap)`. A pair that is not visible has the score −∞, never a
    large negative number: an attack can push scores below any finite number.

    Attributes:
        scale: factor of q·k.
        causal: whether a query sees only the keys up to its own position.
        window: number of positions that a query sees on each side, itself included.
        softcap: bound of the scores before offsets.
        score_bias: offsets β, as a table or as a function of the indices.
        offset: position of query 0 among the keys.
        mask: a block-sparse mask, which the others restrict further.
    """

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    score_bias: ScoreBias | None = None
    offset: int = 0
    mask: SparseMask | None = None

    @property
    def hides_pairs(self) -> bool:
        """Whether some pairs may be hidden by position, so that blocks of few queries see fewer keys."""
        return self.causal or self.window is not None or self.mask is not None

    def visible_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """Return a range [start, stop) that contains all keys visible to the queries [first, last)."""
        start, stop = (0, keys) if self.mask is None else self.mask.key_range(first, last)
        if self.causal:
            stop = min(stop, self.offset + last)
        elif self.window is not None:
            stop = min(stop, self.offset + last - 1 + self.window)
        if self.window is not None:
            start = max(start, self.offset + first - self.window + 1)
        stop = max(stop, 0)
        return min(start, stop), stop

    def visible(self, i: Tensor, j: Tensor) -> Tensor | None:
        """Return which of the pairs i (n, 1), j (1, m) are visible, as (n, m) or (b or 1, h or 1, n, m), or None."""
        found = None
        if self.mask is not None:
            found = self.mask.visible(int(i[0, 0]), int(i[-1, 0]) + 1, int(j[0, 0]), int(j[0, -1]) + 1)
        if not self.causal and self.window is None:
            return found
        distance = j - (i + self.offset)  # positive where the key comes after the query
        near = distance <= 0 if self.window is None or self.causal else distance < self.window
        if self.window is not None:
            near = near & (distance > -self.window)
        return near if found is None else found & near

    def bias(self, i: Tensor, j: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the offsets β_ij for i (n, 1), j (1, m), as (h or 1, n, m), or None if there are none."""
        if self.score_bias is None:
            return None
        if isinstance(self.score_bias, Tensor):
            bias = self.score_bias[..., i[0, 0] : i[-1, 0] + 1, j[0, 0] : j[0, -1] + 1]
        else:
            bias = torch.as_tensor(self.score_bias(i, j))
        bias = bias.detach().to(device=i.device)
        # A boolean table is True where a pair counts.
        bias = torch.where(bias, 0.0, -torch.inf).to(dtype) if bias.dtype == torch.bool else bias.to(dtype)
        return bias if bias.dim() >= 3 else bias.unsqueeze(0)
