"""Attention and its derivatives in blocks of queries: exact, in memory that is linear in n.

A block of queries is multiplied with all keys that it sees, so that its softmax is complete. Between calls only the
output o and two numbers for each row are stored, the largest score and the logarithm of Σ exp(s − largest); the
probabilities of a block are recomputed from them as exp((s − largest) − log). (Their sum, the log-sum-exp, would be
rounded to the size of the scores: with scores of 10⁴ in float32, the fourth digit of P would be lost.)

With ds = scale (dq kᵀ + q dkᵀ), all products row by row:

    forward   o  = P v
    jvp       do = centred(ds) v + P dv
    vjp       dS = centred(g vᵀ);  dq = scale dS k,  dk = scale dSᵀ q,  dv = Pᵀ g
    hvp       the derivative of the vjp along (dq, dk, dv), which is the Hessian of ⟨g, o⟩ applied to it

where centred(t) = P∘(t − rowsum(P∘t)). Subtracting rowsum(P∘ds) o or rowsum(g∘o) afterwards is the same in exact
arithmetic, but where one key has all the weight of a row, it leaves rounding errors of the size of q k v in place of a
zero.

All tensors have four axes: q (b, h, n, k), k (b, hkv, m, k), v (b, hkv, m, w). Heads that share a key are folded into
the rows of one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from howsmooth.attention.pattern import Pattern


# Scores of one block, over all heads and sequences (16 MiB in float32): large enough for efficient matrix products at
# long lengths, too.
BLOCK_SCORES = 1 << 22
# Rows of a masked block: short blocks skip more of the keys that none of their queries sees.
MASKED_BLOCK_ROWS = 128


@dataclass(frozen=True)
class Block:
    """Queries [first, last), the keys [start, stop) that they can see, and the probabilities between them.

    Attributes:
        first: first query.
        last: end of the queries.
        start: first key.
        stop: end of the keys.
        p: probabilities, (b, hkv, g·rows, keys), where g heads share a key.
        tanh: tanh of score/cap where scores are soft-capped, of the same shape.
    """

    first: int
    last: int
    start: int
    stop: int
    p: Tensor
    tanh: Tensor | None

    @property
    def slope(self) -> Tensor | float:
        """The derivative of the score in the score before the cap."""
        return 1.0 if self.tanh is None else 1 - self.tanh**2

    def through_cap(self, ds: Tensor) -> Tensor:
        """Multiply a change of the scores before the cap by the slope of the cap."""
        return ds if self.tanh is None else ds * self.slope


def forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, padding: Tensor | None = None, keep: list[Block] | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the output and the normalisers of attention.

    Args:
        q: queries (b, h, n, k).
        k: keys (b, hkv, m, k).
        v: values (b, hkv, m, w).
        pattern: scores and masks.
        padding: True where the key is real, (b, m).
        keep: a list to which the blocks are appended, for a `Linearisation` with enough memory to store them.

    Returns:
        The output (b, h, n, w), and for each row its largest score and log Σ exp(s − largest), (b, h, n, 2). These two
        are (0, +∞) for a row that sees no key.
    """
    b, h, n, _ = q.shape
    # Results are written into one tensor, not concatenated: small tensors allocated between large temporary ones
    # fragment the heap, by gigabytes.
    out, normaliser = q.new_zeros(b, h, n, v.shape[-1]), q.new_zeros(b, h, n, 2)
    normaliser[..., 1] = torch.inf
    scaled = pattern.scale * q
    for first, last in spans(q, k, pattern):
        s, tanh, start, stop = block_scores(scaled, k, pattern, padding, first, last)
        if start == stop:
            if keep is not None:
                keep.append(Block(first, last, start, stop, s, tanh))
            continue
        top = s.amax(-1, keepdim=True)
        top = top.masked_fill_(torch.isneginf(top), 0.0)
        e = s.sub_(top).exp_()
        total = e.sum(-1, keepdim=True)
        empty = total == 0
        p = e.div_(total.masked_fill(empty, 1.0))
        if keep is not None:
            keep.append(Block(first, last, start, stop, p, tanh))
        out[:, :, first:last] = unfold(times(p, v[:, :, start:stop]), h)
        rows = torch.cat([top, total.log().masked_fill_(empty, torch.inf)], -1)
        normaliser[:, :, first:last] = unfold(rows, h)
    return out, normaliser


class Linearisation:
    """Attention linearised at one (q, k, v): its derivative, the transpose, and the derivative of that.

    With the blocks that `forward` appended to `keep`, a product needs one matrix product of five less, and no
    exponential. They are for small n, where memory allows it; without them the probabilities are recomputed.

    Args:
        q: queries (b, h, n, k).
        k: keys (b, hkv, m, k).
        v: values (b, hkv, m, w).
        o: output of `forward`.
        normaliser: normalisers of the rows, as `forward` returns them.
        pattern: scores and masks.
        padding: True where the key is real, (b, m).
        kept: all blocks, as `forward` appends them.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        normaliser: Tensor,
        pattern: Pattern,
        padding: Tensor | None = None,
        kept: list[Block] | None = None,
    ) -> None:
        """Store the tensors."""
        self.q, self.k, self.v, self.o, self.normaliser = q, k, v, o, normaliser
        self.pattern, self.padding, self.kept = pattern, padding, kept
        self.scaled = pattern.scale * q

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks, stored or recomputed."""
        if self.kept is not None:
            yield from self.kept
            return
        for first, last in spans(self.q, self.k, self.pattern):
            s, tanh, start, stop = block_scores(self.scaled, self.k, self.pattern, self.padding, first, last)
            top, log_total = torch.split(fold(self.normaliser[:, :, first:last], self.k.shape[1]), 1, -1)
            yield Block(first, last, start, stop, s.sub_(top).sub_(log_total).exp_(), tanh)

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Compute the tangent do, of the shape of o, along (dq, dk, dv), of the shapes of (q, k, v)."""
        return self.jvp_with_means(dq, dk, dv)[0]

    def jvp_with_means(
        self, dq: Tensor, dk: Tensor, dv: Tensor, d_table: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the tangent do along (dq, dk, dv), and the row sums of P∘ds, (b, h, n): that of the log-sum-exp.

        `d_table` is a tangent of the table that is added to the scores.
        """
        dq, dk, dv = (t.to(self.q.dtype) for t in (dq, dk, dv))
        h, hkv = self.q.shape[1], self.k.shape[1]
        out, means = torch.zeros_like(self.o), self.normaliser.new_zeros(self.q.shape[:-1])
        both_q = torch.cat([self.pattern.scale * dq, self.scaled], -1)
        both_k = torch.cat([self.k, dk], -1)
        for block in self.blocks():
            ds = fold(both_q[:, :, block.first : block.last], hkv) @ both_k[:, :, block.start : block.stop].mT
            w, mean = centred(self._plus_table(block.through_cap(ds), d_table, block), block.p)
            means[:, :, block.first : block.last] = unfold(mean, h).squeeze(-1)
            do = times(w, self.v[:, :, block.start : block.stop])
            do += times(block.p, dv[:, :, block.start : block.stop])
            out[:, :, block.first : block.last] = unfold(do, h)
        return out, means

    def vjp(self, g: Tensor, g_lse: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents (dq, dk, dv), of the shapes of (q, k, v), for g, of the shape of o.

        `g_lse` is a cotangent of the log-sum-exp, (b, h, n), whose derivative in the scores is P.
        """
        g = g.to(self.q.dtype)
        h, hkv, scale = self.q.shape[1], self.k.shape[1], self.pattern.scale
        dq, dk, dv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        for block in self.blocks():
            keys, g_rows = slice(block.start, block.stop), fold(g[:, :, block.first : block.last], hkv)
            d = centred(g_rows @ self.v[:, :, keys].mT, block.p)[0]
            if g_lse is not None:
                d = d.addcmul_(block.p, fold(g_lse[:, :, block.first : block.last, None].to(d.dtype), hkv))
            d = block.through_cap(d)
            dq[:, :, block.first : block.last] = unfold(times(d, self.k[:, :, keys]), h)
            dk[:, :, keys] += times(d.mT, fold(self.q[:, :, block.first : block.last], hkv))
            dv[:, :, keys] += times(block.p.mT, g_rows)
        return dq.mul_(scale), dk.mul_(scale), dv

    def hvp(
        self,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        g: Tensor,
        along: tuple[Tensor, Tensor] | None = None,
        g_lse: Tensor | None = None,
        d_table: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the derivative of vjp(g, g_lse) along (dq, dk, dv, d_table), which names with a dot denote.

        `along`, the result of `jvp_with_means` for these tangents, is not needed here: a block has complete rows.
        """
        dq, dk, dv, g = (t.to(self.q.dtype) for t in (dq, dk, dv, g))
        h, hkv, scale = self.q.shape[1], self.k.shape[1], self.pattern.scale
        hq, hk, hv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        r = self._row_products(g, g_lse)
        both_q = torch.cat([scale * dq, self.scaled], -1)
        both_k = torch.cat([self.k, dk], -1)
        for block in self.blocks():
            rows, keys = slice(block.first, block.last), slice(block.start, block.stop)
            g_rows, q_rows, dq_rows = (fold(t[:, :, rows], hkv) for t in (g, self.q, dq))
            raw_dot = fold(both_q[:, :, rows], hkv) @ both_k[:, :, keys].mT
            s_dot = self._plus_table(block.through_cap(raw_dot), d_table, block)
            d, d_dot, p_dot = self._score_cotangents(block, s_dot, g_rows, dv, r)
            if block.tanh is not None and self.pattern.softcap is not None:
                bend = -2 * block.tanh * block.slope / self.pattern.softcap
                d_dot = d_dot * block.slope + d * bend * raw_dot
                d = d * block.slope
            hq[:, :, rows] = unfold(d_dot @ self.k[:, :, keys] + d @ dk[:, :, keys], h)
            hk[:, :, keys] += d_dot.mT @ q_rows + d.mT @ dq_rows
            hv[:, :, keys] += p_dot.mT @ g_rows
        return hq.mul_(scale), hk.mul_(scale), hv

    def table_gradient(
        self,
        g: Tensor,
        shape: tuple[int, int],
        g_lse: Tensor | None = None,
        along: tuple[Tensor, Tensor, Tensor, Tensor | None] | None = None,
    ) -> Tensor:
        """Compute the gradient of ⟨g, o⟩ in the table that is added to the scores.

        Args:
            g: cotangent of the output.
            shape: sequences and heads of the table, 1 where it is shared.
            g_lse: cotangent of the log-sum-exp, (b, h, n).
            along: tangents (dq, dk, dv, d_table), for the derivative of the gradient along them.

        Returns:
            The gradient, (*shape, n, m).
        """
        g = g.to(self.q.dtype)
        b, h, n, _ = self.q.shape
        hkv, m = self.k.shape[1:3]
        out = self.q.new_zeros(*shape, n, m)
        r = self._row_products(g, g_lse)
        for block in self.blocks():
            rows, keys = slice(block.first, block.last), slice(block.start, block.stop)
            if block.start == block.stop:
                continue
            g_rows = fold(g[:, :, rows], hkv)
            if along is None:
                d = block.p * (g_rows @ self.v[:, :, keys].mT - fold(r[:, :, rows], hkv))
            else:
                dq, dk, dv, d_table = along
                dq, dk, dv = (t.to(self.q.dtype) for t in (dq, dk, dv))
                ds = fold(self.pattern.scale * dq[:, :, rows], hkv) @ self.k[:, :, keys].mT
                ds += fold(self.scaled[:, :, rows], hkv) @ dk[:, :, keys].mT
                s_dot = self._plus_table(block.through_cap(ds), d_table, block)
                d = self._score_cotangents(block, s_dot, g_rows, dv, r)[1]
            d = d.view(b, h, block.last - block.first, block.stop - block.start)
            out[:, :, rows, keys] = d.sum_to_size(*shape, *d.shape[2:])
        return out

    def _row_products(self, g: Tensor, g_lse: Tensor | None) -> Tensor:
        """Return rowsum(g∘o), less the cotangent of the log-sum-exp."""
        r = (g * self.o).sum(-1, keepdim=True)
        return r if g_lse is None else r - g_lse.unsqueeze(-1).to(r.dtype)

    def _plus_table(self, ds: Tensor, d_table: Tensor | None, block: Block) -> Tensor:
        """Add the tangent of the table to that of the scores."""
        if d_table is None:
            return ds
        b, h, rows, keys = *self.q.shape[:2], block.last - block.first, block.stop - block.start
        tangent = d_table[..., block.first : block.last, block.start : block.stop].to(ds.dtype)
        return (ds.view(b, h, rows, keys) + tangent).view(ds.shape)

    def _score_cotangents(
        self, block: Block, s_dot: Tensor, g_rows: Tensor, dv: Tensor, r: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cotangent d of the scores, its derivative, and that of P, for scores that change by s_dot."""
        rows, keys = slice(block.first, block.last), slice(block.start, block.stop)
        p_dot = block.p * (s_dot - (block.p * s_dot).sum(-1, keepdim=True))
        spread = g_rows @ self.v[:, :, keys].mT - fold(r[:, :, rows], self.k.shape[1])
        spread_dot = g_rows @ dv[:, :, keys].mT
        # The derivative of r is rowsum(Ṗ∘(g vᵀ) + P∘(g dvᵀ)). The rows of Ṗ sum to 0, so that g vᵀ may be centred.
        r_dot = (p_dot * spread + block.p * spread_dot).sum(-1, keepdim=True)
        return block.p * spread, p_dot * spread + block.p * (spread_dot - r_dot), p_dot


def spans(q: Tensor, k: Tensor, pattern: Pattern) -> Iterator[tuple[int, int]]:
    """Yield the ranges [first, last) of queries of the blocks."""
    b, h, n, _ = q.shape
    rows = block_rows(b, h, n, k.shape[2], pattern.hides_pairs)
    for first in range(0, n, rows):
        yield first, min(first + rows, n)


def block_rows(b: int, h: int, n: int, keys: int, masked: bool) -> int:
    """Return the number of queries of one block."""
    rows = max(1, min(n, BLOCK_SCORES // max(1, b * h * keys)))
    return min(rows, MASKED_BLOCK_ROWS) if masked else rows


def block_scores(
    scaled: Tensor, k: Tensor, pattern: Pattern, padding: Tensor | None, first: int, last: int
) -> tuple[Tensor, Tensor | None, int, int]:
    """Compute the scores of one block.

    Args:
        scaled: queries times the scale, (b, h, n, k).
        k: keys (b, hkv, m, k).
        pattern: scores and masks.
        padding: True where the key is real, (b, m).
        first: first query of the block.
        last: end of its queries.

    Returns:
        The scores (b, hkv, g·rows, keys) with −∞ where masked, tanh of score/cap if scores are capped, and the range
        [start, stop) of the keys.
    """
    b, h, _, _ = scaled.shape
    hkv, keys = k.shape[1], k.shape[2]
    start, stop = pattern.visible_range(first, last, keys)
    s = fold(scaled[:, :, first:last], hkv) @ k[:, :, start:stop].mT
    tanh = None
    if pattern.softcap is not None:
        tanh = (s / pattern.softcap).tanh_()
        s = pattern.softcap * tanh
    if start < stop and (pattern.score_bias is not None or pattern.hides_pairs):
        i = torch.arange(first, last, device=s.device).unsqueeze(1)
        j = torch.arange(start, stop, device=s.device).unsqueeze(0)
        by_head = s.view(b, h, last - first, stop - start)
        bias, seen = pattern.bias(i, j, s.dtype), pattern.visible(i, j)
        if bias is not None:
            by_head = by_head.add_(bias)
        if seen is not None:
            by_head = by_head.masked_fill_(~seen, -torch.inf)
        s = by_head.view(s.shape)
    if padding is not None:
        s = s.masked_fill_(~padding[:, None, None, start:stop], -torch.inf)
    return s, tanh, start, stop


def centred(t: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return P∘(t − rowsum(P∘t)), written into t, and the row sums."""
    t = t.mul_(p)
    mean = t.sum(-1, keepdim=True)
    return t.addcmul_(p, mean, value=-1), mean


def times(wide: Tensor, thin: Tensor) -> Tensor:
    """Return wide @ thin; in float64 by its transpose, for which matrix libraries are up to twice as fast."""
    return (thin.mT @ wide.mT).mT if wide.dtype == torch.float64 else wide @ thin


def fold(t: Tensor, hkv: int) -> Tensor:
    """Reshape (b, h, rows, c) to (b, hkv, g·rows, c): the g heads that share a key become rows."""
    b, h, rows, c = t.shape
    return t if h == hkv else t.reshape(b, hkv, h // hkv * rows, c)


def unfold(t: Tensor, h: int) -> Tensor:
    """Reshape (b, hkv, g·rows, c) to (b, h, rows, c)."""
    b, hkv, grows, c = t.shape
    return t if h == hkv else t.reshape(b, h, grows * hkv // h, c)
