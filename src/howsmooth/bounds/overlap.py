"""The heads of a layer combined by the overlap of their subspaces: never above the sum over heads.

Each term of J is a sum `Σ_h U_h F_h Z_hᵀ` over heads. U_h and Z_h are orthonormal bases (of the range of W_h, and of
the row space of the values, queries or keys), and F_h is an operator on all tokens with `‖F_h‖ ≤ b_h`. With
`G_hg = ‖U_hᵀU_g‖`, and likewise for Z, the norm of the sum is at most each of

    (bᵀ G b)^½,  ‖[U_1 … U_H]‖ |b|                        one side alone, that of U or that of Z
    ‖[√(b_h b_g) G_hg]‖^½ for U times the same for Z      both sides
    ‖[U_1 … U_H]‖ ‖[Z_1 … Z_H]‖ max_h b_h                 both sides, with the exact norms but equal weights

The proofs are under "Heads" in docs/ball.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.head_on_ball import Head, HeadTerms, LayerAtTokens
from howsmooth.bounds.norms import certified_eigenvalue, spectral_norm

Result = TypeVar("Result")


class Overlap:
    """Bases of the heads of a layer, and the overlaps between them.

    Attributes:
        form: quantities of the layer.
        out: U_h, bases of the range of the output projection, (h, d_out, ·).
        rows: Z_h for the terms "query" and "key", (h, d, ·).

    Example:
        >>> from howsmooth.attention import SelfAttention
        >>> eye = torch.eye(4, dtype=torch.float64)
        >>> overlap = Overlap(LayerForm(SelfAttention(eye, eye, eye, eye, heads=2)))
        >>> overlap.combined_norm("query", torch.tensor([3.0, 2.0], dtype=torch.float64))  # orthogonal: the larger
        3.0
    """

    def __init__(self, form: LayerForm):
        """Compute bases of the output and of the rows of the queries and keys."""
        self.form = form
        h, w = form.heads, form.wv.shape[1]
        concatenation = torch.unflatten(torch.eye(h * w, dtype=torch.float64), 1, (h, w)).movedim(1, 0)
        self.out: Tensor = concatenation if form.wo is None else torch.linalg.qr(form.wo).Q
        self.rows: dict[str, Tensor] = dict(
            query=torch.linalg.qr(form.wq.mT).Q, key=form.repeat_kv(torch.linalg.qr(form.wk.mT).Q)
        )

    @cached_property
    def value_svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_h V_h = U S Zᵀ: U (h, d_out, ·), S (h, ·), Z (h, d, ·)."""
        form = self.form
        basis, r = torch.linalg.qr(form.wv.mT)
        core = form.repeat_kv(r).mT if form.wo is None else form.out_factor @ form.repeat_kv(r).mT
        u, s, vt = torch.linalg.svd(core, full_matrices=False)
        return self.out @ u, s, form.repeat_kv(basis) @ vt.mT

    @cached_property
    def row_overlaps(self) -> dict[str, tuple[Tensor, float, float]]:
        """For each term: G of Z, the norm of all Z_h stacked, and that norm times the one of all U_h stacked."""
        u, s, z = self.value_svd
        root = s.sqrt().unsqueeze(-2)
        overlaps = {
            name: (cosines(rows), stacked_norm(rows), self.out_stacked_norm * stacked_norm(rows))
            for name, rows in self.rows.items()
        }
        # The singular values of W_h V_h are known and can be split between the two bases.
        value = cosines(z), stacked_norm(z), stacked_norm(u * root) * stacked_norm(z * root)
        return overlaps | {"value": value}

    @cached_property
    def out_stacked_norm(self) -> float:
        """‖[U_1 … U_H]‖."""
        return stacked_norm(self.out)

    @cached_property
    def out_cosines(self) -> Tensor:
        """G of U."""
        return cosines(self.out)

    def combined_norm(self, term: str, b: Tensor) -> float:
        """Bound the norm of one term of the whole layer from bounds on its heads.

        Args:
            term: "value", with b_h = ‖P_h‖; "query" or "key", with b_h including W_h.
            b: bounds on the heads, (h,).
        """
        left, (right, right_stacked, both_stacked) = self.out_cosines, self.row_overlaps[term]
        equal_weights = both_stacked * float(b.max())
        if term == "value":
            b = b * self.form.value_norm
        pairs = (b.unsqueeze(0) * b.unsqueeze(1)).sqrt()
        both = (spectral_norm(left * pairs) * spectral_norm(right * pairs)).sqrt()
        rows_alone = min(float((b @ right @ b).sqrt()), right_stacked * float(b.norm()))
        return min(equal_weights, float(both), self.one_sided_norm(b), rows_alone)

    def one_sided_norm(self, b: Tensor) -> float:
        """Bound ‖Σ_h U_h F_h‖ for operators of norm b_h after the output projection, whatever their input."""
        return min(float((b @ self.out_cosines @ b).sqrt()), self.out_stacked_norm * float(b.norm()))


def cosines(bases: Tensor) -> Tensor:
    """Return ‖B_hᵀ B_g‖ for bases (h, d, r), (h, h): the cosines of the smallest principal angles, at most 1."""
    flat = bases.movedim(0, 1).flatten(1)
    h, _, r = bases.shape
    products = torch.unflatten(torch.unflatten(flat.mT @ flat, 0, (h, r)), 2, (h, r)).transpose(1, 2)
    return spectral_norm(products, certified=True).clamp(max=1.0)


def stacked_norm(bases: Tensor) -> float:
    """Return ‖[B_1 … B_H]‖ for bases (h, d, r)."""
    return float(spectral_norm(bases.movedim(0, 1).flatten(1), certified=True))


class CombinedHeads:
    """All heads of a layer at its real tokens."""

    def __init__(self, at: LayerAtTokens):
        """Take the heads of the layer, and the overlap of their subspaces."""
        self.at = at
        self.form, self.heads, self.overlap = at.form, [Head(at, h) for h in range(at.form.heads)], Overlap(at.form)

    def map_heads(self, call: Callable[..., Result], *each: Sequence[float]) -> list[Result]:
        """Return call(head, …) for every head, one per thread: LAPACK treats a batch of small matrices one by one."""
        threads = torch.get_num_threads()
        if min(threads, len(self.heads)) == 1:
            return [call(*arguments) for arguments in zip(self.heads, *each, strict=True)]

        def call_single_threaded(*arguments: Head | float) -> Result:
            torch.set_num_threads(1)  # of this thread
            return call(*arguments)

        try:
            with ThreadPoolExecutor(min(threads, len(self.heads))) as pool:
                return list(pool.map(call_single_threaded, self.heads, *each))
        finally:
            torch.set_num_threads(threads)  # for threads that are started later

    def terms(self, heads: Sequence[HeadTerms], change: str = "") -> dict[str, float]:
        """Bound the three terms of the whole layer, or with change="_change" their changes from X."""
        query_norms = torch.stack([getattr(head, "query" + change) for head in heads])  # (h, n)
        # The query term is block diagonal: its norm is the largest over tokens of a sum over heads.
        query = min(self.overlap.combined_norm("query", query_norms.amax(-1)), float(query_norms.sum(0).max()))
        value, key = (self.overlap.combined_norm(term, self._each(heads, term + change)) for term in ("value", "key"))
        return dict(value=value, query=query, key=min(key, self._stacked_key_term(heads, "root" + change)))

    def total(self, heads: Sequence[HeadTerms], terms: dict[str, float], change: str = "") -> float:
        """Bound the sum of the three terms: heads combined term by term, or each head as a whole."""
        value, key = (self._each(heads, term + change) for term in ("value", "key"))
        query = torch.stack([getattr(head, "query" + change).max() for head in heads])
        per_head = self.form.value_norm * value + query + key
        return min(sum(terms.values()), self.overlap.one_sided_norm(per_head))

    def _each(self, heads: Sequence[HeadTerms], name: str) -> Tensor:
        return torch.tensor([getattr(head, name) for head in heads], dtype=torch.float64)

    def _stacked_key_term(self, heads: Sequence[HeadTerms], root: str) -> float:
        """Bound the key term by ‖[U_1 … U_H]‖ and all √τ_i a_i of all heads stacked, step (9); ∞ if rotary."""
        if self.form.is_rotary:
            return math.inf
        gram = torch.zeros(self.form.d, self.form.d, dtype=torch.float64)
        for head, terms, wk in zip(self.heads, heads, self.form.repeat_kv(self.form.wk), strict=True):
            q = getattr(terms, root).unsqueeze(-1) * head.q
            gram = gram + wk.mT @ (q.mT @ q @ wk)
        stacked = self.overlap.out_stacked_norm * self.form.scale * float(certified_eigenvalue(gram).sqrt())
        return stacked + self.overlap.combined_norm("key", self._each(heads, "key_from_slopes"))
