"""The derivative: do = (P∘ds) v + P dv − rowsum(P∘ds) o.

Several tangents in one pass share the scores and the probabilities.
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
    seen,
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
    k_ptr,
    v_ptr,
    dk_ptr,
    dv_ptr,
    padding_ptr,
    bias_ptr,
    bias_n,
    n,
    j,
    i,
    m,
    stride_k,
    stride_v,
    stride_dk,
    stride_dv,
    dk_t,
    dv_t,
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
    T: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Add one block of keys to the accumulators and row sums of all tangents."""
    k = load_rows(k_ptr, j, m, stride_k, KEYS, K, BLOCK_K, CHECKED)
    v = load_rows(v_ptr, j, m, stride_v, KEYS, W, BLOCK_W, CHECKED)
    s = product(q, tl.trans(k), None, PRECISION)
    if CAPPED:
        s, slope = capped(s, scale, cap, PRESCALED)
    columns = j + tl.arange(0, KEYS)
    exponent = exponents(s, largest[:, None], scale, CAPPED, PRESCALED)
    exponent = plus_bias(exponent, load_bias(bias_ptr, i, columns, bias_n, n, m, BIASED), BIASED)
    if CHECKED:
        ok = seen(i[:, None], columns[None, :], m, offset, window, padding_ptr, CAUSAL, WINDOW, PADDED)
        exponent = tl.where(ok, exponent, float("-inf"))
    e = tl.exp2(exponent)  # P times the row's Σ exp, which is divided out at the end
    p = e.to(v.dtype)
    # Triton compiles tuples that grow. Their types are comments, since Triton would evaluate an annotation.
    new_accs = ()  # type: tuple[tl.tensor, ...]
    new_sums = ()  # type: tuple[tl.tensor, ...]
    new_means = ()  # type: tuple[tl.tensor, ...]
    for t in tl.static_range(T):
        dk = load_rows(dk_ptr + t * dk_t, j, m, stride_dk, KEYS, K, BLOCK_K, CHECKED).to(k.dtype)
        dv = load_rows(dv_ptr + t * dv_t, j, m, stride_dv, KEYS, W, BLOCK_W, CHECKED).to(v.dtype)
        ds = product(dqs[t], tl.trans(k), None, PRECISION)
        ds = product(q, tl.trans(dk), ds, PRECISION)
        if CAPPED:
            ds = ds * slope
        if not PRESCALED:
            ds = ds * scale
        # Rounded before it is summed: where a row sees one key, w v and the row sum's o have to cancel.
        exact = e * ds
        w = exact.to(v.dtype)
        acc = product(p, dv, accs[t], PRECISION)
        acc = product(w, v, acc, PRECISION)
        new_accs = new_accs + (acc,)
        new_sums = new_sums + (sums[t] + tl.sum(w.to(tl.float32), 1),)
        # The second derivative subtracts this sum from ds, which is not rounded there.
        new_means = new_means + (means[t] + tl.sum(exact, 1),)
    return new_accs, new_sums, new_means


@triton.jit
def jvp_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    padding_ptr,
    o_ptr,
    norm_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    do_ptr,
    mu_ptr,
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
    T: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRESCALED: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
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
    k_ptr += b * k_b + h // groups * k_h
    v_ptr += b * v_b + h // groups * v_h
    dq_ptr += b * dq_b + h * dq_h
    dk_ptr += b * dk_b + h // groups * dk_h
    dv_ptr += b * dv_b + h // groups * dv_h
    do_ptr += b * do_b + h * do_h
    padding_ptr += b * padding_b
    bias_ptr += b * bias_b + h * bias_h
    dq_t = tl.cast(dq_t, tl.int64)
    dk_t = tl.cast(dk_t, tl.int64)
    dv_t = tl.cast(dv_t, tl.int64)
    do_t = tl.cast(do_t, tl.int64)
    i = first + tl.arange(0, ROWS)

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
                accs, sums, means = jvp_step(
                    accs,
                    sums,
                    means,
                    q,
                    dqs,
                    largest,
                    k_ptr,
                    v_ptr,
                    dk_ptr,
                    dv_ptr,
                    padding_ptr,
                    bias_ptr,
                    bias_n,
                    n,
                    j,
                    i,
                    m,
                    k_n,
                    v_n,
                    dk_n,
                    dv_n,
                    dk_t,
                    dv_t,
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
                    T,
                    CAUSAL,
                    WINDOW,
                    PADDED,
                    CAPPED,
                    PRESCALED,
                    PRECISION,
                    BIASED,
                )

    inverse = tl.exp2(-1.4426950408889634 * tl.load(norm_at + 1, mask=i < n, other=0.0))
    o = load_rows(o_ptr + b * o_b + h * o_h, first, n, o_n, ROWS, W, BLOCK_W, True).to(tl.float32)
    for t in tl.static_range(T):
        do = (accs[t] - sums[t][:, None] * o) * inverse[:, None]
        store_rows(do_ptr + t * do_t, do, first, n, do_n, ROWS, W, BLOCK_W)
        # rowsum(P∘ds), which the second derivative needs
        mu_at = mu_ptr + t * tl.cast(mu_t, tl.int64) + tl.cast(line, tl.int64) * n + i
        tl.store(mu_at, means[t] * inverse, mask=i < n)
