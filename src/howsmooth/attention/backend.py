"""The choice of an implementation: Triton kernels on a GPU where they support the call, else blocks of queries.

Both have the same inputs and outputs and may be mixed.
"""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, padding: Tensor | None = None) -> str | None:
    """Return why the kernels do not support these tensors, or None if they do."""
    if get_proxy_mode() is not None:
        return "a graph is being recorded"
    return kernels.unsupported(q, k, v, score_bias=pattern.score_bias, padding=padding)


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
        return kernels.forward(q, k, v, padding=padding, **_kernel_options(pattern))
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
    ) -> None:
        """Store the tensors."""
        self.q, self.k, self.v, self.o, self.normaliser = q, k, v, o, normaliser
        self.pattern, self.padding = pattern, padding
        self.out_dtype = torch.float32 if float32_output else None
        self.options = _kernel_options(pattern)

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Compute the tangent do along (dq, dk, dv)."""
        return self.jvp_with_means(dq, dk, dv)[0]

    def jvp_with_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the tangent do along (dq, dk, dv), and the row sums of P∘ds, (b, h, n)."""
        dq, dk, dv = (_with_contiguous_rows(t.to(self.q.dtype)) for t in (dq, dk, dv))
        at = self.q, self.k, self.v, self.o, self.normaliser
        return kernels.jvp(*at, dq, dk, dv, padding=self.padding, out_dtype=self.out_dtype, **self.options)

    def vjp(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents (dq, dk, dv) for g."""
        # PyTorch's own backward, the fastest where it applies, has no other output dtype than that of its inputs.
        dq, dk, dv = kernels.vjp(
            self.q,
            self.k,
            self.v,
            self.o,
            self.normaliser,
            _with_contiguous_rows(g.to(self.q.dtype)),
            padding=self.padding,
            **self.options,
        )
        if self.out_dtype is None:
            return dq, dk, dv
        return dq.to(self.out_dtype), dk.to(self.out_dtype), dv.to(self.out_dtype)

    def hvp(
        self, dq: Tensor, dk: Tensor, dv: Tensor, g: Tensor, along: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the derivative of vjp(g) along (dq, dk, dv).

        Args:
            dq: tangent of q.
            dk: tangent of k.
            dv: tangent of v.
            g: cotangent of the output.
            along: the result of `jvp_with_means` for these tangents, if it is known.
        """
        do, mu = self.jvp_with_means(dq, dk, dv) if along is None else along
        dq, dk, dv, do, g = (_with_contiguous_rows(t.to(self.q.dtype)) for t in (dq, dk, dv, do, g))
        at = self.q, self.k, self.v, self.o, self.normaliser
        return kernels.hvp(*at, dq, dk, dv, do, mu, g, padding=self.padding, out_dtype=self.out_dtype, **self.options)


class KernelOptions(TypedDict):
    """The arguments of the kernels that determine scores and masks."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    offset: int
    bias: Tensor | None


def upcast_half(t: Tensor) -> Tensor:
    """Return t in float32 if it is in half precision, which is for storage only outside of the kernels."""
    return t.float() if t.dtype.itemsize < 4 else t


def _kernel_options(pattern: Pattern) -> KernelOptions:
    return {
        "scale": pattern.scale,
        "causal": pattern.causal,
        "window": pattern.window,
        "softcap": pattern.softcap,
        "offset": pattern.offset,
        "bias": pattern.score_bias.detach() if isinstance(pattern.score_bias, Tensor) else None,
    }


def _with_contiguous_rows(t: Tensor) -> Tensor:
    """Return t with the entries of each row of a head contiguous in memory, as the kernels require."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()
