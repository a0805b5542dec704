"""float32 products of float16 pairs: x = 2^−e (high + low), 22 bits, three products at the rate of half precision.

Two factors are multiplied as high·high + high·low + low·high, summed in float32. On an H200 the derivative and its
transpose are 2.8 and 3.2 times faster than by three tf32 products, with smaller errors. What has to be ensured is that
nothing leaves float16's range:

* q, k, v, tangents and cotangents are multiplied by powers of two beforehand, so that their largest entry is in
  [2¹², 2¹³). One power serves dq/q, dk/k and dv/v: their terms are added up.
* Exponentials e ≤ 1 are multiplied by 2¹⁵ or, where P∘ds could overflow, by less: a factor of each row, found from the
  largest entries of its q and dq, which is divided out at the end.
* dk sums P∘(g vᵀ − r) over queries, which cannot have factors of their own. The kernel for dq stores the largest entry
  of each row, and the kernel for dk and dv uses the power of two that brings the largest of all below 2¹⁵.

An entry has an absolute error of at most 2⁻⁴⁰ of the largest one, or a relative one of 2⁻²².
"""

from __future__ import annotations

import triton
import triton.language as tl

from howsmooth.kernels.device import (
    exponents,
    in_bits,
    key_range,
    load_rows,
    masked,
    part_range,
    query_range,
    store_rows,
)


@triton.jit
def load_pair(ptr, first, count, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHECKED: tl.constexpr):
    """Return rows first … first+ROWS−1 as their high and their low halves, which follow each other in memory."""
    high = load_rows(ptr, first, count, stride, ROWS, WIDTH, WIDTH, CHECKED)
    low = load_rows(ptr + WIDTH, first, count, stride, ROWS, WIDTH, WIDTH, CHECKED)
    return high, low


@triton.jit
def pair(x):
    """Return a float32 tile as the sum of two float16 ones."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product(a, b, acc):
    """Return a b + acc for pairs.

    Tensor cores round their sums towards zero: over thousands of keys that is an error of 2·10⁻⁵. So they sum up only
    one step of a loop, the small terms first, and the sum over all steps is rounded to nearest outside of them.
    """
    step = tl.dot(a[1], b[0])
    step = tl.dot(a[0], b[1], step)
    step = tl.dot(a[0], b[0], step)
    return acc + step


@triton.jit
def product_transposed(a, b):
    """Return a bᵀ for pairs."""
    step = tl.dot(a[1], tl.trans(b[0]))
    step = tl.dot(a[0], tl.trans(b[1]), step)
    return tl.dot(a[0], tl.trans(b[0]), step)


@triton.jit
def largest_entry(a):
    """Return the largest absolute value in each row of a pair."""
    return tl.max(tl.abs(a[0].to(tl.float32)), 1)


@triton.jit
def tangent_step(
    acc,
    sums,
    q,
    dq,
    largest,
    factor,
    keys,
    i,
    j,
    masks,
    limits,
    scale,
    CHECKED: tl.constexpr,
    SHAPE: tl.constexpr,
    MASKS: tl.constexpr,
):
    """Add one block of keys to the accumulator and the row sums."""
    k_ptr, v_ptr, dk_ptr, dv_ptr, k_n, v_n = keys
    K: tl.constexpr = SHAPE[0]
    W: tl.constexpr = SHAPE[1]
    KEYS: tl.constexpr = SHAPE[2]
    m = limits[1]
    k = load_pair(k_ptr, j, m, k_n, KEYS, K, CHECKED)
    s = product_transposed(q, k)
    exponent = exponents(s, largest[:, None], scale, False, False)
    columns = (j + tl.arange(0, KEYS))[None, :]
    p = tl.exp2(masked(exponent, i[:, None], columns, -1, masks, limits, CHECKED, MASKS)) * factor[:, None]
    dk = load_pair(dk_ptr, j, m, k_n, KEYS, K, CHECKED)
    ds = product_transposed(dq, k) + product_transposed(q, dk)
    w = pair(p * (ds * scale))
    dv = load_pair(dv_ptr, j, m, v_n, KEYS, W, CHECKED)
    v = load_pair(v_ptr, j, m, v_n, KEYS, W, CHECKED)
    acc = product(pair(p), dv, acc)
    acc = product(w, v, acc)
    # As in `tangent.jvp_step`, the sum is that of the rounded terms.
    return acc, sums + tl.sum(w[0].to(tl.float32) + w[1].to(tl.float32), 1)


@triton.jit
def jvp_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    norm_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    do_ptr,
    padding_ptr,
    padding_b,
    heads,
    groups,
    n,
    m,
    scale,
    offset,
    window,
    K: tl.constexpr,
    W: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute the derivative for a block of queries of one head."""
    blocks = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    first = block * ROWS
    b = tl.cast(line // heads, tl.int64)
    h = tl.cast(line % heads, tl.int64)
    key_heads = heads // groups
    i = first + tl.arange(0, ROWS)
    query_at = b * n * heads + h
    key_at = b * m * key_heads + h // groups
    k_n = key_heads * (2 * K)
    v_n = key_heads * (2 * W)
    keys = (k_ptr + key_at * 2 * K, v_ptr + key_at * 2 * W, dk_ptr + key_at * 2 * K, dv_ptr + key_at * 2 * W, k_n, v_n)
    masks = (padding_ptr + b * padding_b, padding_ptr, 0, padding_ptr)
    limits = (n, m, offset, window)

    q = load_pair(q_ptr + query_at * 2 * K, first, n, heads * (2 * K), ROWS, K, True)
    dq = load_pair(dq_ptr + query_at * 2 * K, first, n, heads * (2 * K), ROWS, K, True)
    norm_at = norm_ptr + (tl.cast(line, tl.int64) * n + i) * 2
    largest = in_bits(tl.load(norm_at, mask=i < n, other=0.0))
    # |ds| ≤ scale K 2¹³ (max |dq_i| + max |q_i|)
    bound = (largest_entry(q) + largest_entry(dq)) * (tl.abs(scale) * (K * 8192.0))
    factor = 32768.0 / tl.maximum(bound, 1.0)
    acc = tl.zeros([ROWS, W], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    ranges = key_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, PADDED, 0, 0))
    for part in tl.static_range(3):
        if (PARTS >> part) & 1:
            start, stop = part_range(ranges, part)
            for j in range(start, stop, KEYS):
                acc, sums = tangent_step(
                    acc,
                    sums,
                    q,
                    dq,
                    largest,
                    factor,
                    keys,
                    i,
                    j,
                    masks,
                    limits,
                    scale,
                    part != 1,
                    (K, W, KEYS),
                    (CAUSAL, WINDOW, PADDED, 0, 0),
                )
    inverse = tl.exp2(-1.4426950408889634 * tl.load(norm_at + 1, mask=i < n, other=0.0)) / factor
    o = load_rows(o_ptr + query_at * W, first, n, heads * W, ROWS, W, W, True)
    do = (acc - sums[:, None] * o) * inverse[:, None]
    store_rows(do_ptr + query_at * W, do, first, n, heads * W, ROWS, W, W)


@triton.jit
def query_step(
    acc,
    top,
    q,
    g,
    largest,
    r,
    factor,
    keys,
    i,
    j,
    masks,
    limits,
    scale,
    CHECKED: tl.constexpr,
    SHAPE: tl.constexpr,
    MASKS: tl.constexpr,
):
    """Add one block of keys to dq, still without the factors of its row, and update the largest |dS| of each row."""
    k_ptr, v_ptr, k_n, v_n = keys
    K: tl.constexpr = SHAPE[0]
    W: tl.constexpr = SHAPE[1]
    KEYS: tl.constexpr = SHAPE[2]
    m = limits[1]
    k = load_pair(k_ptr, j, m, k_n, KEYS, K, CHECKED)
    v = load_pair(v_ptr, j, m, v_n, KEYS, W, CHECKED)
    s = product_transposed(q, k)
    dp = product_transposed(g, v)
    exponent = exponents(s, largest[:, None], scale, False, False)
    columns = (j + tl.arange(0, KEYS))[None, :]
    e = tl.exp2(masked(exponent, i[:, None], columns, -1, masks, limits, CHECKED, MASKS))
    ds = e * ((dp - r[:, None]) * factor[:, None])
    return product(pair(ds), k, acc), tl.maximum(top, tl.max(tl.abs(ds), 1))


@triton.jit
def dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    norm_ptr,
    g_ptr,
    rows_ptr,
    dq_ptr,
    padding_ptr,
    padding_b,
    heads,
    groups,
    n,
    m,
    scale,
    offset,
    window,
    K: tl.constexpr,
    W: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute dq for a block of queries of one head, and write four numbers of each row for `dkdv_kernel`."""
    blocks = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    first = block * ROWS
    b = tl.cast(line // heads, tl.int64)
    h = tl.cast(line % heads, tl.int64)
    key_heads = heads // groups
    i = first + tl.arange(0, ROWS)
    row = tl.cast(line, tl.int64) * n + i
    query_at = b * n * heads + h
    key_at = b * m * key_heads + h // groups
    keys = (k_ptr + key_at * 2 * K, v_ptr + key_at * 2 * W, key_heads * (2 * K), key_heads * (2 * W))
    masks = (padding_ptr + b * padding_b, padding_ptr, 0, padding_ptr)
    limits = (n, m, offset, window)

    q = load_pair(q_ptr + query_at * 2 * K, first, n, heads * (2 * K), ROWS, K, True)
    g = load_pair(g_ptr + query_at * 2 * W, first, n, heads * (2 * W), ROWS, W, True)
    o = load_rows(o_ptr + query_at * W, first, n, heads * W, ROWS, W, W, True)
    r = tl.sum((g[0].to(tl.float32) + g[1].to(tl.float32)) * o, 1)
    largest = in_bits(tl.load(norm_ptr + row * 2, mask=i < n, other=0.0))
    logarithm = tl.load(norm_ptr + row * 2 + 1, mask=i < n, other=0.0) * 1.4426950408889634
    # |g_i·v_j| and |r_i| are at most W 2¹³ max |g_i|, since o is a mean of values.
    factor = 32768.0 / tl.maximum(largest_entry(g) * (W * 16384.0), 1e-30)
    acc = tl.zeros([ROWS, K], tl.float32)
    top = tl.zeros([ROWS], tl.float32)
    ranges = key_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, PADDED, 0, 0))
    for part in tl.static_range(3):
        if (PARTS >> part) & 1:
            start, stop = part_range(ranges, part)
            for j in range(start, stop, KEYS):
                acc, top = query_step(
                    acc,
                    top,
                    q,
                    g,
                    largest,
                    r,
                    factor,
                    keys,
                    i,
                    j,
                    masks,
                    limits,
                    scale,
                    part != 1,
                    (K, W, KEYS),
                    (CAUSAL, WINDOW, PADDED, 0, 0),
                )
    inverse = tl.exp2(-logarithm) / factor
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * n
    tl.store(rows_ptr + row, largest, mask=i < n)
    tl.store(rows_ptr + lines + row, logarithm, mask=i < n)
    tl.store(rows_ptr + 2 * lines + row, r, mask=i < n)
    tl.store(rows_ptr + 3 * lines + row, top * inverse, mask=i < n)
    store_rows(dq_ptr + query_at * K, acc * inverse[:, None], first, n, heads * K, ROWS, K, K)


@triton.jit
def key_step(
    dk,
    dv,
    k,
    v,
    counts,
    factor,
    queries,
    rows_ptr,
    lines,
    first,
    j,
    masks,
    limits,
    scale,
    CHECKED: tl.constexpr,
    SHAPE: tl.constexpr,
    MASKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Add one block of queries to dk and dv."""
    q_ptr, g_ptr, q_n, g_n = queries
    K: tl.constexpr = SHAPE[0]
    W: tl.constexpr = SHAPE[1]
    KEYS: tl.constexpr = SHAPE[2]
    n = limits[0]
    i = first + tl.arange(0, KEYS)
    q = load_pair(q_ptr, first, n, q_n, KEYS, K, CHECKED)
    g = load_pair(g_ptr, first, n, g_n, KEYS, W, CHECKED)
    if CHECKED:
        largest = tl.load(rows_ptr + i, mask=i < n, other=0.0)
        logarithm = tl.load(rows_ptr + lines + i, mask=i < n, other=float("inf"))
        r = tl.load(rows_ptr + 2 * lines + i, mask=i < n, other=0.0)
    else:
        largest = tl.load(rows_ptr + i)
        logarithm = tl.load(rows_ptr + lines + i)
        r = tl.load(rows_ptr + 2 * lines + i)
    s = product_transposed(k, q)
    exponent = exponents(s, largest[None, :], scale, False, False)
    exponent = masked(exponent, i[None, :], j[:, None], -1, masks, limits, CHECKED, MASKS)
    p = tl.exp2(exponent - logarithm[None, :])
    if PADDED:
        # The normaliser does not know padded keys: P could exceed 1.
        p = tl.where(counts[:, None], p, 0.0)
    dv = product(pair(p * 32768.0), g, dv)
    dp = product_transposed(v, g)
    dk = product(pair(p * ((dp - r[None, :]) * factor)), q, dk)
    return dk, dv


@triton.jit
def dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    rows_ptr,
    factor_ptr,
    dk_ptr,
    dv_ptr,
    padding_ptr,
    padding_b,
    key_heads,
    groups,
    n,
    m,
    scale,
    offset,
    window,
    K: tl.constexpr,
    W: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute dk and dv, times the factor and 2¹⁵, for a block of keys of one head, over all heads of its group."""
    blocks = tl.cdiv(m, ROWS)
    line = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * ROWS  # under a causal mask the first keys have the most work
    b = tl.cast(line // key_heads, tl.int64)
    key_head = tl.cast(line % key_heads, tl.int64)
    heads = key_heads * groups
    j = first + tl.arange(0, ROWS)
    limits = (n, m, offset, window)
    key_at = b * m * key_heads + key_head
    k = load_pair(k_ptr + key_at * 2 * K, first, m, key_heads * (2 * K), ROWS, K, True)
    v = load_pair(v_ptr + key_at * 2 * W, first, m, key_heads * (2 * W), ROWS, W, True)
    factor = tl.load(factor_ptr)
    counts = j < m
    if PADDED:
        counts = tl.load(padding_ptr + b * padding_b + j, mask=counts, other=0) != 0
    dk = tl.zeros([ROWS, K], tl.float32)
    dv = tl.zeros([ROWS, W], tl.float32)
    ranges = query_range(first, limits, ROWS, KEYS, (CAUSAL, WINDOW, False, 0, 0))
    lines = tl.cast(tl.num_programs(0) // blocks, tl.int64) * groups * n
    masks = (padding_ptr, padding_ptr, 0, padding_ptr)
    for group in range(0, groups):
        h = key_head * groups + group
        query_at = b * n * heads + h
        queries = (q_ptr + query_at * 2 * K, g_ptr + query_at * 2 * W, heads * (2 * K), heads * (2 * W))
        for part in tl.static_range(3):
            if (PARTS >> part) & 1:
                start, stop = part_range(ranges, part)
                for i in range(start, stop, KEYS):
                    dk, dv = key_step(
                        dk,
                        dv,
                        k,
                        v,
                        counts,
                        factor,
                        queries,
                        rows_ptr + (b * heads + h) * n,
                        lines,
                        i,
                        j,
                        masks,
                        limits,
                        scale,
                        part != 1,
                        (K, W, KEYS),
                        (CAUSAL, WINDOW, False, 0, 0),
                        PADDED,
                    )
    store_rows(dk_ptr + key_at * K, dk, first, m, key_heads * K, ROWS, K, K)
    store_rows(dv_ptr + key_at * W, dv, first, m, key_heads * W, ROWS, W, W)
