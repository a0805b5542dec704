"""The products of one layer with J and Jᵀ at one point where its probabilities are stored, laid out for a CPU.

The formulas are those of `blockwise`. Their layout is chosen for matrix libraries, as a whole; single parts of it gain
little:

* Tensors are transposed, (…, channels, tokens). A projection W eᵀ of tokens e then has its heads one after another,
  each of them contiguous, and nothing is permuted.
* The scale is a factor of stored queries and keys.
* JᵀJ has the output projection W only as WᵀW, one product instead of two.
* Cotangents of k and v are written as qᵀ dS and gᵀ P; as dSᵀ q and Pᵀ g they may take twice as long.
* Scores are computed for a few heads at a time, so that they stay in the cache from one product to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from howsmooth.attention.blockwise import Block, Linearisation, centred
from howsmooth.attention.rotary import Rotary

# Bytes of the scores of one tile. Twice as many, with the probabilities, are about the second-level cache of a core;
# with far fewer the time goes into the calls.
TILE_BYTES = 1 << 20
# Smaller probabilities are set to zero in float32.
MIN_PROBABILITY = 1e-30
# `gram` forms the Gram matrix of the output projection, which pays only with enough tokens: about ten products are
# made with it.
PRODUCTS_OF_A_SOLVE = 10


class Tile(NamedTuple):
    """Some heads and rows of a block. Its tensors are views, made once, since each product takes many of them.

    Attributes:
        heads: range of the key heads, over all sequences.
        rows: range of the rows, which are the queries of all g heads that share a key.
        seen: range of the keys.
        p: probabilities, (heads, rows, keys).
        slope: derivative of the soft cap, of the same shape, or None.
        queries: scaled queries, (heads, k, rows).
        keys: scaled keys, (heads, k, keys).
        values: values, (heads, w, keys).
    """

    heads: slice
    rows: slice
    seen: slice
    p: Tensor
    slope: Tensor | None
    queries: Tensor
    keys: Tensor
    values: Tensor


class DenseProducts:
    """Products with J = D_X f of a layer, by stored probabilities.

    Below, g query heads share each of the b·hkv key heads of all sequences.

    Args:
        linearised: attention at its (q, k, v), with stored blocks.
        w_in: projections to q, k and v, stacked, (h·k + hkv·k + hkv·w, d).
        w_out: output projection (d_out, h·w), or None.
        rotary: rotary positions, or None.
    """

    def __init__(self, linearised: Linearisation, w_in: Tensor, w_out: Tensor | None, rotary: Rotary | None) -> None:
        """Transpose the tensors and cut the blocks into tiles."""
        if linearised.kept is None:
            raise RuntimeError("expected stored blocks, got none")
        h, width = linearised.q.shape[1], linearised.q.shape[-1]
        self.hkv, value_width = linearised.k.shape[1], linearised.v.shape[-1]
        self.shared = h // self.hkv
        self.widths = (width, width, value_width)
        self.channels = [h * width, self.hkv * width, self.hkv * value_width]
        self.w_in, self.rotary = w_in, rotary
        self.w_out_transposed = None if w_out is None else w_out.T.contiguous()
        self.output_gram: ScaledGram | None = None  # formed when it is needed
        keys = (linearised.pattern.scale * linearised.k).mT.flatten(0, 1).contiguous()
        values = linearised.v.mT.flatten(0, 1).contiguous()
        queries = self._by_key_head(linearised.scaled.mT)
        self.blocks = [
            (block, list(_tiles(block, _fold(queries[..., block.first : block.last]).contiguous(), keys, values)))
            for block in linearised.kept
        ]
        self.key_heads, self.tokens = len(keys), linearised.q.shape[0] * linearised.q.shape[2]
        self.largest_tile = max((tile.p.numel() for _, tiles in self.blocks for tile in tiles), default=0)

    def forward(self, e: Tensor) -> Tensor:
        """Compute J e: (b, n, d) → (b, n, d_out)."""
        image = self._tangent(e).mT
        return image if self.w_out_transposed is None else _product(image, self.w_out_transposed)

    def adjoint(self, u: Tensor) -> Tensor:
        """Compute Jᵀ u: (b, n, d_out) → (b, n, d)."""
        return self._cotangent(u.mT if self.w_out_transposed is None else _projection(self.w_out_transposed, u))

    def gram(self, e: Tensor) -> tuple[Tensor, Tensor]:
        """Compute JᵀJ e (b, n, d) up to a factor (b,) in float64, of the size of J e; see `LinearOperator.gram`."""
        if self.w_out_transposed is None:
            raise RuntimeError("expected a layer with an output projection, got none")
        if self.output_gram is None:
            self.output_gram = scaled_gram(self.w_out_transposed)
        do, factor = normalised(self._tangent(e))
        return self._cotangent(_product(self.output_gram.matrix, do)), self.output_gram.size * factor

    def gains_by_gram(self, dtype: torch.dtype) -> bool:
        """Return whether a solve is faster by `gram`; in float64 only a few products are made, of a reference."""
        if self.w_out_transposed is None or dtype == torch.float64:
            return False
        inner, outer = self.w_out_transposed.shape
        return self.tokens * PRODUCTS_OF_A_SOLVE * (2 * outer - inner) > inner * outer

    def _tangent(self, e: Tensor) -> Tensor:
        """Compute the tangent (b, h·w, n) of the output of attention along tokens e (b, n, d)."""
        parts = torch.split(_projection(self.w_in, e), self.channels, 1)
        dq, dk, dv = (t.unflatten(1, (-1, width)) for t, width in zip(parts, self.widths, strict=True))
        if self.rotary is not None:
            dq, dk = self.rotary(dq.mT).mT, self.rotary(dk.mT).mT
        dq, dk, dv = self._by_key_head(dq), dk.flatten(0, 1), dv.flatten(0, 1)
        scores, outputs = e.new_empty(self.largest_tile), []  # scores of one tile; products may run in threads
        for block, tiles in self.blocks:
            dq_rows = _fold(dq[..., block.first : block.last])
            do = dv.new_zeros(self.key_heads, self.widths[2], dq_rows.shape[2])
            for heads, rows, seen, p, slope, queries, keys, values in tiles:
                ds = scores[: p.numel()].view(p.shape)
                torch.bmm(dq_rows[heads, :, rows].mT, keys, out=ds)
                ds.baddbmm_(queries.mT, dk[heads, :, seen])
                weights, _ = centred(ds if slope is None else ds.mul_(slope), p)
                part = do[heads, :, rows]
                torch.bmm(values, weights.mT, out=part)
                part.baddbmm_(dv[heads, :, seen], p.mT)
            outputs.append(self._unfold(do))
        return _joined(outputs).reshape(len(e), -1, e.shape[1])

    def _cotangent(self, cotangent: Tensor) -> Tensor:
        """Compute the cotangent (b, n, d) of the tokens for one of the output of attention, (b, h·w, n)."""
        b = len(cotangent)
        g = self._by_key_head(cotangent.unflatten(1, (-1, self.widths[2])))
        dk, dv = (g.new_zeros(self.key_heads, width, cotangent.shape[2]) for width in self.widths[1:])
        scores, outputs = g.new_empty(self.largest_tile), []
        for block, tiles in self.blocks:
            g_rows = _fold(g[..., block.first : block.last])
            dq = g.new_zeros(self.key_heads, self.widths[0], g_rows.shape[2])
            for heads, rows, seen, p, slope, queries, keys, values in tiles:
                d, g_tile = scores[: p.numel()].view(p.shape), g_rows[heads, :, rows]
                torch.bmm(g_tile.mT, values, out=d)
                d, _ = centred(d, p)
                d = d if slope is None else d.mul_(slope)
                torch.bmm(keys, d.mT, out=dq[heads, :, rows])
                dk[heads, :, seen].baddbmm_(queries, d)
                dv[heads, :, seen].baddbmm_(g_tile, p)
            outputs.append(self._unfold(dq))
        by_head = [t.reshape(b, -1, *t.shape[-2:]) for t in (_joined(outputs), dk, dv)]
        if self.rotary is not None:
            by_head[:2] = [self.rotary.transpose(t.mT).mT for t in by_head[:2]]
        return _product(torch.cat([t.flatten(1, 2) for t in by_head], 1).mT, self.w_in)

    def _unfold(self, t: Tensor) -> Tensor:
        """Reshape (b·hkv, c, g·rows) to (b·hkv, g, c, rows)."""
        return torch.unflatten(t, 2, (self.shared, -1)).transpose(1, 2)

    def _by_key_head(self, t: Tensor) -> Tensor:
        """Reshape (b, h, c, n) to (b·hkv, g, c, n)."""
        return torch.unflatten(t, 1, (self.hkv, -1)).flatten(0, 1)


class ScaledGram(NamedTuple):
    """WᵀW as a matrix with entries of the size of those of W, and a factor of it.

    Attributes:
        matrix: WᵀW / size.
        size: A power of two near the largest entry of W.
    """

    matrix: Tensor
    size: float


def scaled_gram(transposed: Tensor) -> ScaledGram:
    """Return WᵀW from the transpose of W."""
    size = 2.0 ** math.frexp(float(transposed.abs().max()))[1]
    return ScaledGram((transposed / size) @ transposed.T, size)


def normalised(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return t (b, ·, ·) divided by its norms, and these norms (b,) in float64; zeros stay zeros."""
    norm = torch.linalg.vector_norm(t, dim=(1, 2), dtype=torch.float64)
    return t / torch.where(norm > 0, norm, 1.0).to(t.dtype)[:, None, None], norm


def rounded_block(block: Block, dtype: torch.dtype) -> Block:
    """Return a block in another dtype."""
    return replace(block, p=block.p.to(dtype), tanh=None if block.tanh is None else block.tanh.to(dtype))


def flush_tiny(p: Tensor) -> None:
    """Set probabilities below 1e-30 to zero, in place.

    In float32 they, or their products with ds, are subnormal, and a processor takes many times longer for these. What
    is set to zero in a row, at most n · 1e-30, is less than a rounding of the row's largest entry, at least 6e-8/n, for
    every n below 10¹¹. Its effect on J is measured, as that of all rounding, against the float64 reference, which keeps
    these entries; without a reference the allowance covers it, unless tokens differ in length by a factor of 10²⁰.
    """
    torch.threshold_(p, MIN_PROBABILITY, 0.0)


def _tiles(block: Block, queries: Tensor, keys: Tensor, values: Tensor) -> Iterator[Tile]:
    """Yield the tiles of a block: as many heads as fit into `TILE_BYTES`, or part of the rows of one."""
    p = block.p.flatten(0, 1)
    slope = None if block.tanh is None else (1 - block.tanh**2).flatten(0, 1)
    count, height, width = p.shape
    if width == 0:
        return
    size, seen = height * width * p.element_size(), slice(block.start, block.stop)
    per_tile, pieces = max(1, TILE_BYTES // size), -(-size // TILE_BYTES)
    step = -(-height // pieces)
    for first in range(0, count, per_tile):
        for start in range(0, height, step):
            heads, rows = slice(first, first + per_tile), slice(start, start + step)
            yield Tile(
                *(heads, rows, seen, p[heads, rows], None if slope is None else slope[heads, rows]),
                *(queries[heads, :, rows], keys[heads, :, seen], values[heads, :, seen]),
            )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, of which one may be a batch; a batch of one as a plain product, which is faster for few tokens."""
    if a.dim() == b.dim() or max(a.shape[0] if a.dim() == 3 else 1, b.shape[0] if b.dim() == 3 else 1) > 1:
        return a @ b
    return (a.view(a.shape[-2:]) @ b.view(b.shape[-2:])).unsqueeze(0)


def _projection(w: Tensor, e: Tensor) -> Tensor:
    """Return w eᵀ for tokens e (b, n, d); in float64 as (e wᵀ)ᵀ, which is up to twice as fast for few tokens."""
    return _product(e, w.T).mT.contiguous() if e.dtype == torch.float64 else _product(w, e.mT)


def _fold(t: Tensor) -> Tensor:
    """Reshape (b·hkv, g, c, rows) to (b·hkv, c, g·rows), the order of the rows of a block."""
    return t.transpose(1, 2).flatten(2)


def _joined(blocks: list[Tensor]) -> Tensor:
    """Join blocks (b·hkv, g, c, rows) along their rows."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, -1)
