"""The heads of a layer put together by how much their subspaces overlap: never above the sum over heads.

Each term of J is a sum Σ_h U_h F_h Z_hᵀ over heads, U_h and Z_h orthonormal bases (of the range of W_h; of the rows
that read values, queries or keys) and F_h an operator on all tokens with ‖F_h‖ ≤ b_h. With G_hg = ‖U_hᵀU_g‖, and
likewise for Z, its norm is at most each of

    (bᵀ G b)^½, ‖[U_1 … U_H]‖ |b|             one side alone, that of U or that of Z
    ‖[√(b_h b_g) G_hg]‖^½ for U times the same for Z      both sides
    ‖[U_1 … U_H]‖ ‖[Z_1 … Z_H]‖ max_h b_h     both sides, exactly, but for equal heads

Proofs and rules are under "Heads" in docs/ball.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.head_on_ball import AtTokens, Head, HeadTerms
from howsmooth.bounds.norms import proven_eigenvalue, top_value


class Overlap:
    """Bases of a layer's heads, and how they lie to each other.

    >>> from howsmooth.attention import SelfAttention
    >>> eye = torch.eye(4, dtype=torch.float64)
    >>> overlap = Overlap(LayerForm(SelfAttention(eye, eye, eye, eye, heads=2)))
    >>> overlap.together("query", torch.tensor([3.0, 2.0], dtype=torch.float64))  # orthogonal heads: the larger
    3.0
    """

    def __init__(self, form: LayerForm):
        self.form = form
        h, w = form.heads, form.wv.shape[1]
        side_by_side = torch.eye(h * w, dtype=torch.float64).unflatten(1, (h, w)).movedim(1, 0)
        self.out = torch.linalg.qr(side_by_side if form.wo is None else form.wo).Q  # (h, d_out, ·)
        self.rows = dict(query=torch.linalg.qr(form.wq.mT).Q, key=form.shared(torch.linalg.qr(form.wk.mT).Q))

    @cached_property
    def values(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_h V_h = U S Zᵀ: U (h, d_out, ·), S (h, ·), Z (h, d, ·)."""
        basis, r = torch.linalg.qr(self.form.wv.mT)
        out = self.form.shared(r).mT if self.form.wo is None else self.form.out_factor @ self.form.shared(r).mT
        u, s, vt = torch.linalg.svd(out, full_matrices=False)
        return self.out @ u, s, self.form.shared(basis) @ vt.mT

    @cached_property
    def sides(self) -> dict[str, tuple[Tensor, float, float]]:
        """For each term: G of Z, the norm of all Z_h side by side, and that norm times the one of all U_h."""
        u, s, z = self.values
        root = s.sqrt().unsqueeze(-2)
        found = {name: (cosines(rows), whole(rows), self.out_whole * whole(rows)) for name, rows in self.rows.items()}
        # The singular values of W_h V_h are known, so that they are part of the bases.
        return found | {"value": (cosines(z), whole(z), whole(u * root) * whole(z * root))}

    @cached_property
    def out_whole(self) -> float:
        """‖[U_1 … U_H]‖."""
        return whole(self.out)

    @cached_property
    def out_cosines(self) -> Tensor:
        """G of U."""
        return cosines(self.out)

    def together(self, term: str, b: Tensor) -> float:
        """‖Σ_h‖ of the term "value" (b_h = ‖P_h‖), "query" or "key" (b_h with W_h in it), from b (h,)."""
        left, (right, right_whole, both_whole) = self.out_cosines, self.sides[term]
        even = both_whole * float(b.max())
        if term == "value":
            b = b * self.form.value_norm
        pairs = (b.unsqueeze(0) * b.unsqueeze(1)).sqrt()
        both = (top_value(left * pairs) * top_value(right * pairs)).sqrt()
        return min(even, float(both), self.one_side(b), float((b @ right @ b).sqrt()), right_whole * float(b.norm()))

    def one_side(self, b: Tensor) -> float:
        """‖Σ_h U_h F_h‖ for operators of norm b_h after the output projection, whatever they read."""
        return min(float((b @ self.out_cosines @ b).sqrt()), self.out_whole * float(b.norm()))


def cosines(bases: Tensor) -> Tensor:
    """‖B_hᵀ B_g‖ for bases (h, d, r), (h, h); 1 on the diagonal, and never above."""
    flat = bases.movedim(0, 1).flatten(1)
    h, _, r = bases.shape
    overlap = (flat.mT @ flat).unflatten(0, (h, r)).unflatten(2, (h, r)).transpose(1, 2)
    return top_value(overlap, proven=True).clamp(max=1.0)


def whole(bases: Tensor) -> float:
    """‖[B_1 … B_H]‖ for bases (h, d, r)."""
    return float(top_value(bases.movedim(0, 1).flatten(1), proven=True))


class Joined:
    """All heads of a layer at its real tokens."""

    def __init__(self, at: AtTokens):
        self.form, self.heads, self.overlap = at.form, [Head(at, h) for h in range(at.form.heads)], Overlap(at.form)

    def of_heads(self, call: Callable, *each: Sequence) -> list:
        """call(head, …) for every head, one per thread: LAPACK takes small matrices one by one."""
        threads = torch.get_num_threads()
        if min(threads, len(self.heads)) == 1:
            return [call(*arguments) for arguments in zip(self.heads, *each, strict=True)]

        def alone(*arguments):
            torch.set_num_threads(1)  # of this thread
            return call(*arguments)

        try:
            with ThreadPoolExecutor(min(threads, len(self.heads))) as pool:
                return list(pool.map(alone, self.heads, *each))
        finally:
            torch.set_num_threads(threads)  # for threads that are yet to come

    def terms(self, found: list[HeadTerms], change: str = "") -> dict[str, float]:
        """The three terms of the whole layer, or with change="_change" how far they can be from their values at X."""
        of_queries = torch.stack([getattr(head, "query" + change) for head in found])  # (h, n)
        # The query term is block diagonal: its norm is the largest over tokens of a sum over heads.
        query = min(self.overlap.together("query", of_queries.amax(-1)), float(of_queries.sum(0).max()))
        value, key = (self.overlap.together(term, self._each(found, term + change)) for term in ("value", "key"))
        return dict(value=value, query=query, key=min(key, self._stacked_key(found, "root" + change)))

    def total(self, found: list[HeadTerms], terms: dict[str, float], change: str = "") -> float:
        """The sum of the three terms: heads put together term by term, or each head as a whole."""
        value, key = (self._each(found, term + change) for term in ("value", "key"))
        query = torch.stack([getattr(head, "query" + change).max() for head in found])
        per_head = self.form.value_norm * value + query + key
        return min(sum(terms.values()), self.overlap.one_side(per_head))

    def _each(self, found: list[HeadTerms], name: str) -> Tensor:
        return torch.tensor([getattr(head, name) for head in found], dtype=torch.float64)

    def _stacked_key(self, found: list[HeadTerms], root: str) -> float:
        """(9) the key term by ‖[U_1 … U_H]‖ and all √τ_i a_i of all heads side by side; ∞ with rotary positions."""
        if self.form.positional:
            return math.inf
        gram = 0.0
        for head, terms, wk in zip(self.heads, found, self.form.shared(self.form.wk), strict=True):
            q = getattr(terms, root).unsqueeze(-1) * head.q
            gram = gram + wk.mT @ (q.mT @ q @ wk)
        whole = self.overlap.out_whole * self.form.scale * float(proven_eigenvalue(gram).sqrt())
        return whole + self.overlap.together("key", self._each(found, "turned"))
