"""The forward pass: o = softmax(s) v and the normaliser of each row, in one pass over the keys."""

from __future__ import annotations

import triton
import triton.language as tl

from howsmooth.kernels.device import (
    capped,
    exponents,
    in_bits,
    key_range,
    load_bias,
    load_rows,
    plus_bias,
    product,
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
    k_ptr,
    v_ptr,
    padding_ptr,
    bias_ptr,
    bias_n,
    n,
    j,
    i,
    m,
    stride_k,
    stride_v,
    scale,
    cap,
    offset,
    window,
    CHECKED: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Add one block of keys to the accumulator, the row sums and the row maxima."""
    k = load_rows(k_ptr, j, m, stride_k, KEYS, K, BLOCK_K, CHECKED)
    s = product(q, tl.trans(k), None, PRECISION)
    if CAPPED:
        s, _ = capped(s, scale, cap, PRESCALED)
    zero = tl.zeros([1, 1], tl.float32)
    columns = j + tl.arange(0, KEYS)
    bias = load_bias(bias_ptr, i, columns, bias_n, n, m, BIASED)
    if CHECKED:
        ok = seen(i[:, None], columns[None, :], m, offset, window, padding_ptr, CAUSAL, WINDOW, PADDED)
        bits = tl.where(ok, plus_bias(exponents(s, zero, scale, CAPPED, PRESCALED), bias, BIASED), float("-inf"))
    else:
        bits = plus_bias(exponents(s, zero, scale, CAPPED, PRESCALED), bias, BIASED)
    new = tl.maximum(top, tl.max(bits, 1))
    at = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
    e = tl.exp2(plus_bias(exponents(s, at[:, None], scale, CAPPED, PRESCALED), bias, BIASED))
    if CHECKED:
        e = tl.where(ok, e, 0.0)
    shrink = tl.exp2(top - at)
    total = total * shrink + tl.sum(e, 1)
    v = load_rows(v_ptr, j, m, stride_v, KEYS, W, BLOCK_W, CHECKED)
    acc = product(e.to(v.dtype), v, acc * shrink[:, None], PRECISION)
    return acc, total, new


@triton.jit
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    padding_ptr,
    o_ptr,
    norm_ptr,
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
    bias_ptr,
    bias_b,
    bias_h,
    bias_n,
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
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
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
    k_ptr += b * k_b + h // groups * k_h
    v_ptr += b * v_b + h // groups * v_h
    padding_ptr += b * padding_b
    bias_ptr += b * bias_b + h * bias_h
    i = first + tl.arange(0, ROWS)

    q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    q = times_scale(q, scale, PRESCALED)
    acc = tl.zeros([ROWS, BLOCK_W], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    begin, lo, hi, end = key_range(first, m, offset, window, ROWS, KEYS, CAUSAL, WINDOW, PADDED)
    for part in tl.static_range(3):  # blocks that only some rows see, that all see, that only some see
        start = lo
        stop = hi
        if part == 0:
            start = begin
            stop = lo
        if part == 2:
            start = hi
            stop = end
        if (part == 0 and WINDOW and not PADDED) or (part == 1 and not PADDED) or (part == 2 and TAIL):
            for j in range(start, stop, KEYS):
                acc, total, top = forward_step(
                    acc,
                    total,
                    top,
                    q,
                    k_ptr,
                    v_ptr,
                    padding_ptr,
                    bias_ptr,
                    bias_n,
                    n,
                    j,
                    i,
                    m,
                    k_n,
                    v_n,
                    scale,
                    cap,
                    offset,
                    window,
                    part != 1,
                    K,
                    W,
                    BLOCK_K,
                    BLOCK_W,
                    KEYS,
                    CAUSAL,
                    WINDOW,
                    PADDED,
                    CAPPED,
                    PRESCALED,
                    PRECISION,
                    BIASED,
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
