"""A layer at given tokens, as its local bounds see it: q, k, v and probabilities in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.norms import top_value
from howsmooth.errors import InputError

EXACT = 1024  # tokens up to which norms of n × n matrices are computed


class AtTokens:
    """A layer in float64 at tokens x (n, d); padded tokens are neither moved nor looked at."""

    def __init__(self, form: LayerForm, x: Tensor, padding: Tensor | None = None):
        if not isinstance(x, Tensor) or x.dim() != 2:
            raise InputError("expected tokens x of shape (n, d), one sequence at a time, got "
                             + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__))
        self.form, self.layer = form, form.f.to(device="cpu", dtype=torch.float64)
        self.x = x.detach().to(device="cpu", dtype=torch.float64)
        self.n = len(x)
        self.real = torch.ones(self.n, dtype=torch.bool) if padding is None else padding.cpu()
        self.linearised = self.layer.jacobian(self.x, None if padding is None else self.real).linearised
        lin = self.linearised
        self.q, self.o = lin.q[0], lin.o[0]  # (h, n, ·); q and k are rotated where positions are rotary
        self.k, self.v = (form.shared(t[0]) for t in (lin.k, lin.v))

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows, the keys that they can see, and P between them, (h, rows, keys)."""
        for at in self.linearised.blocks():
            shape = (self.form.heads, at.last - at.first, at.stop - at.start)
            yield slice(at.first, at.last), slice(at.start, at.stop), at.p.reshape(shape)

    def probabilities(self) -> Tensor:
        """P of the real tokens, (h, n, n)."""
        p = torch.zeros(self.form.heads, self.n, self.n, dtype=torch.float64)
        for rows, keys, part in self.blocks():
            p[:, rows, keys] = part
        return p[:, self.real]

    def probability_norm(self) -> Tensor:
        """‖P‖ (h,) of up to EXACT tokens; beyond, (max row sum · max column sum)^½, which is no smaller."""
        if self.n <= EXACT:
            return torch.stack([top_value(p, proven=True) for p in self.probabilities()])
        columns, rows = torch.zeros(self.form.heads, self.n, dtype=torch.float64), 0.0
        for at, keys, p in self.blocks():
            p = p[:, self.real[at]]
            columns[:, keys] += p.sum(1)
            rows = max(rows, float(p.sum(-1).max())) if p.numel() else rows
        return (columns.amax(-1) * rows).sqrt()
