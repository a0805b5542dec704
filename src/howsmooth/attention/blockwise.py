"""Attention and its derivatives in blocks of queries: exact, and nothing of size n² is ever held.

A block of queries sees all of its keys at once, so its softmax is complete. What is kept between calls is the
output o and, of each row, the largest score and the logarithm of Σ exp(s − largest); from these the probabilities of
a block come back as exp((s − largest) − log). (Their sum, the log-sum-exp, as one number would lose to rounding what
the scores have in size: with scores of 10⁴ in float32, the fourth digit of P.)

With ds = scale (dq kᵀ + q dkᵀ), all products row by row:

    forward   o  = P v
    jvp       do = centred(ds) v + P dv
    vjp       dS = centred(g vᵀ);  dq = scale dS k,  dk = scale dSᵀ q,  dv = Pᵀ g
    hvp       the derivative of the vjp along (dq, dk, dv), which is the Hessian of ⟨g, o⟩ applied to it

where centred(t) = P∘(t − rowsum(P∘t)). To subtract rowsum(P∘ds) o or rowsum(g∘o) afterwards would be the same in exact
arithmetic. But where one key has all of a row, it leaves rounding of the size of q k v in place of a zero.

Tensors here have exactly four axes: q (b, h, n, k), k (b, hkv, m, k), v (b, hkv, m, w). Heads that share a key are
folded into the rows of one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.pattern import Pattern

# Scores held at once, over all heads and sequences (16 MiB in float32): at long lengths this still leaves blocks tall
# enough to keep the matrix products busy.
BLOCK_SCORES = 1 << 22
# Rows of a masked block: short blocks skip more of the keys that nobody in them sees.
MASKED_BLOCK_ROWS = 128


@dataclass(frozen=True)
class Block:
    """Queries [first, last), the keys [start, stop) they can see, and P between them, (b, hkv, g·rows, keys)."""

    first: int
    last: int
    start: int
    stop: int
    p: Tensor
    tanh: Tensor | None  # of score / cap, where scores are soft-capped

    @property
    def slope(self) -> Tensor:
        """D score / d raw score."""
        return 1 - self.tanh**2

    def through_cap(self, ds: Tensor) -> Tensor:
        return ds if self.tanh is None else ds * self.slope


def forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, padding: Tensor | None = None, keep: list[Block] | None = None
) -> tuple[Tensor, Tensor]:
    """The output (b, h, n, w) and the normaliser of each row (b, h, n, 2).

    That is its largest score and log Σ exp(s − largest); (0, +∞) for a row with nothing to see.

    Blocks are appended to `keep` if it is given, for a `Linearisation` that has the memory to hold on to them.
    """
    b, h, n, _ = q.shape
    # Written into, not joined from pieces: small pieces kept between large temporaries scatter the heap, to gigabytes.
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
    """Attention near one (q, k, v): the derivative, its transpose, and the derivative of that.

    With the blocks that `forward` kept, a product is spared one of five matrix products and the exponential. That is
    for small n, where the caller has the memory; without them the probabilities of a block are made again.
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
    ):
        self.q, self.k, self.v, self.o, self.normaliser = q, k, v, o, normaliser
        self.pattern, self.padding, self.kept = pattern, padding, kept
        self.scaled = pattern.scale * q

    def blocks(self) -> Iterator[Block]:
        if self.kept is not None:
            yield from self.kept
            return
        for first, last in spans(self.q, self.k, self.pattern):
            s, tanh, start, stop = block_scores(self.scaled, self.k, self.pattern, self.padding, first, last)
            top, log_total = fold(self.normaliser[:, :, first:last], self.k.shape[1]).split(1, -1)
            yield Block(first, last, start, stop, s.sub_(top).sub_(log_total).exp_(), tanh)

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """(dq, dk, dv) → do, shapes of (q, k, v) → shape of o."""
        dq, dk, dv = (t.to(self.q.dtype) for t in (dq, dk, dv))
        h, hkv = self.q.shape[1], self.k.shape[1]
        out = torch.zeros_like(self.o)
        both_q = torch.cat([self.pattern.scale * dq, self.scaled], -1)
        both_k = torch.cat([self.k, dk], -1)
        for at in self.blocks():
            ds = fold(both_q[:, :, at.first : at.last], hkv) @ both_k[:, :, at.start : at.stop].mT
            w = centred(at.through_cap(ds), at.p)
            do = times(w, self.v[:, :, at.start : at.stop])
            do += times(at.p, dv[:, :, at.start : at.stop])
            out[:, :, at.first : at.last] = unfold(do, h)
        return out

    def vjp(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G → (dq, dk, dv), shape of o → shapes of (q, k, v)."""
        g = g.to(self.q.dtype)
        h, hkv, scale = self.q.shape[1], self.k.shape[1], self.pattern.scale
        dq, dk, dv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        for at in self.blocks():
            keys, g_rows = slice(at.start, at.stop), fold(g[:, :, at.first : at.last], hkv)
            d = at.through_cap(centred(g_rows @ self.v[:, :, keys].mT, at.p))
            dq[:, :, at.first : at.last] = unfold(times(d, self.k[:, :, keys]), h)
            dk[:, :, keys] += times(d.mT, fold(self.q[:, :, at.first : at.last], hkv))
            dv[:, :, keys] += times(at.p.mT, g_rows)
        return dq.mul_(scale), dk.mul_(scale), dv

    def hvp(self, dq: Tensor, dk: Tensor, dv: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The derivative of vjp(g) along (dq, dk, dv). A dot in a name means: along that direction."""
        dq, dk, dv, g = (t.to(self.q.dtype) for t in (dq, dk, dv, g))
        h, hkv, scale = self.q.shape[1], self.k.shape[1], self.pattern.scale
        hq, hk, hv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        r = (g * self.o).sum(-1, keepdim=True)
        both_q = torch.cat([scale * dq, self.scaled], -1)
        both_k = torch.cat([self.k, dk], -1)
        for at in self.blocks():
            rows, keys = slice(at.first, at.last), slice(at.start, at.stop)
            g_rows, q_rows, dq_rows = (fold(t[:, :, rows], hkv) for t in (g, self.q, dq))
            raw_dot = fold(both_q[:, :, rows], hkv) @ both_k[:, :, keys].mT
            s_dot = at.through_cap(raw_dot)
            p_dot = at.p * (s_dot - (at.p * s_dot).sum(-1, keepdim=True))
            spread = g_rows @ self.v[:, :, keys].mT - fold(r[:, :, rows], hkv)
            spread_dot = g_rows @ dv[:, :, keys].mT
            # r's own derivative is rowsum(Ṗ∘(g vᵀ) + P∘(g dvᵀ)); Ṗ's rows sum to 0, so `spread` may stand for g vᵀ.
            r_dot = (p_dot * spread + at.p * spread_dot).sum(-1, keepdim=True)
            d = at.p * spread
            d_dot = p_dot * spread + at.p * (spread_dot - r_dot)
            if at.tanh is not None:
                bend = -2 * at.tanh * at.slope / self.pattern.softcap
                d_dot = d_dot * at.slope + d * bend * raw_dot
                d = d * at.slope
            hq[:, :, rows] = unfold(d_dot @ self.k[:, :, keys] + d @ dk[:, :, keys], h)
            hk[:, :, keys] += d_dot.mT @ q_rows + d.mT @ dq_rows
            hv[:, :, keys] += p_dot.mT @ g_rows
        return hq.mul_(scale), hk.mul_(scale), hv


def spans(q: Tensor, k: Tensor, pattern: Pattern) -> Iterator[tuple[int, int]]:
    """The queries, cut into blocks [first, last)."""
    n, rows = q.shape[2], block_rows(q.shape, k.shape[2], pattern)
    for first in range(0, n, rows):
        yield first, min(first + rows, n)


def block_rows(q_shape: tuple[int, ...], keys: int, pattern: Pattern) -> int:
    b, h, n, _ = q_shape
    rows = max(1, min(n, BLOCK_SCORES // max(1, b * h * keys)))
    return rows if not pattern.causal and pattern.window is None else min(rows, MASKED_BLOCK_ROWS)


def block_scores(scaled: Tensor, k: Tensor, pattern: Pattern, padding: Tensor | None, first: int, last: int):
    """Scores (b, hkv, g·rows, keys) of one block with −∞ where masked, tanh of the capped ones, and the key range."""
    b, h, _, _ = scaled.shape
    hkv, keys = k.shape[1], k.shape[2]
    start, stop = pattern.visible_range(first, last, keys)
    s = fold(scaled[:, :, first:last], hkv) @ k[:, :, start:stop].mT
    tanh = None
    if pattern.softcap is not None:
        tanh = (s / pattern.softcap).tanh_()
        s = pattern.softcap * tanh
    if start < stop and (pattern.score_bias is not None or pattern.causal or pattern.window is not None):
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


def centred(t: Tensor, p: Tensor) -> Tensor:
    """P∘(t − rowsum(P∘t)), written into t."""
    t = t.mul_(p)
    return t.addcmul_(p, t.sum(-1, keepdim=True), value=-1)


def times(wide: Tensor, thin: Tensor) -> Tensor:
    """Wide @ thin, in float64 computed as its transpose: there the libraries are up to twice as fast on that."""
    return (thin.mT @ wide.mT).mT if wide.dtype == torch.float64 else wide @ thin


def fold(t: Tensor, hkv: int) -> Tensor:
    """(b, h, rows, c) → (b, hkv, g·rows, c): the g heads that share a key become rows."""
    b, h, rows, c = t.shape
    return t if h == hkv else t.reshape(b, hkv, h // hkv * rows, c)


def unfold(t: Tensor, h: int) -> Tensor:
    """(b, hkv, g·rows, c) → (b, h, rows, c)."""
    b, hkv, grows, c = t.shape
    return t if h == hkv else t.reshape(b, h, grows * hkv // h, c)
