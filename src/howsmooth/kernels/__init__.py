"""Triton kernels: attention, its derivative and the transpose of that, without anything of size n² in memory.

Tensors have exactly four axes, q (b, h, n, k), k (b, hkv, m, k), v (b, hkv, m, w), and any strides with the last one 1.
Call `unsupported` first: it returns the reason why the kernels do not support given arguments, or None. `README.md`
beside this file has the derivation. Triton is imported at the first launch, so the package imports without it.

The arguments that `forward`, `jvp` and `vjp` share are described at `forward`.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

import torch
from torch import Tensor

__all__ = ["forward", "jvp", "vjp", "hvp", "unsupported", "DTYPES", "MAX_WIDTH"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# By the bytes of an operand. Wider float32 heads need more registers than there are, and ended in illegal accesses.
MAX_WIDTH = {2: 256, 4: 128}
CAPABILITIES = (9, 10)  # major compute capabilities whose shared memory the tiles fit


@functools.cache
def _launch() -> ModuleType:
    from howsmooth.kernels import launch

    return launch


@functools.cache
def _is_triton_missing() -> bool:
    return importlib.util.find_spec("triton") is None


def unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Tensor,
    score_bias: object | None = None,
    padding: Tensor | None = None,
    precision: str | None = None,
) -> str | None:
    """Return why the kernels do not support these arguments, or None if they do.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k).
        v: Values (b, hkv, m, w).
        *others: Tangents, cotangents and outputs of the same call.
        score_bias: A table added to the scores, or a boolean mask; the kernels do not support a function.
        padding: Boolean mask (b, m), true where a key counts.
        precision: "native", "precise" or None, as in `forward`.

    Returns:
        The reason in one line, or None.

    Example:
        >>> x = torch.zeros(1, 2, 4, 300, dtype=torch.float64)
        >>> unsupported(x, x, x, score_bias=lambda i, j: i - j)
        'the kernels take a score_bias as a table, got a function'
    """
    if score_bias is not None and not isinstance(score_bias, Tensor):
        return "the kernels take a score_bias as a table, got a function"
    if _is_triton_missing():
        return "triton is not installed"
    if any(t.dim() != 4 for t in (q, k, v)):
        return "the kernels take tensors of four axes"
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"the kernels take bfloat16, float16 or float32 in all of q, k, v, got {q.dtype}, {k.dtype}, {v.dtype}"
    if precision == "precise" and q.dtype != torch.float32:
        return f"precise products are for float32, got {q.dtype}"
    if precision not in (None, "native", "precise"):
        return f"precision is native or precise, got {precision}"
    widest = MAX_WIDTH[q.element_size()]
    if max(q.shape[-1], v.shape[-1]) > widest:
        return f"heads in {q.dtype} are at most {widest} wide in the kernels, got {q.shape[-1]} and {v.shape[-1]}"
    if min(q.numel(), k.numel(), v.numel()) == 0:
        return "a tensor is empty"
    for t in (q, k, v, *others):
        if t.stride(-1) != 1 and t.shape[-1] != 1:
            return f"the entries of a head must be contiguous, got a last stride of {t.stride(-1)}"
        if t.dtype not in DTYPES:
            return f"the kernels take bfloat16, float16 or float32, got {t.dtype}"
    if padding is not None and (padding.dtype != torch.bool or padding.shape != (q.shape[0], k.shape[2])):
        return f"padding is bool ({q.shape[0]}, {k.shape[2]}), got {padding.dtype} {tuple(padding.shape)}"
    if isinstance(score_bias, Tensor) and (
        score_bias.dtype not in (*DTYPES, torch.bool) or score_bias.device != q.device
    ):
        return (
            f"a score_bias is bool, bfloat16, float16 or float32 on {q.device}, got {score_bias.dtype} on "
            f"{score_bias.device}"
        )
    if q.device.type != "cuda" or torch.version.hip is not None:
        return f"the kernels are written for NVIDIA GPUs, got tensors on {q.device}"
    major, minor = torch.cuda.get_device_capability(q.device)
    if major not in CAPABILITIES:
        return (
            "the kernels' tiles are for GPUs with 227 KiB of shared memory (compute capability 9 and 10), got "
            f"{major}.{minor}"
        )
    return None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention and the normaliser of each row.

    Sums are always in float32.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k); hkv divides h.
        v: Values (b, hkv, m, w).
        scale: Factor of the scores.
        causal: Whether query i sees only keys j ≤ i + offset.
        window: Query i sees only keys j with |j − (i + offset)| < window; None for no window.
        softcap: Soft cap of the scores, `softcap · tanh(s / softcap)`; None for none.
        offset: Position of the first query among the keys.
        padding: Boolean mask (b, m), true where a key counts; None if all do.
        bias: A table of shape (b or 1, h or 1, n, m): added to the scores, or boolean and True where a pair counts.
        precision: "native" multiplies operands as they are, and float32 ones rounded to tf32; "precise" is accurate to
            1e-5 in float32. None means native for half precision and precise for float32.
        out_dtype: Dtype of the output; None for that of q.

    Returns:
        The output (b, h, n, w), and (b, h, n, 2) in float32 with the largest score of each row and
        log Σ exp(s − largest). A row that sees no key gives 0 and (0, +∞).
    """
    output, normaliser = _launch().forward(
        q, k, v, scale, causal, window, softcap, offset, padding, precision, out_dtype, bias=bias
    )
    return output, normaliser


def jvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the derivative of the output along the tangents dq, dk, dv.

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        dq: Tangent of q, or t tangents (t, b, h, n, k).
        dk: Tangent of k, or t tangents.
        dv: Tangent of v, or t tangents.
        scale: As in `forward`.
        causal: As in `forward`.
        window: As in `forward`.
        softcap: As in `forward`.
        offset: As in `forward`.
        padding: As in `forward`.
        bias: As in `forward`.
        precision: As in `forward`.
        out_dtype: As in `forward`.

    Returns:
        The derivative (b, h, n, w), or (t, b, h, n, w) for t tangents; and the row sums of P∘ds, (b, h, n) or
        (t, b, h, n) in float32, which `hvp` needs.

    Raises:
        InputError: If the numbers of tangents differ.
    """
    do, mu = _launch().jvp(
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
        bias=bias,
    )
    return do, mu


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
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ⟨h, do⟩ in q, k and v, where do is the derivative along (dq, dk, dv).

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        dq: Tangent of q.
        dk: Tangent of k.
        dv: Tangent of v.
        do: The derivative that `jvp` returns for these tangents.
        mu: The row sums that `jvp` returns for these tangents.
        h: Cotangent of do, (b, h, n, w).
        scale: As in `forward`.
        causal: As in `forward`.
        window: As in `forward`.
        softcap: As in `forward`.
        offset: As in `forward`.
        padding: As in `forward`.
        bias: As in `forward`.
        precision: As in `forward`.
        out_dtype: As in `forward`.

    Returns:
        The gradients, of the shapes of q, k and v.
    """
    gq, gk, gv = _launch().hvp(
        *(q, k, v, o, normaliser, dq, dk, dv, do, mu, h),
        *(scale, causal, window, softcap, offset, padding, precision, out_dtype),
        bias=bias,
    )
    return gq, gk, gv


def vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
    implementation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the transpose of `jvp` to the cotangent g.

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        g: Cotangent of the output, (b, h, n, w).
        scale: As in `forward`.
        causal: As in `forward`.
        window: As in `forward`.
        softcap: As in `forward`.
        offset: As in `forward`.
        padding: As in `forward`.
        bias: As in `forward`.
        precision: As in `forward`.
        out_dtype: As in `forward`.
        implementation: "triton" for these kernels, "cudnn" or "flash" for PyTorch's fused backward passes; None takes
            the fastest that computes the same function.

    Returns:
        The cotangents (dq, dk, dv), of the shapes of q, k and v.
    """
    dq, dk, dv = _launch().vjp(
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
        implementation,
        bias=bias,
    )
    return dq, dk, dv


def empty_like(like: Tensor, heads: int, n: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor (b, heads, n, width).

    In memory the heads are inside the tokens if they are so in `like`, as a projection leaves them.
    """
    b, inside = like.shape[0], like.stride(1) < like.stride(2)
    shape = (b, n, heads, width) if inside else (b, heads, n, width)
    out = torch.empty(shape, dtype=dtype, device=like.device)
    return out.transpose(1, 2) if inside else out
