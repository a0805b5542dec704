"""The transpose: dS = P∘(g vᵀ − rowsum(g∘o)), dq = scale dS k, dk = scale dSᵀ q, dv = Pᵀ g.

Two kernels compute it with seven products, and deterministically. `dq_kernel` iterates over the keys for a block of
queries. It also writes the largest score, log Σ exp and rowsum(g∘o) of each row as three contiguous arrays for
`dkdv_kernel`, which iterates over the queries for a block of keys, one head of its group after the other.

The derivative of the log-sum-exp of a row in its scores is P. Its cotangent ℓ therefore adds P∘ℓ to dS: rowsum(g∘o) − ℓ
takes the place of rowsum(g∘o), and nothing else changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from howsmooth.kernels.device import (
    exponents,
    in_bits,
    key_range,
    listed_block,
    listed_range,
    load_rows,
    located,
    masked,
    part_range,
    product,
    query_range,
    scores,
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
    """Add one block of keys to dq, still without the factor of its row."""
    k_ptr, k_n, v_ptr, v_n = keys
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
    v = load_rows(v_ptr, j, m, v_n, KEYS, W, BLOCK_W, CHECKED)
    s, slope = scores(q, k, factors, SCORES)
    dp = product(g, tl.trans(v), None, PRECISION)
    columns = (j + tl.arange(0, KEYS))[None, :]
    exponent = exponents(s, largest[:, None], factors[0], CAPPED, PRESCALED)
    exponent = masked(exponent, i[:, None], columns, tile, masks, limits, CHECKED, MASKS)
    ds = tl.exp2(exponent) * (dp - r[:, None])
    if CAPPED:
        ds = ds * slope
    return product(ds.to(k.dtype), k, acc, PRECISION)


@triton.jit
def dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    norm_ptr,
    g_ptr,
    lse_ptr,
    rows_ptr,
    dq_ptr,
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
    g_b,
    g_h,
    g_n,
    dq_b,
    dq_h,
    dq_n,
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
    LSE: tl.constexpr,
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
    i = first + tl.arange(0, ROWS)
    row = tl.cast(line, tl.int64) * n + i
    keys = (k_ptr + b * k_b + h // groups * k_h, k_n, v_ptr + b * v_b + h // groups * v_h, v_n)
    masks = (padding_ptr + b * padding_b, bias_ptr + b * bias_b + h * bias_h, bias_n, tiles_ptr)
    limits = (n, m, offset, window)

    q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    wide_g = load_rows(g_ptr + b * g_b + h * g_h, first, n, g_n, ROWS, W, BLOCK_W, True)
    o = load_rows(o_ptr + b * o_b + h * o_h, first, n, o_n, ROWS, W, BLOCK_W, True)
    r = tl.sum(wide_g.to(tl.float32) * o.to(tl.float32), 1)
    if LSE:
        r = r - tl.load(lse_ptr + row, mask=i < n, other=0.0)
    g = wide_g.to(q.dtype)
    q = times_scale(q, scale, PRESCALED)
    largest = in_bits(tl.load(norm_ptr + row * 2, mask=i < n, other=0.0))
    logarithm = tl.load(norm_ptr + row * 2 + 1, mask=i < n, other=0.0) * 1.4426950408889634
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * n
    tl.store(rows_ptr + row, largest, mask=i < n)
    tl.store(rows_ptr + lines + row, logarithm, mask=i < n)
    tl.store(rows_ptr + 2 * lines + row, r, mask=i < n)
    acc = tl.zeros([ROWS, BLOCK_K], tl.float32)

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
                acc = dq_step(
                    acc,
                    q,
                    g,
                    largest,
                    r,
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

    acc = acc * (tl.exp2(-logarithm) * scale)[:, None]
    store_rows(dq_ptr + b * dq_b + h * dq_h, acc, first, n, dq_n, ROWS, K, BLOCK_K)


@triton.jit
def dkdv_step(
    dk,
    dv,
    k,
    v,
    queries,
    rows_ptr,
    lines,
    first,
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
    """Add one block of queries to dk and dv."""
    q_ptr, q_n, g_ptr, g_n = queries
    K: tl.constexpr = SHAPE[0]
    W: tl.constexpr = SHAPE[1]
    BLOCK_K: tl.constexpr = SHAPE[2]
    BLOCK_W: tl.constexpr = SHAPE[3]
    KEYS: tl.constexpr = SHAPE[4]
    CAPPED: tl.constexpr = SCORES[0]
    PRESCALED: tl.constexpr = SCORES[1]
    PRECISION: tl.constexpr = SCORES[2]
    n = limits[0]
    i = first + tl.arange(0, KEYS)
    q = load_rows(q_ptr, first, n, q_n, KEYS, K, BLOCK_K, CHECKED)
    g = load_rows(g_ptr, first, n, g_n, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
    if CHECKED:
        largest = tl.load(rows_ptr + i, mask=i < n, other=0.0)
        logarithm = tl.load(rows_ptr + lines + i, mask=i < n, other=float("inf"))
        r = tl.load(rows_ptr + 2 * lines + i, mask=i < n, other=0.0)
    else:
        largest = tl.load(rows_ptr + i)
        logarithm = tl.load(rows_ptr + lines + i)
        r = tl.load(rows_ptr + 2 * lines + i)
    s, slope = scores(k, q, factors, SCORES)
    exponent = exponents(s, largest[None, :], factors[0], CAPPED, PRESCALED)
    exponent = masked(exponent, i[None, :], j[:, None], tile, masks, limits, CHECKED, MASKS)
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
    g_ptr,
    rows_ptr,
    dk_ptr,
    dv_ptr,
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
    dk_b,
    dk_h,
    dk_n,
    dv_b,
    dv_h,
    dv_n,
    padding_b,
    bias_b,
    bias_h,
    bias_n,
    starts_b,
    starts_h,
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
    """Compute dk and dv for a block of keys of one head, over all query heads of its group."""
    blocks = tl.cdiv(m, ROWS)
    line = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * ROWS  # under a causal mask the first keys have the most work
    b = tl.cast(line // key_heads, tl.int64)
    key_head = tl.cast(line % key_heads, tl.int64)
    j = first + tl.arange(0, ROWS)
    limits = (n, m, offset, window)
    k = load_rows(k_ptr + b * k_b + key_head * k_h, first, m, k_n, ROWS, K, BLOCK_K, True)
    v = load_rows(v_ptr + b * v_b + key_head * v_h, first, m, v_n, ROWS, W, BLOCK_W, True)
    k = times_scale(k, scale, PRESCALED)
    dk = tl.zeros([ROWS, BLOCK_K], tl.float32)
    dv = tl.zeros([ROWS, BLOCK_W], tl.float32)

    ranges = query_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, False, BIASED, SPARSE))
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * groups * n
    for group in range(0, groups):
        h = key_head * groups + group
        queries = (q_ptr + b * q_b + h * q_h, q_n, g_ptr + b * g_b + h * g_h, g_n)
        masks = (padding_ptr, bias_ptr + b * bias_b + h * bias_h, bias_n, tiles_ptr)
        here = ranges
        if SPARSE:
            here = listed_range(starts_ptr + b * starts_b + h * starts_h, first, SPARSE, PARTS)
        for part in tl.static_range(3):
            if (PARTS >> part) & 1:
                start, stop = part_range(here, part)
                listed = (0, 0)
                if SPARSE:
                    listed = listed_block(start, entries_ptr, SPARSE)
                for at in range(start, stop, KEYS):
                    i, tile = located(at, listed, first, SPARSE, True)
                    if SPARSE:
                        listed = listed_block(at + KEYS, entries_ptr, SPARSE)
                    # Padded keys affect only their own rows of dk and dv, which are set to zero below.
                    dk, dv = dkdv_step(
                        dk,
                        dv,
                        k,
                        v,
                        queries,
                        rows_ptr + ((b * key_heads + key_head) * groups + group) * n,
                        lines,
                        i,
                        j,
                        tile,
                        masks,
                        limits,
                        (scale, cap),
                        part != 1,
                        (K, W, BLOCK_K, BLOCK_W, KEYS),
                        (CAPPED, PRESCALED, PRECISION),
                        (CAUSAL, WINDOW, False, BIASED, SPARSE),
                    )

    dk = dk * scale
    if PADDED:
        real = tl.load(padding_ptr + b * padding_b + j, mask=j < m, other=0) != 0
        dk = tl.where(real[:, None], dk, 0.0)
        dv = tl.where(real[:, None], dv, 0.0)
    store_rows(dk_ptr + b * dk_b + key_head * dk_h, dk, first, m, dk_n, ROWS, K, BLOCK_K)
    store_rows(dv_ptr + b * dv_b + key_head * dv_h, dv, first, m, dv_n, ROWS, W, BLOCK_W)
