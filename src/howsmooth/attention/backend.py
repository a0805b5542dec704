"""Which implementation serves: Triton's kernels on a GPU where they can, blocks of queries everywhere else.

Both take and give the same tensors, so that they may be mixed: the second derivative is made of blocks even where the
kernels make the first.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern


def why_blocks(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, padding: Tensor | None = None) -> str | None:
    """Why the kernels do not serve these tensors, or None where they do."""
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
    """The output (b, h, n, w) and the normaliser of each row (b, h, n, 2); `keep` as in `blockwise.forward`."""
    if why_blocks(q, k, v, pattern, padding) is None:
        return kernels.forward(q, k, v, padding=padding, **_traits(pattern))
    return blockwise.forward(*(at_least_single(t) for t in (q, k, v)), pattern, padding, keep)


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
    """The derivative near (q, k, v): `jvp`, `vjp` and `hvp`."""
    if why_blocks(q, k, v, pattern, padding) is None:
        return FusedLinearisation(q, k, v, o, normaliser, pattern, padding)
    return blockwise.Linearisation(*(at_least_single(t) for t in (q, k, v, o)), normaliser, pattern, padding, kept)


class FusedLinearisation:
    """Attention near one (q, k, v) by the kernels; see `blockwise.Linearisation`, whose second derivative it borrows.

    Tangents and cotangents are rounded to the dtype of q; what comes back is in float32 where `wide`, else in q's.
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
        wide: bool = False,
    ):
        self.q, self.k, self.v, self.o, self.normaliser = q, k, v, o, normaliser
        self.pattern, self.padding = pattern, padding
        self.out_dtype = torch.float32 if wide else None
        self.traits = _traits(pattern)

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        dq, dk, dv = (_rows_whole(t.to(self.q.dtype)) for t in (dq, dk, dv))
        return kernels.jvp(
            self.q,
            self.k,
            self.v,
            self.o,
            self.normaliser,
            dq,
            dk,
            dv,
            padding=self.padding,
            out_dtype=self.out_dtype,
            **self.traits,
        )

    def vjp(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # PyTorch's own backward, the fastest where it serves, gives back what it was given.
        found = kernels.vjp(
            self.q,
            self.k,
            self.v,
            self.o,
            self.normaliser,
            _rows_whole(g.to(self.q.dtype)),
            padding=self.padding,
            **self.traits,
        )
        return found if self.out_dtype is None else tuple(t.to(self.out_dtype) for t in found)

    def hvp(self, dq: Tensor, dk: Tensor, dv: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = blockwise.Linearisation(
            *(at_least_single(t) for t in (self.q, self.k, self.v, self.o)), self.normaliser, self.pattern, self.padding
        )
        return blocks.hvp(dq, dk, dv, g)


def at_least_single(t: Tensor) -> Tensor:
    """In float32 at least: outside of the kernels half precision is for storage."""
    return t.float() if t.dtype.itemsize < 4 else t


def _traits(pattern: Pattern) -> dict:
    return dict(
        scale=pattern.scale,
        causal=pattern.causal,
        window=pattern.window,
        softcap=pattern.softcap,
        offset=pattern.offset,
    )


def _rows_whole(t: Tensor) -> Tensor:
    """The kernels want the entries of one head side by side, as projections and outputs have them."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()
