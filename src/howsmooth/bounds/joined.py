"""The heads of a layer put together, term by term: what their bounds say of the whole layer.

The rules are those under "Heads" in docs/ball.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from howsmooth.bounds.at_tokens import AtTokens
from howsmooth.bounds.head_on_ball import Head, HeadTerms
from howsmooth.bounds.norms import proven_eigenvalue
from howsmooth.bounds.overlap import Overlap
from howsmooth.errors import InputError

TERMS = ("value", "query", "key")


class Joined:
    """All heads of a layer at its real tokens."""

    def __init__(self, at: AtTokens):
        if not bool(at.real.any()):
            raise InputError("expected at least one real token, got padding everywhere")
        self.form, self.heads, self.overlap = at.form, [Head(at, h) for h in range(at.form.heads)], Overlap(at.form)

    def of_heads(self, call: Callable, *each: Sequence) -> list:
        """call(head, …) for every head, as many at a time as there are threads: LAPACK takes one small matrix at a time."""
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
        queries = torch.stack([getattr(head, "query" + change).max() for head in found])
        per_head = self.form.value_norm * self._each(found, "value" + change) + queries + self._each(found, "key" + change)
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
