"""The choice of an implementation: Triton kernels on a GPU where they support the call, else blocks of queries.

Both have the same inputs and outputs and may be mixed.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.arguments import is_causal_bias

if TYPE_CHECKING:
    from howsmooth.attention.op import Mask
    from howsmooth.attention.pattern import Pattern, ScoreBias

KERNELS, BLOCKS = "Triton kernels", "blocks of queries in PyTorch"


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, padding: Tensor | None = None) -> str | None:
    """Return why the kernels do not support these tensors, or None if they do; warn once if that costs time."""
    if get_proxy_mode() is not None:
        return "a graph is being recorded"
    is_sparse = pattern.mask is not None
    reason = kernels.unsupported(q, k, v, score_bias=pattern.score_bias, padding=padding, sparse=is_sparse)
    if reason is not None and q.device.type == "cuda" and q.dtype in kernels.DTYPES and q.numel() and v.numel():
        warn_of_slow_path(reason)
    return reason


@functools.cache
def warn_of_slow_path(reason: str) -> None:
    """Warn, once for each reason, that a GPU runs attention as PyTorch operations. float64 has no faster way."""
    warnings.warn(
        f"attention runs in blocks of PyTorch operations, not in fused kernels, which is slower: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


class Implementation(NamedTuple):
    """What computes attention and its derivatives.

    Attributes:
        name: "Triton kernels" or "blocks of queries in PyTorch".
        reason: Why the kernels do not run; None if they do.
    """

    name: str
    reason: str | None


def implementation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_bias: ScoreBias | None = None,
    mask: Mask | None = None,
    padding: Tensor | None = None,
) -> Implementation:
    """Return which implementation of `attend` runs for these arguments, and why not the kernels.

    The other arguments of `attend` do not affect the choice.

    Args:
        q: Queries (…, h, n, k).
        k: Keys (…, hkv, m, k).
        v: Values (…, hkv, m, w).
        score_bias: As in `attend`.
        mask: As in `attend`.
        padding: As in `attend`.

    Returns:
        The name and the reason.

    Example:
        >>> x = torch.zeros(2, 300, 64)
        >>> implementation(x, x, x, score_bias=lambda i, j: i - j).reason
        'the kernels take a score_bias as a table, got a function'
    """
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    b = math.prod(lead)
    q, k, v = (t.expand(*lead, *t.shape[-3:]).reshape(b, *t.shape[-3:]) for t in (q, k, v))
    if padding is not None:
        padding = padding.expand(*lead, padding.shape[-1]).reshape(b, padding.shape[-1])
    # A CausalBias of PyTorch is a causal mask, which does not affect the choice.
    score_bias = None if is_causal_bias(score_bias) else score_bias
    mask = None if is_causal_bias(mask) else mask
    is_table = isinstance(mask, Tensor)
    table = mask if is_table else score_bias
    is_sparse = mask is not None and not is_table
    reason = kernels.unsupported(q, k, v, score_bias=table, padding=padding, sparse=is_sparse)
    return Implementation(KERNELS if reason is None else BLOCKS, reason)


def implementation_on(device: torch.device | str, dtype: torch.dtype) -> Implementation:
    """Return which implementation of `attend` runs for heads of width 64 without a mask, and why not the kernels.

    Example:
        >>> implementation_on("cpu", torch.float32).name
        'blocks of queries in PyTorch'
    """
    x = torch.empty(1, 1, 1, 64, device=device, dtype=dtype)
    return implementation(x, x, x)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    padding: Tensor | None = None,
    keep: list[blockwise.Block] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the output (b, h, n, w) and the normalisers (b, h, n, 2); arguments as in `blockwise.forward`."""
    if unsupported_reason(q, k, v, pattern, padding) is None:
        return kernels.forward(q, k, v, **_kernel_options(pattern, padding))
    return blockwise.forward(upcast_half(q), upcast_half(k), upcast_half(v), pattern, padding, keep)


def linearise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    pattern: Pattern,
    padding: Tensor | None = None,
    kept: list[blockwise.Block] | None = None,
) -> FusedLinearisation | blockwise.Linearisation:
    """Return the derivative at (q, k, v), with its methods `jvp`, `vjp` and `hvp`."""
    if unsupported_reason(q, k, v, pattern, padding) is None:
        return FusedLinearisation(q, k, v, o, normaliser, pattern, padding)
    return blockwise.Linearisation(
        upcast_half(q), upcast_half(k), upcast_half(v), upcast_half(o), normaliser, pattern, padding, kept
    )


class FusedLinearisation:
    """Attention linearised at one (q, k, v), by the kernels.

    Tangents and cotangents are rounded to the dtype of q. Arguments are those of `blockwise.Linearisation`.

    Args:
        q: queries (b, h, n, k).
        k: keys (b, hkv, m, k).
        v: values (b, hkv, m, w).
        o: output of `forward`.
        normaliser: normalisers of the rows, as `forward` returns them.
        pattern: scores and masks.
        padding: True where the key is real, (b, m).
        float32_output: whether products are returned in float32 rather than in the dtype of q.
        split: whether products in float32 are composed of float16 ones where the kernels can. It takes as much memory
            again as q, k, v and o, and pays for many products of long sequences.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        normaliser: Tensor,
        pattern: Pattern,
        padding: Tensor | None = None,
        float32_output: bool = False,
        split: bool = False,
    ) -> None:
        """Store the tensors, and split them if that is asked for."""
        self.q, self.k, self.v, self.o, self.normaliser = q, k, v, o, normaliser
        self.pattern, self.padding = pattern, padding
        self.out_dtype = torch.float32 if float32_output else None
        self.options = _kernel_options(pattern, padding, self.out_dtype)
        self.split = kernels.split_derivative(q, k, v, o, normaliser, **self.options) if split else None

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Compute the tangent do along (dq, dk, dv)."""
        if self.split is not None:
            return self.split.jvp(dq, dk, dv)
        return self._jvp(dq, dk, dv, with_means=False)[0]

    def jvp_with_means(
        self, dq: Tensor, dk: Tensor, dv: Tensor, d_table: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the tangent do along (dq, dk, dv), and the row sums of P∘ds, (b, h, n)."""
        if d_table is not None:
            return self._blockwise("a tangent of a table").jvp_with_means(dq, dk, dv, d_table)
        do, means = self._jvp(dq, dk, dv, with_means=True)
        assert means is not None
        return do, means

    def _jvp(self, dq: Tensor, dk: Tensor, dv: Tensor, with_means: bool) -> tuple[Tensor, Tensor | None]:
        dq, dk, dv = (_with_contiguous_rows(t.to(self.q.dtype)) for t in (dq, dk, dv))
        at = self.q, self.k, self.v, self.o, self.normaliser
        return kernels.jvp(*at, dq, dk, dv, with_means=with_means, **self.options)

    def vjp(self, g: Tensor, g_lse: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents (dq, dk, dv) for g, and for the cotangent `g_lse` of the log-sum-exp, (b, h, n)."""
        if self.split is not None and g_lse is None:
            return self.split.vjp(g)
        # PyTorch's own backward, the fastest where it applies, has no other output dtype than that of its inputs.
        g = _with_contiguous_rows(g.to(self.q.dtype))
        at = self.q, self.k, self.v, self.o, self.normaliser
        options: kernels.KernelOptions = {**self.options, "out_dtype": None}
        dq, dk, dv = kernels.vjp(*at, g, g_lse=g_lse, **options)
        if self.out_dtype is None:
            return dq, dk, dv
        return dq.to(self.out_dtype), dk.to(self.out_dtype), dv.to(self.out_dtype)

    def hvp(
        self,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        g: Tensor,
        along: tuple[Tensor, Tensor] | None = None,
        g_lse: Tensor | None = None,
        d_table: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the derivative of vjp(g, g_lse) along (dq, dk, dv).

        Args:
            dq: tangent of q.
            dk: tangent of k.
            dv: tangent of v.
            g: cotangent of the output.
            along: the result of `jvp_with_means` for these tangents, if it is known.
            g_lse: cotangent of the log-sum-exp, (b, h, n).
            d_table: tangent of the table that is added to the scores.
        """
        if d_table is not None:
            slow = self._blockwise("a tangent of a table")
            return slow.hvp(dq, dk, dv, g, along, g_lse, d_table)
        do, mu = self.jvp_with_means(dq, dk, dv) if along is None else along
        dq, dk, dv, do, g = (_with_contiguous_rows(t.to(self.q.dtype)) for t in (dq, dk, dv, do, g))
        at = self.q, self.k, self.v, self.o, self.normaliser
        return kernels.hvp(*at, dq, dk, dv, do, mu, g, h_lse=g_lse, **self.options)

    def table_gradient(
        self,
        g: Tensor,
        shape: tuple[int, int],
        g_lse: Tensor | None = None,
        along: tuple[Tensor, Tensor, Tensor, Tensor | None] | None = None,
    ) -> Tensor:
        """Compute the gradient of ⟨g, o⟩ in the table; arguments as in `blockwise.Linearisation.table_gradient`."""
        table = self.options.get("bias")
        if table is None or self.pattern.mask is not None or (along is not None and along[3] is not None):
            slow = self._blockwise("the gradient of a table with a sparse mask, or along a tangent of the table")
            return slow.table_gradient(g, shape, g_lse, along)
        options: kernels.KernelOptions = {**self.options, "bias": table.expand(*shape, *table.shape[-2:])}
        g = _with_contiguous_rows(g.to(self.q.dtype))
        at = self.q, self.k, self.v, self.o, self.normaliser
        tangents = None
        if along is not None:
            do, mu = self.jvp_with_means(*along[:3])
            dq, dk, dv = (_with_contiguous_rows(t.to(self.q.dtype)) for t in along[:3])
            tangents = (dq, dk, dv, do, mu)
        return kernels.table_gradient(*at, g, g_lse=g_lse, along=tangents, **options)

    def _blockwise(self, what: str) -> blockwise.Linearisation:
        warn_of_slow_path(f"the kernels do not have {what}")
        q, k, v, o = (upcast_half(t) for t in (self.q, self.k, self.v, self.o))
        return blockwise.Linearisation(q, k, v, o, self.normaliser, self.pattern, self.padding)


def upcast_half(t: Tensor) -> Tensor:
    """Return t in float32 if it is in half precision, which is for storage only outside of the kernels."""
    return t.float() if t.dtype.itemsize < 4 else t


def _kernel_options(
    pattern: Pattern, padding: Tensor | None, out_dtype: torch.dtype | None = None
) -> kernels.KernelOptions:
    table = pattern.score_bias.detach() if isinstance(pattern.score_bias, Tensor) else None
    if table is not None:
        table = table.reshape(*(1,) * (4 - table.dim()), *table.shape)
    return {
        "scale": pattern.scale,
        "causal": pattern.causal,
        "window": pattern.window,
        "softcap": pattern.softcap,
        "offset": pattern.offset,
        "padding": padding,
        "bias": table,
        "sparse": None if pattern.mask is None else pattern.mask.kernel_arguments(),
        "out_dtype": out_dtype,
    }


def _with_contiguous_rows(t: Tensor) -> Tensor:
    """Return t with the entries of each row of a head contiguous in memory, as the kernels require."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()
