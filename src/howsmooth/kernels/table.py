"""The gradient of a table that is added to the scores: P∘(g vᵀ − r), summed over what shares an entry of the table.

The gradient of ⟨h, do⟩, where do is the derivative along (dq, dk, dv), is P∘u in the notation of `curvature.py`. A
program computes one tile of the table's gradient. It adds up the heads and sequences that share the tile in a fixed
order, so that the result is the same at every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from howsmooth.kernels.device import (
    exponents,
    in_bits,
    load_rows,
    masked,
    product,
    score_derivative,
    scores,
    times_scale,
)


@triton.jit
def table_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    norm_ptr,
    g_ptr,
    r_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    mu_ptr,
    c_ptr,
    out_ptr,
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
    g_b,
    g_h,
    g_n,
    dq_b,
    dq_h,
    dq_n,
    dk_b,
    dk_h,
    dk_n,
    dv_b,
    dv_h,
    dv_n,
    out_b,
    out_h,
    out_n,
    padding_b,
    bias_b,
    bias_h,
    bias_n,
    starts_b,
    starts_h,
    heads,
    table_heads,
    shared_sequences,
    shared_heads,
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
    SECOND: tl.constexpr,
):
    """Compute one tile of the gradient; r, and for the second derivative μ and c, are given for each row."""
    across = tl.cdiv(m, KEYS)
    down = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // (across * down)
    first = tl.program_id(0) // across % down * ROWS
    first_key = tl.program_id(0) % across * KEYS
    table_b = line // table_heads
    table_h = line % table_heads
    i = first + tl.arange(0, ROWS)
    j = first_key + tl.arange(0, KEYS)
    rows = i[:, None]
    columns = j[None, :]
    limits = (n, m, offset, window)
    factors = (scale, cap)
    acc = tl.zeros([ROWS, KEYS], tl.float32)

    count = shared_sequences * shared_heads
    if CAUSAL:
        # No query of the block sees a key of the block.
        count = tl.where(first_key > first + ROWS - 1 + offset, 0, count)
    for index in range(0, count):
        b = tl.cast(table_b + index // shared_heads, tl.int64)
        h = tl.cast(table_h + index % shared_heads, tl.int64)
        key_head = h // groups
        row = (b * heads + h) * n + i
        masks = (padding_ptr + b * padding_b, bias_ptr + b * bias_b + h * bias_h, bias_n, tiles_ptr)
        q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
        k = load_rows(k_ptr + b * k_b + key_head * k_h, first_key, m, k_n, KEYS, K, BLOCK_K, True)
        v = load_rows(v_ptr + b * v_b + key_head * v_h, first_key, m, v_n, KEYS, W, BLOCK_W, True)
        g = load_rows(g_ptr + b * g_b + h * g_h, first, n, g_n, ROWS, W, BLOCK_W, True).to(q.dtype)
        q = times_scale(q, scale, PRESCALED)
        s, slope = scores(q, k, factors, (CAPPED, PRESCALED, PRECISION))
        largest = in_bits(tl.load(norm_ptr + row * 2, mask=i < n, other=0.0))
        logarithm = tl.load(norm_ptr + row * 2 + 1, mask=i < n, other=float("inf")) * 1.4426950408889634
        r = tl.load(r_ptr + row, mask=i < n, other=0.0)
        exponent = exponents(s, largest[:, None], scale, CAPPED, PRESCALED)
        exponent = masked(exponent, rows, columns, -1, masks, limits, True, (CAUSAL, WINDOW, PADDED, BIASED, SPARSE))
        p = tl.exp2(exponent - logarithm[:, None])
        change = product(g, tl.trans(v), None, PRECISION) - r[:, None]
        if SECOND:
            dq = load_rows(dq_ptr + b * dq_b + h * dq_h, first, n, dq_n, ROWS, K, BLOCK_K, True).to(q.dtype)
            dk = load_rows(dk_ptr + b * dk_b + key_head * dk_h, first_key, m, dk_n, KEYS, K, BLOCK_K, True).to(q.dtype)
            dv = load_rows(dv_ptr + b * dv_b + key_head * dv_h, first_key, m, dv_n, KEYS, W, BLOCK_W, True).to(q.dtype)
            dq = times_scale(dq, scale, PRESCALED)
            ds = score_derivative(q, dq, k, dk, factors, (CAPPED, PRESCALED, PRECISION))
            if CAPPED:
                ds = ds * slope
            mu = tl.load(mu_ptr + row, mask=i < n, other=0.0)
            c = tl.load(c_ptr + row, mask=i < n, other=0.0)
            change = (ds - mu[:, None]) * change + product(g, tl.trans(dv), None, PRECISION) - c[:, None]
        acc += p * change

    at = out_ptr + table_b * tl.cast(out_b, tl.int64) + table_h * tl.cast(out_h, tl.int64)
    at = at + tl.cast(rows, tl.int64) * out_n + columns
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=(rows < n) & (columns < m))
