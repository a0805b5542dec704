"""Who sees whom, and with which score: everything of attention that is not q, k or v."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ScoreBias = Callable[[Tensor, Tensor], Tensor] | Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """The scores $s_{ij} = c(\\mathrm{scale}\\, q_i \\cdot k_j) + \\beta_{ij}$ and the pairs (i, j) that count.

    `offset` is the position of query 0 among the keys. `c` is the identity, or a soft cap
    $\\mathrm{cap} \\tanh(s / \\mathrm{cap})$. A pair that does not count has the score $-\\infty$, never a large
    negative number: an attack drives scores past any finite one.
    """

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    score_bias: ScoreBias | None = None
    offset: int = 0

    def visible_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The keys [start, stop) outside of which queries first..last-1 see nothing."""
        start, stop = 0, keys
        if self.causal:
            stop = min(stop, self.offset + last)
        elif self.window is not None:
            stop = min(stop, self.offset + last - 1 + self.window)
        if self.window is not None:
            start = max(start, self.offset + first - self.window + 1)
        stop = max(stop, 0)
        return min(start, stop), stop

    def visible(self, i: Tensor, j: Tensor) -> Tensor | None:
        """Which of the pairs i (n, 1), j (1, m) count; None if all do."""
        if not self.causal and self.window is None:
            return None
        ahead = j - (i + self.offset)
        seen = ahead <= 0 if self.causal else ahead < self.window
        return seen if self.window is None else seen & (ahead > -self.window)

    def bias(self, i: Tensor, j: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The offsets $\\beta_{ij}$ for i (n, 1), j (1, m), as (h or 1, n, m); None if there are none."""
        if self.score_bias is None:
            return None
        if isinstance(self.score_bias, Tensor):
            bias = self.score_bias[..., i[0, 0] : i[-1, 0] + 1, j[0, 0] : j[0, -1] + 1]
        else:
            bias = torch.as_tensor(self.score_bias(i, j))
        bias = bias.detach().to(device=i.device, dtype=dtype)
        return bias if bias.dim() >= 3 else bias.unsqueeze(0)
