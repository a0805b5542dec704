"""The derivative of a self-attention layer at given tokens, as a matrix-free operator, and an estimate of its memory.

The estimate needs shapes only, so that a study can plan before it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention import backend, blockwise
from howsmooth.attention.dense_products import (
    DenseProducts,
    ScaledGram,
    flush_tiny,
    normalised,
    rounded_block,
    scaled_gram,
)
from howsmooth.attention.op import pattern_of
from howsmooth.attention.weights import is_finite
from howsmooth.errors import InputError
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.rounding import moved

if TYPE_CHECKING:
    from howsmooth.attention.heads import SelfAttention

# The probabilities of a layer are stored between products if there are at most this many (80 MiB in float32, 160 MiB in
# float64): at 12 heads that is up to n = 1321. Beyond that they are recomputed in each product.
MAX_STORED_PROBABILITIES = 20 << 20
# Size of the largest entry of tangents and cotangents in half precision. Sums over n cotangents of this size, which are
# rounded to half precision again, must stay below 65,504; entries 2¹⁰ times smaller keep all of their bits.
LARGEST_HALF_ENTRY = 2.0**-4


class AttentionJacobian(LinearOperator):
    """J = D_X f of a `SelfAttention` f at X, with products that need no autograd.

    A product projects to (dq, dk, dv) by one matrix, applies the derivative of attention, and projects to the output.
    On a GPU that derivative is a kernel. An in-place `.to()` of the layer leaves the operator as it is; an optimiser
    step, which writes into the weights, does not: make a new operator after it.

    Args:
        attention: the layer f.
        x: tokens (n, d), or (b, n, d) for a batch of operators.
        padding: True where the token is real, (n) or (b, n).
        product_dtype: dtype of products. In half precision, for speed on a GPU, q, k, v and their tangents and
            cotangents are rounded, vectors are not, and `precise` is the operator without that rounding. The dtype of x
            declares its products precise enough: there is no reference, and `perturbed` shows their rounding.
        reference: the same derivative in float64 with stored probabilities. The tensors of this one are then those of
            the reference, rounded once, and `precise` returns it.

    Raises:
        InputError: if no kernel supports products in half precision, tokens or scores are not finite, or scores are too
            large for the dtype.
    """

    def __init__(
        self,
        attention: SelfAttention,
        x: Tensor,
        padding: Tensor | None = None,
        product_dtype: torch.dtype | None = None,
        reference: AttentionJacobian | None = None,
    ) -> None:
        """Compute the output and the normalisers of attention at x, or round those of the reference."""
        a = self.attention = attention
        self.x, self.padding, self.n = x, padding, x.shape[-2]
        # Read once: attributes of a module are slow, and an in-place .to() must not change an operator in use.
        self.d, self.d_out, self.heads = a.d, a.d_out, a.heads
        self.widths = [a.wq.shape[0], a.wk.shape[0], a.wv.shape[0]]
        self.head_counts = (a.heads, a.kv_heads, a.kv_heads)
        self.rotary = None if a.rotary is None else a.rotary.shallow_copy()
        self.product_dtype, self.reference = product_dtype, reference
        self.rounded = product_dtype is not None and product_dtype != x.dtype
        super().__init__((self.n * a.d_out, self.n * a.d), dtype=x.dtype, device=x.device, batch=x.shape[:-2])
        self.roundoff = max(self.roundoff, torch.finfo(product_dtype or x.dtype).eps)
        with torch.no_grad():
            if reference is None:
                projected = a.project(x, centred=True)
                q, k, v = (t.reshape(-1, *t.shape[-3:]).to(product_dtype or t.dtype) for t in projected)
            else:
                at = reference.linearised
                q, k, v = at.q.to(x.dtype), at.k.to(x.dtype), at.v.to(x.dtype)
            pattern = pattern_of(q, k, v, **a.pattern())
            rows = None if padding is None else padding.reshape(-1, self.n)
            reason = backend.unsupported_reason(q, k, v, pattern, rows)
            if self.rounded and reason is not None:
                raise InputError(
                    f"expected kernels for products in {product_dtype}, got none that support this call ({reason}); "
                    "leave product_dtype out"
                )
            stored = stored_probability_bytes(a, self.n, q.shape[0], q.element_size(), reason is None)
            kept: list[blockwise.Block] | None = [] if stored else None
            if reference is None:
                o, normaliser = backend.forward(q, k, v, pattern, rows, kept)
            else:
                o, normaliser = at.o.to(x.dtype), at.normaliser.to(x.dtype)
                kept = [rounded_block(block, x.dtype) for block in reference.blocks()]
            if kept is not None and self.dtype == torch.float32:
                for block in kept:
                    flush_tiny(block.p)
        checked = [("tokens", x), ("scores", normaliser[..., 0]), ("output", o)]
        if reference is not None:  # which may be finite where float32 is not
            checked += [("queries", q), ("keys", k), ("values", v)]
        for name, t in checked:
            if not is_finite(t):
                raise InputError(
                    f"expected finite {name}{f' in {product_dtype}' if self.rounded else ''}, got NaN or ∞; check the "
                    "tokens and weights of this layer" + (", or use bfloat16 or float32" if self.rounded else "")
                )
        # Scores have an error of a few units of roundoff of their size, and so have P and the terms that cancel in J.
        largest = float(normaliser[..., 0].abs().max())
        if self.dtype == torch.float64 and reference is None:  # elsewhere a reference or moved tokens show cancellation
            largest = max(largest, _size_of_terms(a, x, q, k))
        self.own_error = 4 * self.roundoff * largest
        without_reference = self.dtype == torch.float64 or (product_dtype is not None and not self.rounded)
        if self.own_error >= 1 and without_reference:
            raise InputError(
                f"expected scores with correct digits in {product_dtype or self.dtype}, got scores or terms of "
                f"{largest:.1e}, whose rounding errors exceed 1; use smaller tokens or weights"
            )
        self.linearised: backend.FusedLinearisation | blockwise.Linearisation
        if reason is None:
            self.linearised = backend.FusedLinearisation(
                q, k, v, o, normaliser, pattern, rows, float32_output=self.rounded, split=not self.rounded
            )
        else:
            self.linearised = blockwise.Linearisation(q, k, v, o, normaliser, pattern, rows, kept)
        self.w_in = torch.cat([w.detach() for w in (a.wq, a.wk, a.wv)])
        self.w_out = None if a.wo is None else a.wo.detach()
        self.output_gram: ScaledGram | None = None  # formed when it is needed
        self.dense_products: DenseProducts | None = None
        self.has_gram = _has_gram(self.dtype, product_dtype)
        if kept is not None and x.device.type == "cpu" and isinstance(self.linearised, blockwise.Linearisation):
            self.dense_products = DenseProducts(self.linearised, self.w_in, self.w_out, self.rotary)
            self.has_gram = self.dense_products.gains_by_gram(self.dtype)
        memory = estimate_memory(a, self.n, self.dtype, product_dtype, q.shape[0], fused=reason is None)
        self.workspace, self.held = memory.workspace, memory.held
        self.reference_itemsize, self.reference_bytes = memory.reference_itemsize, memory.reference_bytes

    @cached_property
    def image(self) -> Tensor:
        """The output f(X), of shape (batch…, n, d_out)."""
        with torch.no_grad():  # by another pass: the values that J is made of are shifted
            return self.attention(self.x, self.padding)

    @torch.no_grad()
    def matvec(self, v: Tensor) -> Tensor:
        """Compute J v: (batch…, n·d) → (batch…, n·d_out)."""
        e = v.reshape(-1, self.n, self.d)
        if self.dense_products is not None:
            return self.dense_products.forward(e).reshape(*self.batch, -1)
        do = self._tangent(e)
        return (do if self.w_out is None else do @ self.w_out.T).reshape(*self.batch, -1)

    @torch.no_grad()
    def rmatvec(self, u: Tensor) -> Tensor:
        """Compute Jᵀ u: (batch…, n·d_out) → (batch…, n·d)."""
        g = u.reshape(-1, self.n, self.d_out)
        if self.dense_products is not None:
            return self.dense_products.adjoint(g).reshape(*self.batch, -1)
        return self._cotangent(g if self.w_out is None else g @ self.w_out).reshape(*self.batch, -1)

    @torch.no_grad()
    def gram(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute JᵀJ v (batch…, n·d) up to a factor (batch…); see `LinearOperator.gram`."""
        e = v.reshape(-1, self.n, self.d)
        if self.dense_products is not None:
            image, factor = self.dense_products.gram(e)
        else:
            do, factor = normalised(self._tangent(e))
            if self.w_out is not None:
                if self.output_gram is None:
                    self.output_gram = scaled_gram(self.w_out.T)
                do, factor = do @ self.output_gram.matrix, self.output_gram.size * factor
            image = self._cotangent(do)
        return image.reshape(*self.batch, -1), factor.reshape(self.batch)

    def _tangent(self, e: Tensor) -> Tensor:
        """Compute the tangent (b, n, h·w) of the heads, joined, along tokens e (b, n, d)."""
        dq, dk, dv = self._heads(e @ self.w_in.T)
        if self.rotary is not None:
            dq, dk = self.rotary(dq), self.rotary(dk)
        if self.rounded:
            (dq, dk, dv), exponent = _scaled_for_half(dq, dk, dv)
        do = self.linearised.jvp(dq, dk, dv).transpose(1, 2).flatten(2)
        return do.ldexp(exponent[..., 0]) if self.rounded else do

    def _cotangent(self, g: Tensor) -> Tensor:
        """Compute the cotangent (b, n, d) of the tokens for one of the heads, joined, (b, n, h·w)."""
        g = g.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if not self.rounded:
            return self._to_tokens(*self.linearised.vjp(g))
        (g,), exponent = _scaled_for_half(g)
        return self._to_tokens(*self.linearised.vjp(g)).ldexp(exponent[..., 0])

    @torch.no_grad()
    def gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """Compute ∇_X ⟨u, J(X) v⟩.

        At a simple σ₁ with its singular vectors u and v this is ∇_X σ₁. The projections are affine in X, so that the
        second derivative is that of attention alone.

        Args:
            u: output vectors (batch…, n·d_out).
            v: input vectors (batch…, n·d).

        Returns:
            The gradient, (batch…, n, d).
        """
        g = u.reshape(-1, self.n, self.d_out)
        g = (g if self.w_out is None else g @ self.w_out).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        dq, dk, dv = self._heads(v.reshape(-1, self.n, self.d) @ self.w_in.T)
        if self.rotary is not None:
            dq, dk = self.rotary(dq), self.rotary(dk)
        return self._to_tokens(*self.linearised.hvp(dq, dk, dv, g)).reshape(*self.batch, self.n, self.d)

    def precise(self) -> AttentionJacobian | None:
        """Return the same derivative in float64, or, if products are in half precision, without their rounding."""
        if self.reference is not None:
            return self.reference
        if self.rounded:
            return AttentionJacobian(self.attention, self.x, self.padding, self.dtype)
        if self.product_dtype is not None:
            return self if self.dtype == torch.float64 else None
        if self.dtype == torch.float64:
            return self
        return AttentionJacobian(self.attention.converted(dtype=torch.float64), self.x.double(), self.padding)

    def perturbed(self) -> LinearOperator | None:
        """Return the derivative at tokens moved by a unit of rounding, where there is no reference in float64."""
        if self.product_dtype is None or self.rounded or self.dtype == torch.float64:
            return None
        return MovedJacobian(self)

    def blocks(self) -> Iterator[blockwise.Block]:
        """Yield the probabilities in blocks of queries, stored or recomputed."""
        if not isinstance(self.linearised, blockwise.Linearisation):
            raise RuntimeError("expected attention in blocks of queries, got kernels, which form no probabilities")
        yield from self.linearised.blocks()

    def _to_tokens(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Apply the transpose of the projections to cotangents of (q, k, v), with the result (b, n, d)."""
        if self.rotary is not None:
            dq, dk = self.rotary.transpose(dq), self.rotary.transpose(dk)
        return torch.cat([t.transpose(1, 2).flatten(2) for t in (dq, dk, dv)], -1) @ self.w_in

    def _heads(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split projections (b, n, ·) into those of q, k and v, with the heads as an axis."""
        q, k, v = (
            part.unflatten(-1, (h, -1)).transpose(1, 2)
            for part, h in zip(torch.split(t, self.widths, -1), self.head_counts, strict=True)
        )
        return q, k, v


@torch.no_grad()
def _size_of_terms(a: SelfAttention, x: Tensor, q: Tensor, k: Tensor) -> float:
    """Return a size of the scores before anything cancels in them, in q or in k: their rounding is relative to it.

    A common part of the tokens may cancel in the projections, and then q has far fewer digits than its size suggests.
    """
    of_q, of_k = (
        _sizes(x, weight, bias, heads).reshape(-1, heads)
        for weight, bias, heads in ((a.wq, a.bq, a.heads), (a.wk, a.bk, a.kv_heads))
    )
    norm_q, norm_k = (t.norm(dim=-1).transpose(1, 2).reshape(-1, t.shape[1]) for t in (q, k))
    size_q, size_k, norm_q, norm_k = (t.amax(0) for t in (of_q, of_k, norm_q, norm_k))  # of each head
    shared = a.heads // a.kv_heads
    terms = size_q * norm_k.repeat_interleave(shared) + norm_q * size_k.repeat_interleave(shared)
    size: float = abs(a.scale) * float(terms.max())
    return size


def _sizes(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """Return the root (…, h) of the sum of squares of all terms in the projection of a token to a head."""
    peak_x, peak_w = (max(float(t.abs().max()), torch.finfo(t.dtype).tiny) for t in (x, weight))  # no square overflows
    columns = (weight / peak_w).square().unflatten(0, (heads, -1)).sum(1)  # (h, d)
    size: Tensor = peak_x * (peak_w * ((x / peak_x).square() @ columns.T).sqrt())
    return size if bias is None else size + bias.unflatten(0, (heads, -1)).norm(dim=-1)


class MovedJacobian(LinearOperator):
    """The derivative at tokens moved by a unit of rounding, which holds nothing between products.

    f is the sum of its heads. Each product makes the derivative of one head after the other, so that the few products
    that measure rounding fit in the workspace of the others.
    """

    def __init__(self, jacobian: AttentionJacobian) -> None:
        """Take the derivative at the tokens themselves."""
        super().__init__(jacobian.shape, dtype=jacobian.dtype, device=jacobian.device, batch=jacobian.batch)
        self.jacobian = jacobian

    def _heads(self) -> Iterator[AttentionJacobian]:
        at = self.jacobian
        x = moved(at.x, at.roundoff)
        for index in range(at.heads):
            yield AttentionJacobian(at.attention.head(index), x, at.padding, at.product_dtype)

    def matvec(self, v: Tensor) -> Tensor:
        """Compute J v: (batch…, n·d) → (batch…, n·d_out)."""
        if self.jacobian.w_out is None:  # heads are concatenated
            parts = [head.matvec(v).unflatten(-1, (self.jacobian.n, -1)) for head in self._heads()]
            return torch.cat(parts, -1).flatten(-2)
        out = v.new_zeros(*self.batch, self.shape[0])
        for head in self._heads():
            out += head.matvec(v)
        return out

    def rmatvec(self, u: Tensor) -> Tensor:
        """Compute Jᵀ u: (batch…, n·d_out) → (batch…, n·d)."""
        at, out = self.jacobian, u.new_zeros(*self.batch, self.shape[1])
        for index, head in enumerate(self._heads()):
            part = u
            if at.w_out is None:
                part = u.unflatten(-1, (at.n, at.heads, -1))[..., index, :].flatten(-2)
            out += head.rmatvec(part)
        return out


def jacobian_with_reference(
    attention: SelfAttention, x: Tensor, padding: Tensor | None = None, product_dtype: torch.dtype | None = None
) -> AttentionJacobian:
    """Return D_X f for a solve that will compare it with its float64 reference.

    Where the probabilities are stored, in float32 on a CPU, both are made of one evaluation in float64. This is faster
    than two, and the rounding of float32 that the solve measures is several times smaller where scores are large.

    Args:
        attention: the layer f.
        x: tokens (n, d), or (b, n, d) for a batch of operators.
        padding: True where the token is real, (n) or (b, n).
        product_dtype: as in `SelfAttention.jacobian`.

    Returns:
        The operator.
    """
    sequences = x.shape[:-2].numel()
    is_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and product_dtype is None
    if not is_cpu or not stored_probability_bytes(attention, x.shape[-2], sequences, 8, fused=False):
        return attention.jacobian(x, padding, product_dtype)
    attention.check_tokens(x, padding)
    reference = AttentionJacobian(attention.converted(dtype=torch.float64), x.double(), padding)
    return AttentionJacobian(attention, x, padding, reference=reference)


def _has_gram(dtype: torch.dtype, product_dtype: torch.dtype | None) -> bool:
    """Return whether solves use `gram`: in float64, and beside half precision, only a few products are made."""
    return dtype == torch.float32 and product_dtype in (None, dtype)


def _scaled_for_half(*tensors: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return tensors (b, h, n, ·) times 2^−exponent, and the exponents (b, 1, 1, 1).

    The largest entry of each sequence becomes LARGEST_HALF_ENTRY to twice that. A product does not depend on the size
    of its vectors then, and float16, with its few exponents, neither overflows nor underflows.
    """
    largest = torch.stack([t.abs().amax((1, 2, 3)) for t in tensors]).amax(0)
    exponent = (torch.frexp(largest / LARGEST_HALF_ENTRY).exponent - 1)[:, None, None, None]
    return [t.ldexp(-exponent) for t in tensors], exponent


@torch.no_grad()
def abstract_jacobian(attention: SelfAttention, n: int, product_dtype: torch.dtype | None = None) -> LinearOperator:
    """Return the shape, dtype and memory of D_X f at n tokens, as an operator without products.

    Nothing of length n is computed or allocated. `howsmooth.spectral` estimates the memory of a solve from it.

    Args:
        attention: the layer f; half precision is measured in float32.
        n: number of tokens.
        product_dtype: as in `SelfAttention.jacobian`.

    Returns:
        An operator whose `matvec` and `rmatvec` are not implemented.

    Example:
        >>> from howsmooth.attention import SelfAttention
        >>> abstract_jacobian(SelfAttention(*(torch.ones(4, 4) for _ in range(3))), 1_000_000).shape
        (4000000, 4000000)
    """
    dtype = attention.dtype if attention.dtype.itemsize >= 4 else torch.float32
    a = attention.converted(dtype=dtype)
    q, k, v = (t[None].to(product_dtype or dtype) for t in a.project(a.wq.new_zeros(1, a.d)))
    fused = backend.unsupported_reason(q, k, v, pattern_of(q, k, v, **a.pattern())) is None
    memory = estimate_memory(a, n, dtype, product_dtype, fused=fused)
    operator = LinearOperator(
        (n * a.d_out, n * a.d), dtype=dtype, device=a.device, workspace=memory.workspace, held=memory.held
    )
    operator.reference_itemsize, operator.reference_bytes = memory.reference_itemsize, memory.reference_bytes
    operator.roundoff = max(operator.roundoff, torch.finfo(product_dtype or dtype).eps)
    operator.has_gram = _has_gram(dtype, product_dtype)
    return operator


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a derivative takes, in the terms of `LinearOperator`.

    Attributes:
        workspace: allocated during one product.
        held: stored between products.
        reference_bytes: stored by the more precise reference.
        reference_itemsize: of one number in that reference; 0 if there is none.
    """

    workspace: int
    held: int
    reference_bytes: int
    reference_itemsize: int


def stored_probability_bytes(attention: SelfAttention, n: int, sequences: int, itemsize: int, fused: bool) -> int:
    """Return the bytes of the probabilities that are stored between products; 0 if they are not."""
    # With a soft cap, its tanh and its slope are stored too.
    count = sequences * attention.heads * n * n * (1 if attention.softcap is None else 3)
    return count * itemsize if not fused and count <= MAX_STORED_PROBABILITIES else 0


def estimate_memory(
    attention: SelfAttention,
    n: int,
    dtype: torch.dtype,
    product_dtype: torch.dtype | None = None,
    sequences: int = 1,
    fused: bool = False,
) -> MemoryEstimate:
    """Estimate the memory of the derivative.

    Args:
        attention: the layer.
        n: number of tokens of each sequence.
        dtype: dtype of vectors.
        product_dtype: as in `SelfAttention.jacobian`.
        sequences: number of sequences.
        fused: whether the kernels support it.

    Returns:
        The estimate.

    Example:
        >>> from howsmooth.attention import SelfAttention
        >>> layer = SelfAttention(*(torch.ones(4, 4) for _ in range(3)))
        >>> estimate_memory(layer, 2**20, torch.float32, torch.float32, fused=True).reference_bytes
        0
    """
    rounded = product_dtype is not None and product_dtype != dtype
    without_reference = dtype == torch.float64 or (product_dtype is not None and not rounded)
    reference_itemsize = 0 if without_reference else 4 if rounded else 8
    itemsize, single = (product_dtype or dtype).itemsize, dtype.itemsize
    entries = len(attention.wq) + len(attention.wk) + len(attention.wv)
    projected, weights = sequences * n * entries, entries * attention.d * single

    def held(itemsize: int, fused: bool) -> int:
        # The kernels need q, k, v and the output, in float32 also as pairs of float16; blocks have copies of some.
        # Small layers store their probabilities, a further copy, and the transpose and Gram matrix of the output
        # projection.
        tensors = itemsize * projected * (3 if itemsize == 4 else 3 / 2) if fused else itemsize * 2 * projected
        stored = stored_probability_bytes(attention, n, sequences, itemsize, fused)
        if stored:
            inner = attention.heads * len(attention.wv) // attention.kv_heads
            stored += itemsize * (projected + (0 if attention.wo is None else inner * (attention.d_out + inner)))
        return int(tensors) + weights * max(itemsize, 4) // single + stored

    if fused and reference_itemsize < 8:
        # Scores are never stored. In a JVP live the projections of the input, their pairs of float16, and the output of
        # all heads with a copy; in a VJP the cotangents, once by head and once joined, and that output, twice.
        outputs = sequences * n * attention.heads * len(attention.wv) // attention.kv_heads
        workspace = single * (2 * projected + 3 * outputs)
    else:
        # Three blocks and a few tensors of the size of q, k and v are live at once. The rest, found by measurement, is
        # for allocators and matrix libraries.
        masked = attention.causal or attention.window is not None
        rows = blockwise.block_rows(sequences, attention.heads, n, n, masked)
        workspace = single * (7 * rows * sequences * attention.heads * n + 6 * projected)
    return MemoryEstimate(
        workspace,
        held(itemsize, fused),
        held(reference_itemsize, fused and reference_itemsize < 8) if reference_itemsize else 0,
        reference_itemsize,
    )
