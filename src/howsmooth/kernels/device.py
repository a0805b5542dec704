"""Device functions that all kernels share: loads of rows, scores as exponents of 2, masks, and ranges of loops.

Triton reads annotations of a kernel's arguments as its own types. So only `tl.constexpr` ones are annotated, here and
in the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(
    ptr, first, count, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHECKED: tl.constexpr
):
    """Return rows first … first+ROWS−1 as a tile (ROWS, BLOCK); 0 in columns ≥ WIDTH and, if checked, rows ≥ count."""
    r = tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    # The offset of a row is a 64-bit number: a million rows of 4,096 entries overflow 32 bits.
    at = ptr + tl.cast(first, tl.int64) * stride + (r[:, None] * stride + c[None, :])
    if CHECKED:
        if WIDTH == BLOCK:
            return tl.load(at, mask=(first + r < count)[:, None], other=0.0)
        return tl.load(at, mask=(first + r < count)[:, None] & (c < WIDTH)[None, :], other=0.0)
    if WIDTH == BLOCK:
        return tl.load(at)
    return tl.load(at, mask=(c < WIDTH)[None, :], other=0.0)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """Return `a b + acc`, summed in float32.

    "f16x3" writes a float32 as a sum of two float16 (22 bits) and leaves out the product of the two small ones: three
    products at the rate of half precision, for operands of moderate size.
    """
    if PRECISION == "f16x3":
        a_high = a.to(tl.float16)
        b_high = b.to(tl.float16)
        a_low = (a - a_high.to(tl.float32)).to(tl.float16)
        b_low = (b - b_high.to(tl.float32)).to(tl.float16)
        acc = tl.dot(a_low, b_high, acc)
        acc = tl.dot(a_high, b_low, acc)
        return tl.dot(a_high, b_high, acc)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def store_rows(ptr, tile, first, count, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store the tile as rows first … first+ROWS−1, without columns ≥ WIDTH and rows ≥ count."""
    r = tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    at = ptr + tl.cast(first, tl.int64) * stride + (r[:, None] * stride + c[None, :])
    tl.store(at, tile.to(ptr.dtype.element_ty), mask=(first + r < count)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def in_bits(x):
    """Return x · log₂e, rounded.

    It is a fused multiply-add that nothing else is fused with: the forward pass stores by how much this rounding moves
    the largest score, so the derivatives have to round in the same way.
    """
    return tl.fma(x, tl.full(x.shape, 1.4426950408889634, tl.float32), tl.zeros(x.shape, tl.float32))


@triton.jit
def exponents(s, largest, scale, CAPPED: tl.constexpr, PRESCALED: tl.constexpr):
    """Return score · log₂e − largest, of products s = q kᵀ (or capped scores in bits), rounded once."""
    if CAPPED:
        return s - largest
    if PRESCALED:
        return tl.fma(s, tl.full(s.shape, 1.4426950408889634, tl.float32), tl.broadcast_to(-largest, s.shape))
    c = tl.cast(scale, tl.float32) * 1.4426950408889634
    return tl.fma(s, tl.broadcast_to(c, s.shape), tl.broadcast_to(-largest, s.shape))


@triton.jit
def times_scale(tile, scale, PRESCALED: tl.constexpr):
    """Return tile · scale in the tile's dtype if that is exact, else the tile; scores then get the scale."""
    if PRESCALED:
        return (tile.to(tl.float32) * scale).to(tile.dtype)
    return tile


@triton.jit
def tanh_and_slope(x):
    """Return tanh x and 1 − tanh² x, the latter without cancellation."""
    t = tl.exp2(tl.abs(x) * -2.8853900817779268)  # exp(−2|x|)
    r = 1.0 / (1.0 + t)
    th = (1.0 - t) * r
    return tl.where(x < 0, -th, th), 4.0 * t * r * r


@triton.jit
def capped(s, scale, cap, PRESCALED: tl.constexpr):
    """Return cap · tanh(score / cap) in units of log 2, and d score / d raw score."""
    if not PRESCALED:
        s = s * scale
    th, slope = tanh_and_slope(s / cap)
    return th * (cap * 1.4426950408889634), slope


@triton.jit
def seen(i, j, m, offset, window, padding_ptr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PADDED: tl.constexpr):
    """Return which of the pairs i, j (shaped to broadcast against each other) are visible."""
    ok = j < m
    if PADDED:
        ok = ok & (tl.load(padding_ptr + j, mask=ok, other=0) != 0)
    ahead = j - (i + offset)
    if CAUSAL:
        ok = ok & (ahead <= 0)
    else:
        ok = ok & (i == i)  # to the full shape
    if WINDOW:
        ok = ok & (ahead > -window)
        if not CAUSAL:
            ok = ok & (ahead < window)
    return ok


@triton.jit
def load_bias(bias_ptr, i, j, stride, n, m, BIASED: tl.constexpr):
    """Return what a table adds to the exponents of the pairs i, j: 0 without one, −∞ where a boolean one is False."""
    # One return: Triton compares the types of all of them, also of those in branches that are never taken.
    if BIASED == 0:
        bias = tl.zeros([1, 1], tl.float32)
    else:
        inside = (i < n)[:, None] & (j < m)[None, :]
        at = bias_ptr + (tl.cast(i, tl.int64)[:, None] * stride + j[None, :])
        if BIASED == 2:
            bias = tl.where(tl.load(at, mask=inside, other=1) != 0, 0.0, float("-inf"))
        else:
            bias = tl.load(at, mask=inside, other=0.0).to(tl.float32) * 1.4426950408889634
    return bias


@triton.jit
def plus_bias(exponent, bias, BIASED: tl.constexpr):
    """Return exponent + bias; without a table the exponent itself, so that nothing is added."""
    if BIASED != 0:
        exponent = exponent + bias
    return exponent


@triton.jit
def key_range(
    first,
    m,
    offset,
    window,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Return the ranges begin ≤ lo ≤ hi ≤ end of the keys of a block of queries, in whole blocks of keys.

    No query sees a key outside [begin, end), and all queries see all of [lo, hi). Only `end` need not be the edge of a
    block.
    """
    begin = 0
    end = m
    lo = 0
    hi = m
    last = first + ROWS - 1
    if CAUSAL:
        end = tl.minimum(end, offset + last + 1)
        hi = tl.minimum(hi, offset + first + 1)
    if WINDOW:
        begin = tl.maximum(begin, offset + first - window + 1)
        lo = tl.maximum(lo, offset + last - window + 1)
        if not CAUSAL:
            end = tl.minimum(end, offset + last + window)
            hi = tl.minimum(hi, offset + first + window)
    if PADDED:  # any block may contain a padded key
        lo = 0
        hi = 0
    return block_edges(begin, lo, hi, end, KEYS)


@triton.jit
def query_range(
    first, n, offset, window, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Return the same ranges for a block of keys first … first+ROWS−1 and the queries that see them."""
    begin = 0
    end = n
    lo = 0
    hi = n
    last = first + ROWS - 1
    if CAUSAL:
        begin = tl.maximum(begin, first - offset)
        lo = tl.maximum(lo, last - offset)
    if WINDOW:
        end = tl.minimum(end, last + window - offset)
        hi = tl.minimum(hi, first + window - offset)
        if not CAUSAL:
            begin = tl.maximum(begin, first - window + 1 - offset)
            lo = tl.maximum(lo, last - window + 1 - offset)
    return block_edges(begin, lo, hi, end, KEYS)


@triton.jit
def block_edges(begin, lo, hi, end, KEYS: tl.constexpr):
    """Round the ranges to whole blocks: [begin, end) outwards, [lo, hi) inwards."""
    end = tl.maximum(end, 0)
    begin = tl.minimum(begin, end) // KEYS * KEYS
    edge = (end + KEYS - 1) // KEYS * KEYS
    lo = tl.minimum(tl.maximum((lo + KEYS - 1) // KEYS * KEYS, begin), edge)
    hi = tl.minimum(tl.maximum(tl.maximum(hi, 0) // KEYS * KEYS, lo), edge)
    return begin, lo, hi, end
