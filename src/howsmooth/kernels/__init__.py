"""Triton kernels: attention and its first two derivatives, without anything of size n² in memory.

Tensors have exactly four axes, q (b, h, n, k), k (b, hkv, m, k), v (b, hkv, m, w), and any strides with the last one 1.
Call `unsupported` first: it returns the reason why the kernels do not support given arguments, or None. `README.md`
beside this file has the derivation. Triton is imported at the first launch, so the package imports without it.

The arguments that all kernels share are described at `KernelOptions`.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

import torch
from torch import Tensor

from howsmooth.kernels.tiles import LESS_MEMORY, SHARED_MEMORY

if TYPE_CHECKING:
    from howsmooth.kernels.float32 import SplitDerivative

__all__ = [
    "forward",
    "jvp",
    "vjp",
    "hvp",
    "split_derivative",
    "table_gradient",
    "unsupported",
    "KernelOptions",
    "DTYPES",
    "MAX_WIDTH",
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# By the bytes of an operand. Wider float32 heads need more registers than there are, and ended in illegal accesses.
MAX_WIDTH = {2: 256, 4: 128}
# Fewer queries than this are not worth splitting float32 for: the splitting takes as long as is gained.
MIN_SPLIT_LENGTH = 4096


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
    sparse: bool = False,
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
        sparse: Whether there is a sparse mask.

    Returns:
        The reason in one line, or None.

    Example:
        >>> x = torch.zeros(1, 2, 4, 300, dtype=torch.float64)
        >>> unsupported(x, x, x, score_bias=lambda i, j: i - j)
        'the kernels take a score_bias as a table, got a function'
    """
    # This runs at every call, and takes as long as a small kernel: hence no loops over three tensors.
    if score_bias is not None and not isinstance(score_bias, Tensor):
        return "the kernels take a score_bias as a table, got a function"
    if not q.dim() == k.dim() == v.dim() == 4:
        return "the kernels take tensors of four axes"
    dtype = q.dtype
    if dtype not in DTYPES or k.dtype != dtype or v.dtype != dtype:
        return f"the kernels take bfloat16, float16 or float32 in all of q, k, v, got {dtype}, {k.dtype}, {v.dtype}"
    if precision == "precise" and dtype != torch.float32:
        return f"precise products are for float32, got {dtype}"
    if precision not in (None, "native", "precise"):
        return f"precision is native or precise, got {precision}"
    (b, _, n, width), (_, _, m, w) = q.shape, v.shape
    widest = MAX_WIDTH[dtype.itemsize]
    if width > widest or w > widest:
        return f"heads in {dtype} are at most {widest} wide in the kernels, got {width} and {w}"
    if 0 in (b, n, m, width, w):
        return "a tensor is empty"
    for t in (q, k, v, *others):
        if t.stride(3) != 1 and t.shape[3] != 1:
            return f"the entries of a head must be contiguous, got a last stride of {t.stride(3)}"
    for t in others:
        if t.dtype not in DTYPES:
            return f"the kernels take bfloat16, float16 or float32, got {t.dtype}"
    if padding is not None and (padding.dtype != torch.bool or padding.shape != (b, m)):
        return f"padding is bool ({b}, {m}), got {padding.dtype} {tuple(padding.shape)}"
    if isinstance(score_bias, Tensor) and (
        score_bias.dtype not in (*DTYPES, torch.bool) or score_bias.device != q.device
    ):
        return (
            f"a score_bias is bool, bfloat16, float16 or float32 on {q.device}, got {score_bias.dtype} on "
            f"{score_bias.device}"
        )
    return _unsupported_device(q.device, sparse or score_bias is not None)


@functools.cache
def _unsupported_device(device: torch.device, loads_pairs: bool) -> str | None:
    """Return why the kernels do not run on a device, or None if they do; with a table or a sparse mask or without."""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the kernels are written for NVIDIA GPUs, got tensors on {device}"
    if _is_triton_missing():
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor not in SHARED_MEMORY:
        known = ", ".join(f"{c / 10:.1f}" for c in SHARED_MEMORY)
        return f"the kernels have tiles for GPUs of compute capability {known}, got {major}.{minor}"
    if loads_pairs and SHARED_MEMORY[10 * major + minor] in LESS_MEMORY:
        return f"tables and sparse masks need more shared memory than compute capability {major}.{minor} has"
    return None


class KernelOptions(TypedDict, total=False):
    """The arguments that all kernels share.

    Attributes:
        scale: Factor of the scores.
        causal: Whether query i sees only keys j ≤ i + offset.
        window: Query i sees only keys j with |j − (i + offset)| < window; None for no window.
        softcap: Soft cap of the scores, `softcap · tanh(s / softcap)`; None for none.
        offset: Position of the first query among the keys.
        padding: Boolean mask (b, m), true where a key counts; None if all do.
        bias: A table of shape (b or 1, h or 1, n, m): added to the scores, or boolean and True where a pair counts.
        sparse: A block-sparse mask, five tensors: tiles (t, 128, 4) of int32 with a bit for each pair, and two lists of
            blocks, by queries and by keys. A list is `starts` (b or 1, h or 1, blocks, 3) and `entries` (e + 1, 2),
            both int32. The blocks that block i sees are entries starts[i, 0] … starts[i, 2] − 1, each with the index of
            its tile, or −1 if all of its pairs count. Those before starts[i, 1] lie inside n × m, and all of their
            pairs count. The last entry is not used, but loaded, since the kernels load one ahead.
        precision: "native" multiplies operands as they are, and float32 ones rounded to tf32; "precise" is accurate to
            1e-5 in float32. None means native for half precision and precise for float32.
        out_dtype: Dtype of the output; None for that of q.
    """

    scale: Required[float]
    causal: bool
    window: int | None
    softcap: float | None
    offset: int
    padding: Tensor | None
    bias: Tensor | None
    sparse: tuple[Tensor, ...] | None
    precision: str | None
    out_dtype: torch.dtype | None


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, implementation: str | None = None, **options: Unpack[KernelOptions]
) -> tuple[Tensor, Tensor]:
    """Compute attention and the normaliser of each row.

    Sums are always in float32.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k); hkv divides h.
        v: Values (b, hkv, m, w).
        implementation: "triton" for these kernels, "cudnn" for cuDNN's forward pass; None takes the faster one that
            computes the same function.
        **options: Scores and masks, see `KernelOptions`.

    Returns:
        The output (b, h, n, w), and (b, h, n, 2) in float32 with the largest score of each row and
        log Σ exp(s − largest); cuDNN gives their sum and 0. A row that sees no key gives 0 and (0, +∞).
    """
    launch = _launch()
    output, normaliser = launch.forward(q, k, v, launch.Options(**options), implementation=implementation)
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
    with_means: bool = True,
    **options: Unpack[KernelOptions],
) -> tuple[Tensor, Tensor | None]:
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
        with_means: Whether to compute the row sums, which take 5 % of the time.
        **options: Scores and masks, see `KernelOptions`.

    Returns:
        The derivative (b, h, n, w), or (t, b, h, n, w) for t tangents; and the row sums of P∘ds, (b, h, n) or
        (t, b, h, n) in float32: the derivative of the log-sum-exp, which `hvp` needs.

    Raises:
        InputError: If the numbers of tangents differ.
    """
    launch = _launch()
    do, mu = launch.jvp(q, k, v, o, normaliser, dq, dk, dv, launch.Options(**options), with_means=with_means)
    return do, mu


def vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    *,
    g_lse: Tensor | None = None,
    implementation: str | None = None,
    **options: Unpack[KernelOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the transpose of `jvp` to the cotangent g.

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        g: Cotangent of the output, (b, h, n, w).
        g_lse: Cotangent of the log-sum-exp, (b, h, n).
        implementation: "triton" for these kernels, "cudnn" or "flash" for PyTorch's fused backward passes; None takes
            the fastest that computes the same function.
        **options: Scores and masks, see `KernelOptions`.

    Returns:
        The cotangents (dq, dk, dv), of the shapes of q, k and v.
    """
    launch = _launch()
    dq, dk, dv = launch.vjp(q, k, v, o, normaliser, g, launch.Options(**options), implementation, g_lse=g_lse)
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
    *,
    h_lse: Tensor | None = None,
    **options: Unpack[KernelOptions],
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
        h_lse: Cotangent of mu, (b, h, n).
        **options: Scores and masks, see `KernelOptions`.

    Returns:
        The gradients, of the shapes of q, k and v.
    """
    launch = _launch()
    at = q, k, v, o, normaliser, dq, dk, dv, do, mu, h
    gq, gk, gv = launch.hvp(*at, launch.Options(**options), h_lse=h_lse)
    return gq, gk, gv


def table_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    *,
    g_lse: Tensor | None = None,
    along: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
    **options: Unpack[KernelOptions],
) -> Tensor:
    """Compute the gradient of ⟨g, o⟩, or of ⟨g, do⟩, in the table `bias`.

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        g: Cotangent of the output, or of do.
        g_lse: Cotangent of the log-sum-exp, or of its derivative, (b, h, n).
        along: (dq, dk, dv, do, mu), tangents and what `jvp` returns for them, for the gradient of ⟨g, do⟩.
        **options: Scores and masks, see `KernelOptions`; without a sparse mask.

    Returns:
        The gradient, of the shape of the table.
    """
    launch = _launch()
    gradient: Tensor = launch.table_gradient(q, k, v, o, normaliser, g, launch.Options(**options), g_lse, along)
    return gradient


def split_derivative(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, normaliser: Tensor, **options: Unpack[KernelOptions]
) -> SplitDerivative | None:
    """Return the derivative in float32 by products of float16, for many products at one (q, k, v).

    Args:
        q: Queries, as in `forward`.
        k: Keys, as in `forward`.
        v: Values, as in `forward`.
        o: The output of `forward`.
        normaliser: The normaliser of `forward`.
        **options: Scores and masks, see `KernelOptions`.

    Returns:
        The derivative, with methods `jvp` and `vjp`; None where `jvp` and `vjp` of this module are as fast, or the only
        ones.
    """
    from howsmooth.kernels import float32

    settings = _launch().Options(**options)
    if q.shape[2] < MIN_SPLIT_LENGTH or not float32.is_supported(q, v, settings):
        return None
    return float32.SplitDerivative(q, k, v, o, normaliser, settings)


def empty_like(like: Tensor, heads: int, n: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor (b, heads, n, width).

    In memory the heads are inside the tokens if they are so in `like`, as a projection leaves them.
    """
    b, inside = like.shape[0], like.stride(1) < like.stride(2)
    shape = (b, n, heads, width) if inside else (b, heads, n, width)
    out = torch.empty(shape, dtype=dtype, device=like.device)
    return out.transpose(1, 2) if inside else out
