"""The transpose: dS = P∘(g vᵀ − rowsum(g∘o)), dq = scale dS k, dk = scale dSᵀ q, dv = Pᵀ g.

Two kernels compute it with seven products, and deterministically. `dq_kernel` iterates over the keys for a block of
queries. It also writes the largest score, log Σ exp and rowsum(g∘o) of each row as three contiguous arrays for
`dkdv_kernel`, which iterates over the queries for a block of keys, one head of its group after the other.
"""

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
    query_range,
    seen,
    store_rows,
    times_scale,
)


@triton.jit
def dq_step(
    acc,
    q,
    g,
    largest,
    r,
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
    """Add one block of keys to dq, still without the factor of its row."""
    k = load_rows(k_ptr, j, m, stride_k, KEYS, K, BLOCK_K, CHECKED)
    v = load_rows(v_ptr, j, m, stride_v, KEYS, W, BLOCK_W, CHECKED)
    s = product(q, tl.trans(k), None, PRECISION)
    dp = product(g, tl.trans(v), None, PRECISION)
    if CAPPED:
        s, slope = capped(s, scale, cap, PRESCALED)
    columns = j + tl.arange(0, KEYS)
    exponent = exponents(s, largest[:, None], scale, CAPPED, PRESCALED)
    exponent = plus_bias(exponent, load_bias(bias_ptr, i, columns, bias_n, n, m, BIASED), BIASED)
    if CHECKED:
        ok = seen(i[:, None], columns[None, :], m, offset, window, padding_ptr, CAUSAL, WINDOW, PADDED)
        exponent = tl.where(ok, exponent, float("-inf"))
    ds = tl.exp2(exponent) * (dp - r[:, None])
    if CAPPED:
        ds = ds * slope
    return product(ds.to(k.dtype), k, acc, PRECISION)


@triton.jit
def dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    padding_ptr,
    o_ptr,
    norm_ptr,
    g_ptr,
    rows_ptr,
    dq_ptr,
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
    g_b,
    g_h,
    g_n,
    dq_b,
    dq_h,
    dq_n,
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
    """Compute dq for a block of queries of one head, and write the rows for `dkdv_kernel`."""
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
    row = tl.cast(line, tl.int64) * n + i

    q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    wide_g = load_rows(g_ptr + b * g_b + h * g_h, first, n, g_n, ROWS, W, BLOCK_W, True)
    o = load_rows(o_ptr + b * o_b + h * o_h, first, n, o_n, ROWS, W, BLOCK_W, True)
    r = tl.sum(wide_g.to(tl.float32) * o.to(tl.float32), 1)
    g = wide_g.to(q.dtype)
    q = times_scale(q, scale, PRESCALED)
    largest = in_bits(tl.load(norm_ptr + row * 2, mask=i < n, other=0.0))
    logarithm = tl.load(norm_ptr + row * 2 + 1, mask=i < n, other=0.0) * 1.4426950408889634
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * n
    tl.store(rows_ptr + row, largest, mask=i < n)
    tl.store(rows_ptr + lines + row, logarithm, mask=i < n)
    tl.store(rows_ptr + 2 * lines + row, r, mask=i < n)
    acc = tl.zeros([ROWS, BLOCK_K], tl.float32)

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
                acc = dq_step(
                    acc,
                    q,
                    g,
                    largest,
                    r,
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

    acc = acc * (tl.exp2(-logarithm) * scale)[:, None]
    store_rows(dq_ptr + b * dq_b + h * dq_h, acc, first, n, dq_n, ROWS, K, BLOCK_K)


@triton.jit
def dkdv_step(
    dk,
    dv,
    k,
    v,
    q_ptr,
    g_ptr,
    rows_ptr,
    bias_ptr,
    bias_n,
    m,
    lines,
    i0,
    j,
    n,
    stride_q,
    stride_g,
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
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Add one block of queries to dk and dv."""
    i = i0 + tl.arange(0, KEYS)
    q = load_rows(q_ptr, i0, n, stride_q, KEYS, K, BLOCK_K, CHECKED)
    g = load_rows(g_ptr, i0, n, stride_g, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
    if CHECKED:
        largest = tl.load(rows_ptr + i, mask=i < n, other=0.0)
        logarithm = tl.load(rows_ptr + lines + i, mask=i < n, other=float("inf"))
        r = tl.load(rows_ptr + 2 * lines + i, mask=i < n, other=0.0)
    else:
        largest = tl.load(rows_ptr + i)
        logarithm = tl.load(rows_ptr + lines + i)
        r = tl.load(rows_ptr + 2 * lines + i)
    s = product(k, tl.trans(q), None, PRECISION)
    if CAPPED:
        s, slope = capped(s, scale, cap, PRESCALED)
    exponent = exponents(s, largest[None, :], scale, CAPPED, PRESCALED)
    exponent = plus_bias(exponent, tl.trans(load_bias(bias_ptr, i, j, bias_n, n, m, BIASED)), BIASED)
    if CHECKED:
        # Keys past the end or padded affect only their own rows of dk and dv, which are not stored or set to zero.
        ok = seen(i[None, :], j[:, None], 2147483647, offset, window, rows_ptr, CAUSAL, WINDOW, False)
        exponent = tl.where(ok, exponent, float("-inf"))
    p = tl.exp2(exponent - logarithm[None, :])
    dv = product(p.to(g.dtype), g, dv, PRECISION)
    dp = product(v, tl.trans(g), None, PRECISION)
    ds = p * (dp - r[None, :])
    if CAPPED:
        ds = ds * slope
    dk = product(ds.to(q.dtype), q, dk, PRECISION)
    return dk, dv


@triton.jit
def dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    padding_ptr,
    g_ptr,
    rows_ptr,
    dk_ptr,
    dv_ptr,
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
    dk_b,
    dk_h,
    dk_n,
    dv_b,
    dv_h,
    dv_n,
    padding_b,
    bias_ptr,
    bias_b,
    bias_h,
    bias_n,
    key_heads,
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
    """Compute dk and dv for a block of keys of one head, over all query heads of its group."""
    blocks = tl.cdiv(m, ROWS)
    line = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * ROWS  # under a causal mask the first keys have the most work
    b = tl.cast(line // key_heads, tl.int64)
    h = tl.cast(line % key_heads, tl.int64)
    j = first + tl.arange(0, ROWS)
    k = load_rows(k_ptr + b * k_b + h * k_h, first, m, k_n, ROWS, K, BLOCK_K, True)
    v = load_rows(v_ptr + b * v_b + h * v_h, first, m, v_n, ROWS, W, BLOCK_W, True)
    k = times_scale(k, scale, PRESCALED)
    dk = tl.zeros([ROWS, BLOCK_K], tl.float32)
    dv = tl.zeros([ROWS, BLOCK_W], tl.float32)

    begin, lo, hi, end = query_range(first, n, offset, window, ROWS, KEYS, CAUSAL, WINDOW)
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * groups * n
    for head in range(0, groups):
        query_head = h * groups + head
        q_at = q_ptr + b * q_b + query_head * q_h
        g_at = g_ptr + b * g_b + query_head * g_h
        row = ((b * key_heads + h) * groups + head) * n
        rows_at = rows_ptr + row
        for part in tl.static_range(3):  # blocks that only some rows see, that all see, that only some see
            start = lo
            stop = hi
            if part == 0:
                start = begin
                stop = lo
            if part == 2:
                start = hi
                stop = end
            if (part == 0 and (CAUSAL or WINDOW)) or part == 1 or (part == 2 and TAIL):
                for i in range(start, stop, KEYS):
                    dk, dv = dkdv_step(
                        dk,
                        dv,
                        k,
                        v,
                        q_at,
                        g_at,
                        rows_at,
                        bias_ptr + b * bias_b + query_head * bias_h,
                        bias_n,
                        m,
                        lines,
                        i,
                        j,
                        n,
                        q_n,
                        g_n,
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
                        CAPPED,
                        PRESCALED,
                        PRECISION,
                        BIASED,
                    )

    dk = dk * scale
    if PADDED:
        real = tl.load(padding_ptr + b * padding_b + j, mask=j < m, other=0) != 0
        dk = tl.where(real[:, None], dk, 0.0)
        dv = tl.where(real[:, None], dv, 0.0)
    store_rows(dk_ptr + b * dk_b + h * dk_h, dk, first, m, dk_n, ROWS, K, BLOCK_K)
    store_rows(dv_ptr + b * dv_b + h * dv_h, dv, first, m, dv_n, ROWS, W, BLOCK_W)
