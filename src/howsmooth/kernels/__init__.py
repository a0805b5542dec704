"""Triton kernels: attention, its derivative and the transpose of that, without anything of size n² in memory.

The door. Tensors have exactly four axes, q (b, h, n, k), k (b, hkv, m, k), v (b, hkv, m, w), and any strides with the
last one 1. Ask `unsupported` first: it names the reason why the kernels do not serve, or answers None.
`README.md` beside this file has the derivation. Triton is imported when a kernel is first asked for.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# By the bytes of an operand. Wider float32 heads need more registers than there are, and ended in illegal accesses.
WIDEST = {2: 256, 4: 128}
CAPABILITIES = (9, 10)


@functools.cache
def _launch():
    from howsmooth.kernels import launch

    return launch


@functools.cache
def _no_triton() -> bool:
    return importlib.util.find_spec("triton") is None


def unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Tensor,
    score_bias=None,
    padding: Tensor | None = None,
    precision: str | None = None,
) -> str | None:
    """Why the kernels cannot serve these arguments, or None if they can. `others`: tangents, cotangents, outputs.

    >>> x = torch.zeros(1, 2, 4, 300, dtype=torch.float64)
    >>> unsupported(x, x, x, score_bias=torch.zeros(4, 4))
    'the kernels know no score_bias'
    """
    if score_bias is not None:
        return "the kernels know no score_bias"
    if _no_triton():
        return "triton is not installed"
    if any(t.dim() != 4 for t in (q, k, v)):
        return "the kernels take tensors of four axes"
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"the kernels take bfloat16, float16 or float32 in all of q, k, v, got {q.dtype}, {k.dtype}, {v.dtype}"
    if precision == "precise" and q.dtype != torch.float32:
        return f"precise products are for float32, got {q.dtype}"
    if precision not in (None, "native", "precise"):
        return f"precision is native or precise, got {precision}"
    widest = WIDEST[q.element_size()]
    if max(q.shape[-1], v.shape[-1]) > widest:
        return f"heads in {q.dtype} are at most {widest} wide in the kernels, got {q.shape[-1]} and {v.shape[-1]}"
    if min(q.numel(), k.numel(), v.numel()) == 0:
        return "a tensor is empty"
    for t in (q, k, v, *others):
        if t.stride(-1) != 1 and t.shape[-1] != 1:
            return f"entries of a head must lie side by side, got a last stride of {t.stride(-1)}"
        if t.dtype not in DTYPES:
            return f"the kernels take bfloat16, float16 or float32, got {t.dtype}"
    if padding is not None and (padding.dtype != torch.bool or padding.shape != (q.shape[0], k.shape[2])):
        return f"padding is bool ({q.shape[0]}, {k.shape[2]}), got {padding.dtype} {tuple(padding.shape)}"
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
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The output (b, h, n, w) and, of each row, the largest score and log Σ exp(s − largest), (b, h, n, 2) float32.

    A row with nothing to see gives 0 and (0, +∞).
    `precision`: "native" multiplies operands as they are, float32 ones rounded to tf32; "precise" keeps float32 to
    1e-5. None is native for half precision and precise for float32. Sums are float32 always.
    """
    return _launch().forward(q, k, v, scale, causal, window, softcap, offset, padding, precision, out_dtype)


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
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """(dq, dk, dv) → do. With a leading axis t on all three, t tangents share their scores and probabilities."""
    return _launch().jvp(
        q, k, v, o, normaliser, dq, dk, dv, scale, causal, window, softcap, offset, padding, precision, out_dtype
    )


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
    precision: str | None = None,
    out_dtype: torch.dtype | None = None,
    way: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """G → (dq, dk, dv), the transpose of `jvp`. `way` names an implementation: ours, cudnn, flash; None chooses."""
    return _launch().vjp(
        q, k, v, o, normaliser, g, scale, causal, window, softcap, offset, padding, precision, out_dtype, way
    )
