"""A layer at given tokens, as its local bounds see it: probabilities, and small matrices per query."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from howsmooth.attention import Rotary
from howsmooth.attention.blockwise import times
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.norms import largest_eigenvalue, top_eigenvalue, top_value
from howsmooth.errors import InputError

ENTRIES = 1 << 20  # of B, held at once
EXACT = 1024  # tokens up to which ‖P‖ is computed, not bounded


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

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Rows, the keys that they can see, P and P times the slope of the soft cap between them, (h, rows, keys)."""
        for at in self.linearised.blocks():
            shape = (self.form.heads, at.last - at.first, at.stop - at.start)
            p = at.p.reshape(shape)
            yield slice(at.first, at.last), slice(at.start, at.stop), p, at.through_cap(at.p).reshape(shape)

    def probabilities(self) -> Tensor:
        """P of the real tokens, (h, n, n)."""
        p = torch.zeros(self.form.heads, self.n, self.n, dtype=torch.float64)
        for rows, keys, part, _ in self.blocks():
            p[:, rows, keys] = part
        return p[:, self.real]

    def probability_norm(self) -> Tensor:
        """‖P‖ (h,) of up to EXACT tokens; beyond, (max row sum · max column sum)^½, which is no smaller."""
        if self.n <= EXACT:
            return top_value(self.probabilities())
        columns, rows = torch.zeros(self.form.heads, self.n, dtype=torch.float64), 0.0
        for at, keys, p, _ in self.blocks():
            p = p[:, self.real[at]]
            columns[:, keys] += p.sum(1)
            rows = max(rows, float(p.sum(-1).max())) if p.numel() else rows
        return (columns.amax(-1) * rows).sqrt()

    def score_terms(self) -> tuple[Tensor, Tensor]:
        """What the dependence of scores on tokens adds to ‖J‖ at most, (h,): behind the output projection, and before.

        The sum of two terms, with B_ij = P_ij c'_ij (v_j − o_i), c' the slope of the soft cap:

            queries   max_i ‖W ∂o_i/∂q_i R_i W_q‖,  ∂o_i/∂q_i = scale Σ_j B_ij k_jᵀ;  ‖V C_i A‖ for plain scores
            keys      ‖Σ_i τ_i a_i a_iᵀ‖^½,  a_i = scale·W_kᵀ q_i,  τ_i = ‖W (Σ_j B_ij B_ijᵀ) Wᵀ‖
        """
        form, k = self.form, self.q.shape[-1]
        sides = 1 if form.wo is None else 2
        queries = torch.zeros(sides, form.heads, dtype=torch.float64)  # squares
        weighted = torch.zeros(sides, form.heads, k, k, dtype=torch.float64)  # Σ_i τ_i q_i q_iᵀ
        for rows, keys, _, p in self.blocks():
            real = self.real[rows].nonzero().flatten()
            for h in range(form.heads):
                v = self.v[h, keys].mT.contiguous()  # (w, keys)
                for some in real.split(max(1, ENTRIES // max(1, v.numel()))):
                    b = p[h, some].unsqueeze(1) * (v - self.o[h, some + rows.start].unsqueeze(-1))  # (rows, w, keys)
                    d = times(b.flatten(0, 1), self.k[h, keys]).unflatten(0, b.shape[:2])
                    d = self.query_turn(d, some + rows.start) @ form.query_factor[h].mT
                    for side, (dd, bb) in enumerate(self._behind_and_before(h, d @ d.mT, b @ b.mT)):
                        queries[side, h] = largest_eigenvalue(dd, queries[side, h])
                        q = top_eigenvalue(bb).sqrt().unsqueeze(-1) * self.q[h, some + rows.start]
                        weighted[side, h] += q.mT @ q
        if self.layer.rotary is None:
            factor = form.shared(form.key_factor)
            through_keys = top_eigenvalue(factor @ weighted @ factor.mT).sqrt()
        else:  # each key is turned by its own place, so that only the norm of W_k is left
            through_keys = form.rotary_gain * form.key_norm * top_eigenvalue(weighted).sqrt()
        total = form.scale * (queries.sqrt() + through_keys)
        return total[0], total[-1]

    def _behind_and_before(self, head: int, *grams: Tensor) -> list[tuple[Tensor, ...]]:
        """Gram matrices (rows, w, w) behind the output projection W = U R, as R·Rᵀ, and as they are."""
        if self.form.wo is None:
            return [grams]
        r = self.form.out_factor[head]
        return [tuple(r @ gram @ r.mT for gram in grams), grams]

    def query_turn(self, matrices: Tensor, rows: Tensor) -> Tensor:
        """M_i R_i for matrices (rows, w, k): what rotary positions do to the query of token i."""
        if self.layer.rotary is None:
            return matrices
        turn = self.layer.rotary
        part = Rotary(turn.cos[rows], turn.sin[rows], turn.interleaved)
        return part.transpose(matrices.transpose(0, 1)).transpose(0, 1)
