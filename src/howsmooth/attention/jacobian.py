"""The derivative of a self-attention layer at given tokens, as a matrix-free operator, and the memory that it takes.

The memory is known from shapes alone: a plan counts with it before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention import backend, blockwise
from howsmooth.attention.op import pattern_of
from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator

if TYPE_CHECKING:
    from howsmooth.attention.heads import SelfAttention

# The probabilities of a layer are kept between products if they take no more than this many bytes: at 12 heads in
# float32 that is up to n = 1182. Beyond, they are computed again in each product.
KEEP_PROBABILITIES = 64 << 20


class AttentionJacobian(LinearOperator):
    """J = D_X f of a `SelfAttention` f, for X (n, d) or one for each X of (b, n, d): products without autograd.

    A product projects all of (dq, dk, dv) by one matrix, passes through the derivative of attention, and projects out.
    On a GPU that derivative is a kernel. `product_dtype` in half precision is for speed there: vectors stay as they are, q,
    k, v and what is multiplied with them are rounded, and `precise` is the same operator without that. `product_dtype` in
    the dtype of x says that those are precise enough to have no twin: rounding is then allowed for, and not measured.
    """

    def __init__(
        self,
        attention: SelfAttention,
        x: Tensor,
        padding: Tensor | None = None,
        product_dtype: torch.dtype | None = None,
    ):
        a = self.attention = attention
        self.x, self.padding = x, padding
        self.n = x.shape[-2]
        self.product_dtype = product_dtype
        self.rounded = product_dtype is not None and product_dtype != x.dtype
        super().__init__((self.n * a.d_out, self.n * a.d), dtype=x.dtype, device=x.device, batch=x.shape[:-2])
        self.roundoff = max(self.roundoff, torch.finfo(product_dtype or x.dtype).eps)
        with torch.no_grad():
            q, k, v = (t.reshape(-1, *t.shape[-3:]).to(product_dtype or t.dtype) for t in a.project(x))
            pattern = pattern_of(q, k, v, **a.pattern())
            rows = None if padding is None else padding.reshape(-1, self.n)
            why = backend.why_blocks(q, k, v, pattern, rows)
            if self.rounded and why is not None:
                raise InputError(
                    f"expected kernels for products in {product_dtype}, got none that serve ({why}); leave product_dtype out"
                )
            kept = [] if kept_scores(a, self.n, q.shape[0], q.element_size(), why is None) else None
            o, normaliser = backend.forward(q, k, v, pattern, rows, kept)
        for name, t in (("tokens", x), ("scores", normaliser[..., 0]), ("output", o)):
            if not torch.isfinite(t).all():
                raise InputError(f"expected finite {name}, got NaN or ∞; look at the tokens and weights of this layer")
        # Scores come with an error of a few units of their size, and P and the terms that cancel in J with the same.
        largest = float(normaliser[..., 0].abs().max())
        self.hidden = 4 * self.roundoff * largest
        without_reference = self.dtype == torch.float64 or (product_dtype is not None and not self.rounded)
        if self.hidden >= 1 and without_reference:
            raise InputError(
                f"expected scores that leave some digits to {product_dtype or self.dtype}, got scores of "
                f"{largest:.1e}; use smaller tokens or weights"
            )
        if why is None:
            self.linearised = backend.FusedLinearisation(q, k, v, o, normaliser, pattern, rows, wide=self.rounded)
        else:
            self.linearised = blockwise.Linearisation(q, k, v, o, normaliser, pattern, rows, kept)
        self.w_in = torch.cat([a.wq, a.wk, a.wv]).detach()
        self.w_out = None if a.wo is None else a.wo.detach()
        taken = footprint(a, self.n, self.dtype, product_dtype, q.shape[0], fused=why is None)
        self.workspace, self.held = taken.workspace, taken.held
        self.reference_itemsize, self.reference_bytes = taken.reference_itemsize, taken.reference_bytes

    @property
    def image(self) -> Tensor:
        """f(X), (*batch, n, d_out)."""
        o = self.linearised.o.transpose(1, 2).flatten(2).to(self.dtype)
        out = o if self.w_out is None else torch.nn.functional.linear(o, self.w_out, self.attention.bo)
        return out.reshape(*self.batch, self.n, -1).detach()

    @torch.no_grad()
    def matvec(self, v: Tensor) -> Tensor:
        """J v, (*batch, n·d) → (*batch, n·d_out)."""
        a = self.attention
        e = v.reshape(-1, self.n, a.d)
        dq, dk, dv = self._heads(e @ self.w_in.T)
        if a.rotary is not None:
            dq, dk = a.rotary.apply(dq), a.rotary.apply(dk)
        do = self.linearised.jvp(dq, dk, dv).transpose(1, 2).flatten(2)
        return (do if self.w_out is None else do @ self.w_out.T).reshape(*self.batch, -1)

    @torch.no_grad()
    def rmatvec(self, u: Tensor) -> Tensor:
        """Jᵀ u, (*batch, n·d_out) → (*batch, n·d)."""
        a = self.attention
        g = u.reshape(-1, self.n, a.d_out)
        g = (g if self.w_out is None else g @ self.w_out).unflatten(-1, (a.heads, -1)).transpose(1, 2)
        return self._to_tokens(*self.linearised.vjp(g)).reshape(*self.batch, -1)

    @torch.no_grad()
    def gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """∇_X ⟨u, J(X) v⟩, (*batch, n·d_out) and (*batch, n·d) → (*batch, n, d).

        At a simple σ₁ with its singular vectors u and v this is ∇_X σ₁. The projections are affine in X, so all of the
        curvature is the op's.
        """
        a = self.attention
        g = u.reshape(-1, self.n, a.d_out)
        g = (g if self.w_out is None else g @ self.w_out).unflatten(-1, (a.heads, -1)).transpose(1, 2)
        dq, dk, dv = self._heads(v.reshape(-1, self.n, a.d) @ self.w_in.T)
        if a.rotary is not None:
            dq, dk = a.rotary.apply(dq), a.rotary.apply(dk)
        return self._to_tokens(*self.linearised.hvp(dq, dk, dv, g)).reshape(*self.batch, self.n, a.d)

    def precise(self) -> AttentionJacobian | None:
        """The same derivative in float64; without the rounding of its products, where these are in half precision."""
        if self.rounded:
            return AttentionJacobian(self.attention, self.x, self.padding, self.dtype)
        if self.product_dtype is not None:
            return self if self.dtype == torch.float64 else None
        if self.dtype == torch.float64:
            return self
        return AttentionJacobian(self.attention.to(torch.float64), self.x.double(), self.padding)

    def _to_tokens(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """What cotangents of (q, k, v) are to the tokens, (b, n, d): the transpose of the projections."""
        a = self.attention
        if a.rotary is not None:
            dq, dk = a.rotary.transpose(dq), a.rotary.transpose(dk)
        return torch.cat([t.transpose(1, 2).flatten(2) for t in (dq, dk, dv)], -1) @ self.w_in

    def _heads(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = self.attention
        widths = [a.wq.shape[0], a.wk.shape[0], a.wv.shape[0]]
        counts = (a.heads, a.kv_heads, a.kv_heads)
        return tuple(
            part.unflatten(-1, (h, -1)).transpose(1, 2) for part, h in zip(t.split(widths, -1), counts, strict=True)
        )


@torch.no_grad()
def abstract_jacobian(attention: SelfAttention, n: int, product_dtype: torch.dtype | None = None) -> LinearOperator:
    """The shape and the memory of D_X f at n tokens, without the tokens: enough for a memory plan, not for products."""
    dtype = attention.dtype if attention.dtype.itemsize >= 4 else torch.float32
    a = attention.to(dtype)
    q, k, v = (t[None].to(product_dtype or dtype) for t in a.project(a.wq.new_zeros(1, a.d)))
    fused = backend.why_blocks(q, k, v, pattern_of(q, k, v, **a.pattern())) is None
    taken = footprint(a, n, dtype, product_dtype, fused=fused)
    drawn = LinearOperator(
        (n * a.d_out, n * a.d), dtype=dtype, device=a.device, workspace=taken.workspace, held=taken.held
    )
    drawn.reference_itemsize, drawn.reference_bytes = taken.reference_itemsize, taken.reference_bytes
    return drawn


@dataclass(frozen=True)
class Footprint:
    """Bytes, as `LinearOperator` has them: inside a product, held, held by the twin, and of a number in the twin."""

    workspace: int
    held: int
    reference_bytes: int
    reference_itemsize: int


def kept_scores(attention: SelfAttention, n: int, members: int, size: int, fused: bool) -> int:
    """Bytes of the probabilities that are kept between products; 0 where they are not."""
    scores = members * attention.heads * n * n * size * (1 if attention.softcap is None else 2)
    return scores if not fused and scores <= KEEP_PROBABILITIES else 0


def footprint(
    attention: SelfAttention,
    n: int,
    dtype: torch.dtype,
    product_dtype: torch.dtype | None = None,
    members: int = 1,
    fused: bool = False,
) -> Footprint:
    """What the derivative at `members` sequences of n tokens takes; `fused` where the kernels serve it.

    >>> from howsmooth.attention import SelfAttention
    >>> layer = SelfAttention(*(torch.ones(4, 4) for _ in range(3)))
    >>> footprint(layer, 2**20, torch.float32, torch.float32, fused=True).reference_bytes
    0
    """
    rounded = product_dtype is not None and product_dtype != dtype
    without_reference = dtype == torch.float64 or (product_dtype is not None and not rounded)
    reference_itemsize = 0 if without_reference else 4 if rounded else 8
    size, single = (product_dtype or dtype).itemsize, dtype.itemsize
    entries = len(attention.wq) + len(attention.wk) + len(attention.wv)
    projected, weights = members * n * entries, entries * attention.d * single

    def held(size: int, fused: bool) -> int:
        # By the kernels q, k, v and the output stay; blocks have copies of some, and small layers their probabilities.
        tensors = size * projected * 3 // 2 if fused else size * 2 * projected
        return tensors + weights * max(size, 4) // single + kept_scores(attention, n, members, size, fused)

    if fused and reference_itemsize < 8:
        workspace = single * 5 * projected // 2  # scores are never stored: projections, and what comes back
    else:
        # Three blocks and a few tensors of the size of q, k and v are live at once. The rest, found by measurement, is
        # left for what allocators and matrix libraries take.
        rows = blockwise.block_rows((members, attention.heads, n, 0), n, attention)
        workspace = single * (7 * rows * members * attention.heads * n + 5 * projected)
    return Footprint(
        workspace,
        held(size, fused),
        held(reference_itemsize, fused and reference_itemsize < 8) if reference_itemsize else 0,
        reference_itemsize,
    )
