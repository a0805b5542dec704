"""From tensors to launches: shapes, strides and traits in the order in which the kernels take them."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from triton.runtime import JITFunction

from howsmooth.errors import InputError
from howsmooth.kernels.cotangent import dkdv_kernel, dq_kernel
from howsmooth.kernels.primal import forward_kernel
from howsmooth.kernels.tangent import jvp_kernel
from howsmooth.kernels.tiles import Tiles, choose

# Under TRITON_INTERPRET=1 kernels run on the CPU, one program after another.
INTERPRETED = not isinstance(forward_kernel, JITFunction)
# How a precise product can be made of those that the matrix units have, and how it is made.
WAYS = ("tf32x3", "bf16x3", "bf16x6", "f16x3", "ieee")
PRECISE = "tf32x3"
# PyTorch's own fused backward passes, in order of speed on a Hopper GPU: they need five products, ours seven.
FUSED = (("cudnn", can_use_cudnn_attention), ("flash", can_use_flash_attention))
# Tiles less than 64 wide are for rows that are loaded whole, from places of which Triton knows that they are aligned.
# Where rows have to be cut, or lie at other strides, Triton 3.6 compiles products of narrow tiles on Hopper into reads
# past their end: wrong results (widths 20 and 3, 24 and 8), or an illegal access (widths 32 and 16 in rows of 40 and
# 24). Padded to 64, the same launches are right.
ALIGNED, SAFE = 16, 64


def forward(q, k, v, scale, causal, window, softcap, offset, padding, precision, out_dtype, tiles: Tiles | None = None):
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    o = _empty(q, h, n, w, out_dtype or q.dtype)
    normaliser = torch.empty(b, h, n, 2, dtype=torch.float32, device=q.device)
    tiles = tiles or choose("forward", q.element_size(), max(width, w), b * h, n, causal)
    traits = _traits(
        q.dtype, width, w, _aligned(q, k, v), scale, causal, window, softcap, padding is not None, precision
    )
    tail = causal or window is not None or padding is not None or m % tiles.keys != 0
    mask, mask_b = _mask(padding, q)
    _run(
        forward_kernel,
        b * h * -(-n // tiles.rows),
        tiles,
        (
            q,
            k,
            v,
            mask,
            o,
            normaliser,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *o.stride()[:3],
            mask_b,
            h,
            h // hkv,
            n,
            m,
            float(scale),
            softcap or 0.0,
            offset,
            window or 0,
        ),
        TAIL=tail,
        **traits,
    )
    return o, normaliser


def jvp(
    q,
    k,
    v,
    o,
    normaliser,
    dq,
    dk,
    dv,
    scale,
    causal,
    window,
    softcap,
    offset,
    padding,
    precision,
    out_dtype,
    tiles: Tiles | None = None,
):
    one = dq.dim() == 4
    if one:
        dq, dk, dv = dq[None], dk[None], dv[None]
    tangents = dq.shape[0]
    if dk.shape[0] != tangents or dv.shape[0] != tangents:
        raise InputError(f"jvp: expected as many dk and dv as dq, got {tangents}, {dk.shape[0]} and {dv.shape[0]}")
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    do = _empty(q, tangents * h, n, w, out_dtype or q.dtype, tangents)
    traits = _traits(
        q.dtype, width, w, _aligned(q, k, v, dq, dk, dv), scale, causal, window, softcap, padding is not None, precision
    )
    normaliser = normaliser.contiguous()
    mask, mask_b = _mask(padding, q)
    at = 0
    while at < tangents:
        left = tangents - at
        chosen = tiles or choose("jvp" if left == 1 else "jvps", q.element_size(), max(width, w), b * h, n, causal)
        now = min(left, chosen.tangents)
        now = 1 << (now.bit_length() - 1)
        tail = causal or window is not None or padding is not None or m % chosen.keys != 0
        xq, xk, xv, xo = dq[at:], dk[at:], dv[at:], do[at:]
        _run(
            jvp_kernel,
            b * h * -(-n // chosen.rows),
            chosen,
            (
                q,
                k,
                v,
                mask,
                o,
                normaliser,
                xq,
                xk,
                xv,
                xo,
                *q.stride()[:3],
                *k.stride()[:3],
                *v.stride()[:3],
                *o.stride()[:3],
                *xq.stride()[:4],
                *xk.stride()[:4],
                *xv.stride()[:4],
                *xo.stride()[:4],
                mask_b,
                h,
                h // hkv,
                n,
                m,
                float(scale),
                softcap or 0.0,
                offset,
                window or 0,
            ),
            T=now,
            TAIL=tail,
            **traits,
        )
        at += now
    return do[0] if one else do


def vjp(
    q,
    k,
    v,
    o,
    normaliser,
    g,
    scale,
    causal,
    window,
    softcap,
    offset,
    padding,
    precision,
    out_dtype,
    way=None,
    tiles: tuple[Tiles, Tiles] | None = None,
):
    way = way or _fused_backward(q, k, v, g, causal, window, softcap, offset, padding, out_dtype)
    if way != "ours":
        return _fused_vjp(way, q, k, v, o, normaliser, g, scale, causal)
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    dtype = out_dtype or q.dtype
    dq, dk, dv = _empty(q, h, n, width, dtype), _empty(k, hkv, m, width, dtype), _empty(v, hkv, m, w, dtype)
    rows = torch.empty(3, b, h, n, dtype=torch.float32, device=q.device)
    normaliser = normaliser.contiguous()
    traits = _traits(
        q.dtype, width, w, _aligned(q, k, v, g), scale, causal, window, softcap, padding is not None, precision
    )
    mask, mask_b = _mask(padding, q)
    pattern = (float(scale), softcap or 0.0, offset, window or 0)
    by_query, by_key = tiles or (
        choose("dq", q.element_size(), max(width, w), b * h, n, causal),
        choose("dkdv", q.element_size(), max(width, w), b * hkv, m, causal),
    )
    _run(
        dq_kernel,
        b * h * -(-n // by_query.rows),
        by_query,
        (
            q,
            k,
            v,
            mask,
            o,
            normaliser,
            g,
            rows,
            dq,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *o.stride()[:3],
            *g.stride()[:3],
            *dq.stride()[:3],
            mask_b,
            h,
            h // hkv,
            n,
            m,
            *pattern,
        ),
        TAIL=causal or window is not None or padding is not None or m % by_query.keys != 0,
        **traits,
    )
    _run(
        dkdv_kernel,
        b * hkv * -(-m // by_key.rows),
        by_key,
        (
            q,
            k,
            v,
            mask,
            g,
            rows,
            dk,
            dv,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *g.stride()[:3],
            *dk.stride()[:3],
            *dv.stride()[:3],
            mask_b,
            hkv,
            h // hkv,
            n,
            m,
            *pattern,
        ),
        TAIL=window is not None or n % by_key.keys != 0,
        **traits,
    )
    return dq, dk, dv


def _fused_backward(q, k, v, g, causal, window, softcap, offset, padding, out_dtype) -> str:
    """ "cudnn" or "flash" where PyTorch's own fused backward pass computes the same function, else "ours"."""
    square = q.shape[2] == k.shape[2] and offset == 0
    if (
        q.device.type != "cuda"
        or q.dtype not in (torch.float16, torch.bfloat16)
        or window is not None
        or softcap is not None
        or padding is not None
        or (causal and not square)
        or q.shape[1] != k.shape[1]
        or q.shape[3] != v.shape[3]
        or q.shape[3] > 128
        or q.shape[3] % 8 != 0
        or g.dtype != q.dtype
        or out_dtype not in (None, q.dtype)
        or q.shape[2] < 2
        or k.shape[2] < 2
    ):
        return "ours"
    parameters = SDPAParams(q, k, v, None, 0.0, bool(causal), False)
    return next((name for name, can in FUSED if can(parameters)), "ours")


def _fused_vjp(
    way: str, q: Tensor, k: Tensor, v: Tensor, o: Tensor, normaliser: Tensor, g: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    n, m = q.shape[2], k.shape[2]
    total = normaliser.sum(-1)
    o = o.to(q.dtype)
    none = torch.empty(0, dtype=torch.uint64, device=q.device)
    if way == "cudnn":
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, total.unsqueeze(-1), none, none, None, None, None, n, m, 0.0, bool(causal), scale=scale
        )
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, total, None, None, n, m, 0.0, bool(causal), none, none, scale=scale
    )


def _run(kernel, programs: int, tiles: Tiles, arguments: tuple, **traits) -> None:
    device = arguments[0].device
    options = dict(
        ROWS=tiles.rows, KEYS=tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers
    )
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **traits, **options)
    else:
        kernel[(programs,)](*arguments, **traits, **options)


def _aligned(*tensors: Tensor) -> bool:
    return all(t.stride(-2) % ALIGNED == 0 and t.data_ptr() % ALIGNED == 0 for t in tensors)


@functools.lru_cache(maxsize=512)
def _traits(dtype, width, w, aligned, scale, causal, window, softcap, padded, precision) -> dict:
    """What the kernels are specialised for. q may be scaled beforehand where that rounds nothing."""
    if dtype != torch.float32 or precision == "native":
        precision = "tf32"
    elif precision not in WAYS:
        precision = PRECISE
    power_of_two = scale != 0 and math.frexp(abs(scale))[0] == 0.5
    whole = aligned and all(x >= 16 and x & (x - 1) == 0 for x in (width, w))
    block_k, block_w = (max(16 if whole else SAFE, 1 << (x - 1).bit_length()) for x in (width, w))
    return dict(
        K=width,
        W=w,
        BLOCK_K=block_k,
        BLOCK_W=block_w,
        CAUSAL=bool(causal),
        WINDOW=window is not None,
        PADDED=padded,
        CAPPED=softcap is not None,
        PRESCALED=power_of_two and dtype != torch.float16,  # float16 has small numbers to lose
        PRECISION=precision,
    )


def _empty(like: Tensor, h: int, n: int, w: int, dtype, tangents: int | None = None) -> Tensor:
    """(b, h, n, w), heads inside tokens if `like` has them so, as a projection leaves them; (t, b, h/t, n, w)."""
    b, inside = like.shape[0], like.stride(1) < like.stride(2)
    lead = () if tangents is None else (tangents,)
    h = h if tangents is None else h // tangents
    shape = (*lead, b, n, h, w) if inside else (*lead, b, h, n, w)
    out = torch.empty(shape, dtype=dtype, device=like.device)
    return out.transpose(-3, -2) if inside else out


def _mask(padding: Tensor | None, q: Tensor) -> tuple[Tensor, int]:
    if padding is None:
        return q, 0  # any pointer will do
    padding = padding.contiguous().view(torch.uint8)
    return padding, padding.stride(0)
