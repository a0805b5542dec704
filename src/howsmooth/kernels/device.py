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
    """Return `a b + acc`, summed in float32."""
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
def scores(a, b, factors, SCORES: tl.constexpr):
    """Return a bᵀ, or the capped scores in units of log 2; and the slope of the cap (a bᵀ itself without one)."""
    scale, cap = factors
    CAPPED: tl.constexpr = SCORES[0]
    PRESCALED: tl.constexpr = SCORES[1]
    PRECISION: tl.constexpr = SCORES[2]
    s = product(a, tl.trans(b), None, PRECISION)
    slope = s
    if CAPPED:
        s, slope = capped(s, scale, cap, PRESCALED)
    return s, slope


@triton.jit
def score_derivative(a, da, b, db, factors, SCORES: tl.constexpr):
    """Return scale (da bᵀ + a dbᵀ), the derivative of the scores before the cap."""
    scale, cap = factors
    PRESCALED: tl.constexpr = SCORES[1]
    PRECISION: tl.constexpr = SCORES[2]
    ds = product(da, tl.trans(b), None, PRECISION)
    ds = product(a, tl.trans(db), ds, PRECISION)
    if not PRESCALED:
        ds = ds * scale
    return ds


@triton.jit
def listed_pairs(i, j, tile, tiles_ptr, SPARSE: tl.constexpr):
    """Return 1 for the pairs i, j that a tile of a sparse mask lists, all of them if `tile` is −1; see `seen`.

    A word has the bits of 32 keys for one query, so that a thread loads a word for a row, not a byte for each pair.
    """
    if j.shape[0] == 1:
        queries = tl.arange(0, i.shape[0])[:, None]
        keys = tl.arange(0, j.shape[1])[None, :]
    else:
        queries = tl.arange(0, i.shape[1])[None, :]
        keys = tl.arange(0, j.shape[0])[:, None]
    at = tiles_ptr + (tile // 32 + queries * (SPARSE // 32))
    pairs = (tl.load(at, mask=(queries >= 0) & (tile >= 0), other=-1) >> (j & 31)) & 1
    for word in tl.static_range(1, (j.shape[0] * j.shape[1]) // 32):
        bits = (tl.load(at + word, mask=(queries >= 0) & (tile >= 0), other=-1) >> (j & 31)) & 1
        pairs = tl.where(keys // 32 == word, bits, pairs)
    return pairs


@triton.jit
def seen(i, j, tile, masks, limits, MASKS: tl.constexpr):
    """Return which of the pairs i, j (shaped to broadcast against each other) are visible.

    Args:
        i: Queries.
        j: Keys.
        tile: Where the pairs begin among the tiles of a sparse mask, −1 if all of them are visible there.
        masks: (pointer to the padding, pointer to the table, stride of its rows, pointer to the sparse mask's tiles).
        limits: (n, m, offset, window).
        MASKS: (causal, window, padded, kind of the table, side of a sparse mask's tiles), 0 for what there is not.
    """
    n, m, offset, window = limits
    padding_ptr, bias_ptr, bias_n, tiles_ptr = masks
    CAUSAL: tl.constexpr = MASKS[0]
    WINDOW: tl.constexpr = MASKS[1]
    PADDED: tl.constexpr = MASKS[2]
    SPARSE: tl.constexpr = MASKS[4]
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
    if SPARSE:
        ok = ok & (listed_pairs(i, j, tile, tiles_ptr, SPARSE) != 0)
    return ok


@triton.jit
def load_bias(i, j, masks, limits, MASKS: tl.constexpr):
    """Return what a table adds to the exponents of the pairs i, j: 0 without one, −∞ where a boolean one is False."""
    n, m, offset, window = limits
    padding_ptr, bias_ptr, bias_n, tiles_ptr = masks
    BIASED: tl.constexpr = MASKS[3]
    # One return: Triton compares the types of all of them, also of those in branches that are never taken.
    if BIASED == 0:
        bias = tl.zeros([1, 1], tl.float32)
    else:
        inside = (i < n) & (j < m)
        at = bias_ptr + (tl.cast(i, tl.int64) * bias_n + j)
        if BIASED == 2:
            bias = tl.where(tl.load(at, mask=inside, other=1) != 0, 0.0, float("-inf"))
        else:
            bias = tl.load(at, mask=inside, other=0.0).to(tl.float32) * 1.4426950408889634
    return bias


@triton.jit
def masked(exponent, i, j, tile, masks, limits, CHECKED: tl.constexpr, MASKS: tl.constexpr):
    """Return the exponents plus the table, and −∞ where a pair is hidden; arguments as in `seen`."""
    if MASKS[3] != 0:
        exponent = exponent + load_bias(i, j, masks, limits, MASKS)
    if CHECKED:
        exponent = tl.where(seen(i, j, tile, masks, limits, MASKS), exponent, float("-inf"))
    return exponent


@triton.jit
def key_range(first, limits, ROWS: tl.constexpr, KEYS: tl.constexpr, MASKS: tl.constexpr):
    """Return the ranges begin ≤ lo ≤ hi ≤ end of the keys of a block of queries, in whole blocks of keys.

    No query sees a key outside [begin, end), and all queries see all of [lo, hi). Only `end` need not be the edge of a
    block.
    """
    n, m, offset, window = limits
    CAUSAL: tl.constexpr = MASKS[0]
    WINDOW: tl.constexpr = MASKS[1]
    PADDED: tl.constexpr = MASKS[2]
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
def query_range(first, limits, ROWS: tl.constexpr, KEYS: tl.constexpr, MASKS: tl.constexpr):
    """Return the same ranges for a block of keys first … first+ROWS−1 and the queries that see them."""
    n, m, offset, window = limits
    CAUSAL: tl.constexpr = MASKS[0]
    WINDOW: tl.constexpr = MASKS[1]
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


@triton.jit
def part_range(ranges, PART: tl.constexpr):
    """Return the range of a loop: blocks that only some rows see (0), that all see (1), that only some see (2)."""
    begin, lo, hi, end = ranges
    start = lo
    stop = hi
    if PART == 0:
        start = begin
        stop = lo
    if PART == 2:
        start = hi
        stop = end
    return start, stop


@triton.jit
def listed_range(starts_ptr, first, SPARSE: tl.constexpr, PARTS: tl.constexpr):
    """Return the ranges of the loops under a sparse mask: blocks that need no check, and those that do.

    The loop variable counts the keys of the listed blocks; `located` returns where they are.
    """
    at = starts_ptr + first // SPARSE * 3
    start = tl.load(at) * SPARSE
    middle = start
    if (PARTS >> 1) & 1:
        middle = tl.load(at + 1) * SPARSE
    return start, start, middle, tl.load(at + 2) * SPARSE


@triton.jit
def listed_block(at, entries_ptr, SPARSE: tl.constexpr):
    """Return the entry of a step of the loop under a sparse mask: a block of keys, and its tile.

    The kernels load it one step ahead, since the addresses of all other loads depend on it.
    """
    entry = entries_ptr + at // SPARSE * 2
    return tl.load(entry), tl.load(entry + 1)


@triton.jit
def located(at, listed, first, SPARSE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Return the first key of a step of the loop, and where its pairs with the rows from `first` on begin in the tiles.

    Without a sparse mask these are `at` and −1. In a transposed loop, rows are keys and steps are over queries.
    """
    tile = tl.cast(-1, tl.int64)
    if SPARSE:
        block, entry = listed
        index = tl.cast(entry, tl.int64)
        inside = at % SPARSE
        row = first % SPARSE
        if TRANSPOSED:
            begin = inside * SPARSE + row
        else:
            begin = row * SPARSE + inside
        tile = tl.where(index >= 0, index * (SPARSE * SPARSE) + begin, tile)
        at = block * SPARSE + inside
    return at, tile
