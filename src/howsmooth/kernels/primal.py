"""The forward pass: o = softmax(s) v and the normaliser of each row, in one pass over the keys."""

from __future__ import annotations

import triton
import triton.language as tl

from howsmooth.kernels.device import (
    exponents,
    in_bits,
    key_range,
    listed_block,
    listed_range,
    load_bias,
    load_rows,
    located,
    part_range,
    product,
    scores,
    seen,
    store_rows,
    times_scale,
)


@triton.jit
def forward_step(
    acc,
    total,
    top,
    q,
    keys,
    i,
    j,
    tile,
    masks,
    limits,
    factors,
    CHECKED: tl.constexpr,
    SHAPE: tl.constexpr,
    SCORES: tl.constexpr,
    MASKS: tl.constexpr,
):
    """Add one block of keys to the accumulator, the row sums and the row maxima."""
    k_ptr, k_n, v_ptr, v_n = keys
    scale, cap = factors
    K: tl.constexpr = SHAPE[0]
    W: tl.constexpr = SHAPE[1]
    BLOCK_K: tl.constexpr = SHAPE[2]
    BLOCK_W: tl.constexpr = SHAPE[3]
    KEYS: tl.constexpr = SHAPE[4]
    CAPPED: tl.constexpr = SCORES[0]
    PRESCALED: tl.constexpr = SCORES[1]
    PRECISION: tl.constexpr = SCORES[2]
    m = limits[1]
    k = load_rows(k_ptr, j, m, k_n, KEYS, K, BLOCK_K, CHECKED)
    s, _ = scores(q, k, factors, SCORES)
    rows = i[:, None]
    columns = (j + tl.arange(0, KEYS))[None, :]
    bits = exponents(s, tl.zeros([1, 1], tl.float32), scale, CAPPED, PRESCALED)
    if MASKS[3] != 0:
        bias = load_bias(rows, columns, masks, limits, MASKS)
        bits = bits + bias
    if CHECKED:
        ok = seen(rows, columns, tile, masks, limits, MASKS)
        bits = tl.where(ok, bits, float("-inf"))
    new = tl.maximum(top, tl.max(bits, 1))
    at = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
    exponent = exponents(s, at[:, None], scale, CAPPED, PRESCALED)
    if MASKS[3] != 0:
        exponent = exponent + bias
    e = tl.exp2(exponent)
    if CHECKED:
        e = tl.where(ok, e, 0.0)
    shrink = tl.exp2(top - at)
    total = total * shrink + tl.sum(e, 1)
    v = load_rows(v_ptr, j, m, v_n, KEYS, W, BLOCK_W, CHECKED)
    acc = product(e.to(v.dtype), v, acc * shrink[:, None], PRECISION)
    return acc, total, new


@triton.jit
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    norm_ptr,
    padding_ptr,
    bias_ptr,
    tiles_ptr,
    starts_ptr,
    entries_ptr,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_n,
    v_b,
    v_h,
    v_n,
    o_b,
    o_h,
    o_n,
    padding_b,
    bias_b,
    bias_h,
    bias_n,
    starts_b,
    starts_h,
    heads,
    groups,
    n,
    m,
    scale,
    cap,
    offset,
    window,
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    BIASED: tl.constexpr,
    SPARSE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute the output and the normaliser for a block of queries of one head."""
    blocks = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    first = block * ROWS
    b = tl.cast(line // heads, tl.int64)
    h = tl.cast(line % heads, tl.int64)
    i = first + tl.arange(0, ROWS)
    keys = (k_ptr + b * k_b + h // groups * k_h, k_n, v_ptr + b * v_b + h // groups * v_h, v_n)
    masks = (padding_ptr + b * padding_b, bias_ptr + b * bias_b + h * bias_h, bias_n, tiles_ptr)
    limits = (n, m, offset, window)

    q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    q = times_scale(q, scale, PRESCALED)
    acc = tl.zeros([ROWS, BLOCK_W], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    ranges = key_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, PADDED, BIASED, SPARSE))
    if SPARSE:
        ranges = listed_range(starts_ptr + b * starts_b + h * starts_h, first, SPARSE, PARTS)
    for part in tl.static_range(3):
        if (PARTS >> part) & 1:
            start, stop = part_range(ranges, part)
            listed = (0, 0)
            if SPARSE:
                listed = listed_block(start, entries_ptr, SPARSE)
            for at in range(start, stop, KEYS):
                j, tile = located(at, listed, first, SPARSE, False)
                if SPARSE:
                    listed = listed_block(at + KEYS, entries_ptr, SPARSE)
                acc, total, top = forward_step(
                    acc,
                    total,
                    top,
                    q,
                    keys,
                    i,
                    j,
                    tile,
                    masks,
                    limits,
                    (scale, cap),
                    part != 1,
                    (K, W, BLOCK_K, BLOCK_W, KEYS),
                    (CAPPED, PRESCALED, PRECISION),
                    (CAUSAL, WINDOW, PADDED, BIASED, SPARSE),
                )

    empty = total == 0.0
    o = acc / tl.where(empty, 1.0, total)[:, None]
    store_rows(o_ptr + b * o_b + h * o_h, o, first, n, o_n, ROWS, W, BLOCK_W)
    # What is stored is in natural units. The derivatives multiply by log₂e again, which rounds: the difference goes
    # into the logarithm, or with scores of 10⁴ P would lose its fourth digit.
    largest = tl.where(empty, 0.0, top * 0.6931471805599453)
    rounding = tl.where(empty, 0.0, top - in_bits(largest))
    logarithm = tl.where(empty, float("inf"), (tl.log2(tl.where(empty, 1.0, total)) + rounding) * 0.6931471805599453)
    at = norm_ptr + (tl.cast(line, tl.int64) * n + i) * 2
    tl.store(at, largest, mask=i < n)
    tl.store(at + 1, logarithm, mask=i < n)
