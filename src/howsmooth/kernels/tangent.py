"""The derivative: do = (P∘ds) v + P dv − rowsum(P∘ds) o.

Several tangents in one pass share the scores and the probabilities.
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
    score_derivative,
    scores,
    store_rows,
    times_scale,
)


@triton.jit
def jvp_step(
    accs,
    sums,
    means,
    q,
    dqs,
    largest,
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
    T: tl.constexpr,
    MEANS: tl.constexpr,
):
    """Add one block of keys to the accumulators and row sums of all tangents."""
    k_ptr, k_n, v_ptr, v_n = keys
    dk_ptr, dk_n, dk_t, dv_ptr, dv_n, dv_t = tangents
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
    columns = (j + tl.arange(0, KEYS))[None, :]
    exponent = exponents(s, largest[:, None], factors[0], CAPPED, PRESCALED)
    exponent = masked(exponent, i[:, None], columns, tile, masks, limits, CHECKED, MASKS)
    e = tl.exp2(exponent)  # P times the row's Σ exp, which is divided out at the end
    p = e.to(v.dtype)
    # Triton compiles tuples that grow. Their types are comments, since Triton would evaluate an annotation.
    new_accs = ()  # type: tuple[tl.tensor, ...]
    new_sums = ()  # type: tuple[tl.tensor, ...]
    new_means = ()  # type: tuple[tl.tensor, ...]
    for t in tl.static_range(T):
        dk = load_rows(dk_ptr + t * dk_t, j, m, dk_n, KEYS, K, BLOCK_K, CHECKED).to(k.dtype)
        dv = load_rows(dv_ptr + t * dv_t, j, m, dv_n, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
        ds = score_derivative(q, dqs[t], k, dk, factors, SCORES)
        if CAPPED:
            ds = ds * slope
        # Rounded before it is summed: where a row sees one key, w v and the row sum's o have to cancel.
        exact = e * ds
        w = exact.to(v.dtype)
        acc = product(p, dv, accs[t], PRECISION)
        acc = product(w, v, acc, PRECISION)
        new_accs = new_accs + (acc,)
        new_sums = new_sums + (sums[t] + tl.sum(w.to(tl.float32), 1),)
        mean = means[t]
        if MEANS:
            # The second derivative subtracts this sum from ds, which is not rounded there.
            mean = mean + tl.sum(exact, 1)
        new_means = new_means + (mean,)
    return new_accs, new_sums, new_means


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
    mu_ptr,
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
    dq_t,
    dq_b,
    dq_h,
    dq_n,
    dk_t,
    dk_b,
    dk_h,
    dk_n,
    dv_t,
    dv_b,
    dv_h,
    dv_n,
    do_t,
    do_b,
    do_h,
    do_n,
    mu_t,
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
    T: tl.constexpr,
    MEANS: tl.constexpr,
):
    """Compute the derivatives along T tangents for a block of queries of one head."""
    blocks = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    first = block * ROWS
    b = tl.cast(line // heads, tl.int64)
    h = tl.cast(line % heads, tl.int64)
    dq_ptr += b * dq_b + h * dq_h
    dk_ptr += b * dk_b + h // groups * dk_h
    dv_ptr += b * dv_b + h // groups * dv_h
    do_ptr += b * do_b + h * do_h
    dq_t = tl.cast(dq_t, tl.int64)
    dk_t = tl.cast(dk_t, tl.int64)
    dv_t = tl.cast(dv_t, tl.int64)
    do_t = tl.cast(do_t, tl.int64)
    i = first + tl.arange(0, ROWS)
    keys = (k_ptr + b * k_b + h // groups * k_h, k_n, v_ptr + b * v_b + h // groups * v_h, v_n)
    masks = (padding_ptr + b * padding_b, bias_ptr + b * bias_b + h * bias_h, bias_n, tiles_ptr)
    limits = (n, m, offset, window)

    q = load_rows(q_ptr + b * q_b + h * q_h, first, n, q_n, ROWS, K, BLOCK_K, True)
    norm_at = norm_ptr + (tl.cast(line, tl.int64) * n + i) * 2
    largest = in_bits(tl.load(norm_at, mask=i < n, other=0.0))
    dqs = ()  # type: tuple[tl.tensor, ...]
    accs = ()  # type: tuple[tl.tensor, ...]
    sums = ()  # type: tuple[tl.tensor, ...]
    means = ()  # type: tuple[tl.tensor, ...]
    for t in tl.static_range(T):
        dq = load_rows(dq_ptr + t * dq_t, first, n, dq_n, ROWS, K, BLOCK_K, True).to(q.dtype)
        dqs = dqs + (times_scale(dq, scale, PRESCALED),)
        accs = accs + (tl.zeros([ROWS, BLOCK_W], tl.float32),)
        sums = sums + (tl.zeros([ROWS], tl.float32),)
        means = means + (tl.zeros([ROWS], tl.float32),)
    q = times_scale(q, scale, PRESCALED)

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
                accs, sums, means = jvp_step(
                    accs,
                    sums,
                    means,
                    q,
                    dqs,
                    largest,
                    keys,
                    (dk_ptr, dk_n, dk_t, dv_ptr, dv_n, dv_t),
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
                    T,
                    MEANS,
                )

    inverse = tl.exp2(-1.4426950408889634 * tl.load(norm_at + 1, mask=i < n, other=0.0))
    o = load_rows(o_ptr + b * o_b + h * o_h, first, n, o_n, ROWS, W, BLOCK_W, True).to(tl.float32)
    for t in tl.static_range(T):
        do = (accs[t] - sums[t][:, None] * o) * inverse[:, None]
        store_rows(do_ptr + t * do_t, do, first, n, do_n, ROWS, W, BLOCK_W)
        if MEANS:
            # rowsum(P∘ds), which the second derivative needs
            mu_at = mu_ptr + t * tl.cast(mu_t, tl.int64) + tl.cast(line, tl.int64) * n + i
            tl.store(mu_at, means[t] * inverse, mask=i < n)
