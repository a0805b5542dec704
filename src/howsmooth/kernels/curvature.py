"""The second derivative: gradients of ⟨h, do⟩ in q, k and v, where do is the derivative along (dq, dk, dv).

With P, the scores' derivative ds = c′ scale (dq kᵀ + q dkᵀ), and all products row by row:

    μ  = rowsum(P∘ds)                               p′ = P∘(ds − μ)
    a  = h vᵀ − rowsum(h∘o)                         d  = P∘a
    u  = (ds − μ)∘a + h dvᵀ − rowsum(h∘do)          d′ = P∘u

    gq = scale (d′ k + d dk)      gk = scale (d′ᵀ q + dᵀ dq)      gv = p′ᵀ h

A soft cap with slope c′ and second derivative c″ replaces d by c′∘d, and d′ by c′∘d′ + c″∘d∘(ds / c′).
`queries_kernel` loops over keys for a block of queries, `keys_kernel` over queries for a block of keys. Both compute
five products of n · m · width for the scores and their derivatives; the first adds two for its output, the second
three. Nothing is added atomically, so the result is the same at every run. do and μ come from the jvp kernel. A
cotangent ℓ of the derivative μ of the log-sum-exp enters as in `cotangent.py`: rowsum(h∘o) − ℓ in place of rowsum(h∘o).
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
    score_derivative,
    scores,
    store_rows,
    times_scale,
)


@triton.jit
def differentials(raw, a, t, mu, s, slope, cap, CAPPED: tl.constexpr):
    """Ds − μ, and d and d′ before the factor P, from the derivative `raw` of the scores before the soft cap."""
    if CAPPED:
        ds = raw * slope - mu
        # s is the capped score in units of log 2, so that tanh = s · log 2 / cap.
        bend = s * (-1.3862943611198906 / (cap * cap)) * slope
        return ds, a * slope, (ds * a + t) * slope + a * bend * raw
    ds = raw - mu
    return ds, a, ds * a + t


@triton.jit
def queries_step(
    acc,
    q,
    dq,
    h,
    largest,
    mu,
    r,
    c,
    keys,
    tangents,
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
    """Add the contribution of one block of keys to the gradient of q."""
    k_ptr, k_n, v_ptr, v_n = keys
    dk_ptr, dk_n, dv_ptr, dv_n = tangents
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
    dk = load_rows(dk_ptr, j, m, dk_n, KEYS, K, BLOCK_K, CHECKED).to(k.dtype)
    v = load_rows(v_ptr, j, m, v_n, KEYS, W, BLOCK_W, CHECKED)
    dv = load_rows(dv_ptr, j, m, dv_n, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
    s, slope = scores(q, k, factors, SCORES)
    raw = score_derivative(q, dq, k, dk, factors, SCORES)
    a = product(h, tl.trans(v), None, PRECISION) - r[:, None]
    t = product(h, tl.trans(dv), None, PRECISION) - c[:, None]
    columns = (j + tl.arange(0, KEYS))[None, :]
    exponent = exponents(s, largest[:, None], factors[0], CAPPED, PRESCALED)
    exponent = masked(exponent, i[:, None], columns, tile, masks, limits, CHECKED, MASKS)
    e = tl.exp2(exponent)  # P times the row's Σ exp, which is divided out at the end
    _, d, u = differentials(raw, a, t, mu[:, None], s, slope, factors[1], CAPPED)
    acc = product((e * u).to(k.dtype), k, acc, PRECISION)
    return product((e * d).to(k.dtype), dk, acc, PRECISION)


@triton.jit
def queries_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    norm_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    do_ptr,
    mu_ptr,
    h_ptr,
    lse_ptr,
    rows_ptr,
    gq_ptr,
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
    dq_b,
    dq_h,
    dq_n,
    dk_b,
    dk_h,
    dk_n,
    dv_b,
    dv_h,
    dv_n,
    do_b,
    do_h,
    do_n,
    h_b,
    h_h,
    h_n,
    gq_b,
    gq_h,
    gq_n,
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
    """Compute the gradient of q for one block of queries, and store what the other kernel needs of each row."""
    blocks = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    first = block * ROWS
    b = tl.cast(line // heads, tl.int64)
    head = tl.cast(line % heads, tl.int64)
    shared = head // groups
    i = first + tl.arange(0, ROWS)
    row = tl.cast(line, tl.int64) * n + i
    keys = (k_ptr + b * k_b + shared * k_h, k_n, v_ptr + b * v_b + shared * v_h, v_n)
    tangents = (dk_ptr + b * dk_b + shared * dk_h, dk_n, dv_ptr + b * dv_b + shared * dv_h, dv_n)
    masks = (padding_ptr + b * padding_b, bias_ptr + b * bias_b + head * bias_h, bias_n, tiles_ptr)
    limits = (n, m, offset, window)

    q = load_rows(q_ptr + b * q_b + head * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    dq = load_rows(dq_ptr + b * dq_b + head * dq_h, first, n, dq_n, ROWS, K, BLOCK_K, True).to(q.dtype)
    h = load_rows(h_ptr + b * h_b + head * h_h, first, n, h_n, ROWS, W, BLOCK_W, True)
    o = load_rows(o_ptr + b * o_b + head * o_h, first, n, o_n, ROWS, W, BLOCK_W, True).to(tl.float32)
    do = load_rows(do_ptr + b * do_b + head * do_h, first, n, do_n, ROWS, W, BLOCK_W, True).to(tl.float32)
    r = tl.sum(h.to(tl.float32) * o, 1)
    c = tl.sum(h.to(tl.float32) * do, 1)
    if LSE:
        r = r - tl.load(lse_ptr + row, mask=i < n, other=0.0)
    h = h.to(q.dtype)
    q = times_scale(q, scale, PRESCALED)
    dq = times_scale(dq, scale, PRESCALED)
    largest = in_bits(tl.load(norm_ptr + row * 2, mask=i < n, other=0.0))
    logarithm = tl.load(norm_ptr + row * 2 + 1, mask=i < n, other=0.0) * 1.4426950408889634
    mu = tl.load(mu_ptr + row, mask=i < n, other=0.0)
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * n
    tl.store(rows_ptr + row, largest, mask=i < n)
    tl.store(rows_ptr + lines + row, logarithm, mask=i < n)
    tl.store(rows_ptr + 2 * lines + row, r, mask=i < n)
    tl.store(rows_ptr + 3 * lines + row, c, mask=i < n)
    acc = tl.zeros([ROWS, BLOCK_K], tl.float32)

    ranges = key_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, PADDED, BIASED, SPARSE))
    if SPARSE:
        ranges = listed_range(starts_ptr + b * starts_b + head * starts_h, first, SPARSE, PARTS)
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
                acc = queries_step(
                    acc,
                    q,
                    dq,
                    h,
                    largest,
                    mu,
                    r,
                    c,
                    keys,
                    tangents,
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

    inverse = (tl.exp2(-logarithm) * scale)[:, None]
    store_rows(gq_ptr + b * gq_b + head * gq_h, acc * inverse, first, n, gq_n, ROWS, K, BLOCK_K)


@triton.jit
def keys_step(
    gk,
    gv,
    k,
    v,
    dk,
    dv,
    queries,
    rows_ptr,
    mu_ptr,
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
    """Add the contribution of one block of queries to the gradients of k and v."""
    q_ptr, q_n, dq_ptr, dq_n, h_ptr, h_n = queries
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
    dq = load_rows(dq_ptr, first, n, dq_n, KEYS, K, BLOCK_K, CHECKED).to(q.dtype)
    h = load_rows(h_ptr, first, n, h_n, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
    if CHECKED:
        largest = tl.load(rows_ptr + i, mask=i < n, other=0.0)
        logarithm = tl.load(rows_ptr + lines + i, mask=i < n, other=float("inf"))
        r = tl.load(rows_ptr + 2 * lines + i, mask=i < n, other=0.0)
        c = tl.load(rows_ptr + 3 * lines + i, mask=i < n, other=0.0)
        mu = tl.load(mu_ptr + i, mask=i < n, other=0.0)
    else:
        largest = tl.load(rows_ptr + i)
        logarithm = tl.load(rows_ptr + lines + i)
        r = tl.load(rows_ptr + 2 * lines + i)
        c = tl.load(rows_ptr + 3 * lines + i)
        mu = tl.load(mu_ptr + i)
    s, slope = scores(k, q, factors, SCORES)
    exponent = exponents(s, largest[None, :], factors[0], CAPPED, PRESCALED)
    exponent = masked(exponent, i[None, :], j[:, None], tile, masks, limits, CHECKED, MASKS)
    p = tl.exp2(exponent - logarithm[None, :])
    raw = score_derivative(k, dk, q, dq, factors, SCORES)
    a = product(v, tl.trans(h), None, PRECISION) - r[None, :]
    t = product(dv, tl.trans(h), None, PRECISION) - c[None, :]
    ds, d, u = differentials(raw, a, t, mu[None, :], s, slope, factors[1], CAPPED)
    gv = product((p * ds).to(v.dtype), h, gv, PRECISION)
    gk = product((p * u).to(q.dtype), q, gk, PRECISION)
    gk = product((p * d).to(q.dtype), dq, gk, PRECISION)
    return gk, gv


@triton.jit
def keys_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    h_ptr,
    rows_ptr,
    mu_ptr,
    gk_ptr,
    gv_ptr,
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
    dq_b,
    dq_h,
    dq_n,
    dk_b,
    dk_h,
    dk_n,
    dv_b,
    dv_h,
    dv_n,
    h_b,
    h_h,
    h_n,
    gk_b,
    gk_h,
    gk_n,
    gv_b,
    gv_h,
    gv_n,
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
    """Compute the gradients of k and v for one block of keys, over all heads of its group."""
    blocks = tl.cdiv(m, ROWS)
    line = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * ROWS  # under a causal mask the first keys have the most to do
    b = tl.cast(line // key_heads, tl.int64)
    key_head = tl.cast(line % key_heads, tl.int64)
    j = first + tl.arange(0, ROWS)
    limits = (n, m, offset, window)
    k = load_rows(k_ptr + b * k_b + key_head * k_h, first, m, k_n, ROWS, K, BLOCK_K, True)
    v = load_rows(v_ptr + b * v_b + key_head * v_h, first, m, v_n, ROWS, W, BLOCK_W, True)
    dk = load_rows(dk_ptr + b * dk_b + key_head * dk_h, first, m, dk_n, ROWS, K, BLOCK_K, True).to(k.dtype)
    dv = load_rows(dv_ptr + b * dv_b + key_head * dv_h, first, m, dv_n, ROWS, W, BLOCK_W, True).to(v.dtype)
    k = times_scale(k, scale, PRESCALED)
    dk = times_scale(dk, scale, PRESCALED)
    gk = tl.zeros([ROWS, BLOCK_K], tl.float32)
    gv = tl.zeros([ROWS, BLOCK_W], tl.float32)

    ranges = query_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, False, BIASED, SPARSE))
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * groups * n
    for group in range(0, groups):
        head = key_head * groups + group
        row = ((b * key_heads + key_head) * groups + group) * n
        queries = (
            q_ptr + b * q_b + head * q_h,
            q_n,
            dq_ptr + b * dq_b + head * dq_h,
            dq_n,
            h_ptr + b * h_b + head * h_h,
            h_n,
        )
        masks = (padding_ptr, bias_ptr + b * bias_b + head * bias_h, bias_n, tiles_ptr)
        here = ranges
        if SPARSE:
            here = listed_range(starts_ptr + b * starts_b + head * starts_h, first, SPARSE, PARTS)
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
                    # Padded keys affect only their own rows of the outputs, which are set to zero below.
                    gk, gv = keys_step(
                        gk,
                        gv,
                        k,
                        v,
                        dk,
                        dv,
                        queries,
                        rows_ptr + row,
                        mu_ptr + row,
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

    gk = gk * scale
    if PADDED:
        real = tl.load(padding_ptr + b * padding_b + j, mask=j < m, other=0) != 0
        gk = tl.where(real[:, None], gk, 0.0)
        gv = tl.where(real[:, None], gv, 0.0)
    store_rows(gk_ptr + b * gk_b + key_head * gk_h, gk, first, m, gk_n, ROWS, K, BLOCK_K)
    store_rows(gv_ptr + b * gv_b + key_head * gv_h, gv, first, m, gv_n, ROWS, W, BLOCK_W)
