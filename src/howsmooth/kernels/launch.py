"""Launches of the kernels: shapes, strides and compile-time options in the order in which the kernels take them."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from triton.runtime import JITFunction

from howsmooth.errors import InputError
from howsmooth.kernels import empty_like
from howsmooth.kernels.cotangent import dkdv_kernel, dq_kernel
from howsmooth.kernels.curvature import keys_kernel, queries_kernel
from howsmooth.kernels.primal import forward_kernel
from howsmooth.kernels.tangent import jvp_kernel
from howsmooth.kernels.tiles import Tiles, choose

if TYPE_CHECKING:
    from triton.runtime.jit import KernelInterface

# Under TRITON_INTERPRET=1 kernels run on the CPU, one program after another.
INTERPRETED = not isinstance(forward_kernel, JITFunction)
# How a float32 product can be composed of products that the tensor cores have, and how "precise" composes it.
FLOAT32_PRODUCTS = ("tf32x3", "bf16x3", "bf16x6", "f16x3", "ieee")
PRECISE_PRODUCT = "tf32x3"
# PyTorch's fused backward passes, in order of speed on a Hopper GPU: they need five products, these kernels seven.
FUSED_BACKWARDS = (("cudnn", can_use_cudnn_attention), ("flash", can_use_flash_attention))
# Tiles less than 64 wide are only for rows that are loaded whole, from addresses that Triton knows to be aligned. Where
# rows have to be cut, or have other strides, Triton 3.6 compiles products of narrow tiles on Hopper into reads past
# their end: wrong results (widths 20 and 3, 24 and 8), or an illegal access (widths 32 and 16 in rows of 40 and 24).
# Padded to 64, the same launches are right.
ALIGNMENT, MIN_UNALIGNED_BLOCK = 16, 64


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    padding: Tensor | None,
    precision: str | None,
    out_dtype: torch.dtype | None,
    tiles: Tiles | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Launch the forward kernel; see `howsmooth.kernels.forward`."""
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    o = empty_like(q, h, n, w, out_dtype or q.dtype)
    normaliser = torch.empty(b, h, n, 2, dtype=torch.float32, device=q.device)
    tiles = tiles or choose("forward", q.element_size(), max(width, w), b * h, n, causal)
    table, kind = _table(bias, q, k)
    constants = _constants(
        q.dtype, width, w, _are_aligned(q, k, v), scale, causal, window, softcap, padding is not None, precision, kind
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
            *table,
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
        **constants,
    )
    return o, normaliser


def jvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    padding: Tensor | None,
    precision: str | None,
    out_dtype: torch.dtype | None,
    tiles: Tiles | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Launch the JVP kernel, as often as the tiles' number of tangents requires; see `howsmooth.kernels.jvp`."""
    is_single = dq.dim() == 4
    if is_single:
        dq, dk, dv = dq[None], dk[None], dv[None]
    tangents = dq.shape[0]
    if dk.shape[0] != tangents or dv.shape[0] != tangents:
        raise InputError(f"jvp: expected as many dk and dv as dq, got {tangents}, {dk.shape[0]} and {dv.shape[0]}")
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    do = _empty_tangents(tangents, q, h, n, w, out_dtype or q.dtype)
    mu = torch.empty(tangents, b, h, n, dtype=torch.float32, device=q.device)
    aligned = _are_aligned(q, k, v, dq, dk, dv)
    table, kind = _table(bias, q, k)
    constants = _constants(
        q.dtype, width, w, aligned, scale, causal, window, softcap, padding is not None, precision, kind
    )
    normaliser = normaliser.contiguous()
    mask, mask_b = _mask(padding, q)
    done = 0
    while done < tangents:
        left = tangents - done
        chosen = tiles or choose("jvp" if left == 1 else "jvps", q.element_size(), max(width, w), b * h, n, causal)
        now = min(left, chosen.tangents)
        now = 1 << (now.bit_length() - 1)  # a power of two
        tail = causal or window is not None or padding is not None or m % chosen.keys != 0
        xq, xk, xv, xo = dq[done:], dk[done:], dv[done:], do[done:]
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
                mu[done:],
                *q.stride()[:3],
                *k.stride()[:3],
                *v.stride()[:3],
                *o.stride()[:3],
                *xq.stride()[:4],
                *xk.stride()[:4],
                *xv.stride()[:4],
                *xo.stride()[:4],
                mu.stride(0),
                mask_b,
                *table,
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
            **constants,
        )
        done += now
    return (do[0], mu[0]) if is_single else (do, mu)


def vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    padding: Tensor | None,
    precision: str | None,
    out_dtype: torch.dtype | None,
    implementation: str | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the two VJP kernels, or PyTorch's fused backward pass; see `howsmooth.kernels.vjp`."""
    if implementation is None and bias is not None:
        implementation = "triton"
    if implementation is None:
        implementation = _fastest_backward(q, k, v, g, causal, window, softcap, offset, padding, out_dtype)
    if implementation != "triton":
        return _fused_vjp(implementation, q, k, v, o, normaliser, g, scale, causal)
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    dtype = out_dtype or q.dtype
    dq, dk, dv = empty_like(q, h, n, width, dtype), empty_like(k, hkv, m, width, dtype), empty_like(v, hkv, m, w, dtype)
    rows = torch.empty(3, b, h, n, dtype=torch.float32, device=q.device)
    normaliser = normaliser.contiguous()
    table, kind = _table(bias, q, k)
    constants = _constants(
        q.dtype,
        width,
        w,
        _are_aligned(q, k, v, g),
        scale,
        causal,
        window,
        softcap,
        padding is not None,
        precision,
        kind,
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
            *table,
            h,
            h // hkv,
            n,
            m,
            *pattern,
        ),
        TAIL=causal or window is not None or padding is not None or m % by_query.keys != 0,
        **constants,
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
            *table,
            hkv,
            h // hkv,
            n,
            m,
            *pattern,
        ),
        TAIL=window is not None or n % by_key.keys != 0,
        **constants,
    )
    return dq, dk, dv


def hvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    do: Tensor,
    mu: Tensor,
    h: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    padding: Tensor | None,
    precision: str | None,
    out_dtype: torch.dtype | None,
    tiles: tuple[Tiles, Tiles] | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the two kernels of the second derivative; see `kernels.hvp`."""
    b, heads, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    dtype = out_dtype or q.dtype
    gq, gk, gv = (
        empty_like(q, heads, n, width, dtype),
        empty_like(k, hkv, m, width, dtype),
        empty_like(v, hkv, m, w, dtype),
    )
    rows = torch.empty(4, b, heads, n, dtype=torch.float32, device=q.device)
    normaliser, mu = normaliser.contiguous(), mu.contiguous()
    aligned = _are_aligned(q, k, v, dq, dk, dv, h)
    table, kind = _table(bias, q, k)
    constants = _constants(
        q.dtype, width, w, aligned, scale, causal, window, softcap, padding is not None, precision, kind
    )
    mask, mask_b = _mask(padding, q)
    pattern = (float(scale), softcap or 0.0, offset, window or 0)
    by_query, by_key = tiles or (
        choose("hvp queries", q.element_size(), max(width, w), b * heads, n, causal),
        choose("hvp keys", q.element_size(), max(width, w), b * hkv, m, causal),
    )
    strides = [t.stride()[:3] for t in (q, k, v, o, dq, dk, dv, do, h, gq, gk, gv)]
    sq, sk, sv, so, sdq, sdk, sdv, sdo, sh, sgq, sgk, sgv = strides
    _run(
        queries_kernel,
        b * heads * -(-n // by_query.rows),
        by_query,
        (
            *(q, k, v, mask, o, normaliser, dq, dk, dv, do, mu, h, rows, gq),
            *(*sq, *sk, *sv, *so, *sdq, *sdk, *sdv, *sdo, *sh, *sgq),
            *(mask_b, *table, heads, heads // hkv, n, m, *pattern),
        ),
        TAIL=causal or window is not None or padding is not None or m % by_query.keys != 0,
        **constants,
    )
    _run(
        keys_kernel,
        b * hkv * -(-m // by_key.rows),
        by_key,
        (
            *(q, k, v, mask, dq, dk, dv, h, rows, mu, gk, gv),
            *(*sq, *sk, *sv, *sdq, *sdk, *sdv, *sh, *sgk, *sgv),
            *(mask_b, *table, hkv, heads // hkv, n, m, *pattern),
        ),
        TAIL=window is not None or n % by_key.keys != 0,
        **constants,
    )
    return gq, gk, gv


def _fastest_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    padding: Tensor | None,
    out_dtype: torch.dtype | None,
) -> str:
    """Return cudnn or flash where PyTorch's own fused backward pass computes the same function, else triton."""
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
        return "triton"
    parameters = SDPAParams(q, k, v, None, 0.0, bool(causal), False)
    return next((name for name, can_use in FUSED_BACKWARDS if can_use(parameters)), "triton")


def _fused_vjp(
    implementation: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call PyTorch's fused backward pass, which takes the normaliser as one log-sum-exp."""
    n, m = q.shape[2], k.shape[2]
    log_sum_exp = normaliser.sum(-1)
    o = o.to(q.dtype)
    empty = torch.empty(0, dtype=torch.uint64, device=q.device)
    if implementation == "cudnn":
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g,
            q,
            k,
            v,
            o,
            log_sum_exp.unsqueeze(-1),
            empty,
            empty,
            None,
            None,
            None,
            n,
            m,
            0.0,
            bool(causal),
            scale=scale,
        )
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, log_sum_exp, None, None, n, m, 0.0, bool(causal), empty, empty, scale=scale
    )


def _run(
    kernel: KernelInterface[Any], programs: int, tiles: Tiles, arguments: tuple[Any, ...], **constants: Any
) -> None:
    """Launch so many programs of a kernel on the device of its first argument."""
    device = arguments[0].device
    options = dict(
        ROWS=tiles.rows, KEYS=tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers
    )
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **constants, **options)
    else:
        kernel[(programs,)](*arguments, **constants, **options)


def _are_aligned(*tensors: Tensor) -> bool:
    return all(t.stride(-2) % ALIGNMENT == 0 and t.data_ptr() % ALIGNMENT == 0 for t in tensors)


@functools.lru_cache(maxsize=512)
def _constants(
    dtype: torch.dtype,
    width: int,
    w: int,
    aligned: bool,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    padded: bool,
    precision: str | None,
    table_kind: int,
) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels. PRESCALED: q is scaled beforehand, which rounds nothing."""
    if dtype != torch.float32 or precision == "native":
        precision = "tf32"
    elif precision not in FLOAT32_PRODUCTS:
        precision = PRECISE_PRODUCT
    power_of_two = scale != 0 and math.frexp(abs(scale))[0] == 0.5
    loads_whole_rows = aligned and all(x >= 16 and x & (x - 1) == 0 for x in (width, w))
    block_k, block_w = (
        max(16 if loads_whole_rows else MIN_UNALIGNED_BLOCK, 1 << (x - 1).bit_length()) for x in (width, w)
    )
    return dict(
        K=width,
        W=w,
        BLOCK_K=block_k,
        BLOCK_W=block_w,
        CAUSAL=bool(causal),
        WINDOW=window is not None,
        PADDED=padded,
        CAPPED=softcap is not None,
        PRESCALED=power_of_two and dtype != torch.float16,  # in float16 small numbers could underflow
        PRECISION=precision,
        BIASED=table_kind,
    )


def _empty_tangents(tangents: int, like: Tensor, h: int, n: int, w: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor (t, b, h, n, w), each tangent laid out as `kernels.empty_like` does."""
    stacked = like.as_strided((tangents * like.shape[0], *like.shape[1:]), (0, *like.stride()[1:]))
    return empty_like(stacked, h, n, w, dtype).unflatten(0, (tangents, like.shape[0]))


def _table(bias: Tensor | None, q: Tensor, k: Tensor) -> tuple[tuple[Any, ...], int]:
    """Return a table of scores as the kernels take it, with its strides, and its kind: none, additive or boolean."""
    if bias is None:
        return (q, 0, 0, 0), 0  # any pointer will do
    kind = 2 if bias.dtype == torch.bool else 1
    bias = bias.view(torch.uint8) if kind == 2 else bias
    bias = bias if bias.stride(-1) == 1 or bias.shape[-1] == 1 else bias.contiguous()
    bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return (bias, *bias.stride()[:3]), kind


def _mask(padding: Tensor | None, q: Tensor) -> tuple[Tensor, int]:
    """Return the padding as bytes and its stride over sequences."""
    if padding is None:
        return q, 0  # any pointer: the kernel does not read it
    padding = padding.contiguous().view(torch.uint8)
    return padding, padding.stride(0)
