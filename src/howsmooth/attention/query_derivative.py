"""The derivative of each output token in its own query: ∂₁G(x_i, μ), with keys and values fixed.

An attention layer is x_i ↦ G(x_i, μ), where μ are the tokens that x_i sees. Its derivative in the first argument moves
the query of x_i, but neither its key nor its value. With the projections q = Qx, k = Kx, v = Vx of each head

    ∂₁G(x_i, μ) = Σ_h W_h F_i^h Q_h,    F_i^h = scale Σ_j P_ij (v_j − o_i) k_jᵀ

which without rotary positions is Σ_h W_h V_h C_i^h A_h. Only F is stored, (w, k) for each head and token. With rotary
positions q and k are the rotated ones, and x_i keeps its position; a soft cap multiplies P_ij by its slope.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention import blockwise
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.errors import InputError
from howsmooth.spectral.operator import LinearOperator

# Entries of the largest temporary tensor (rows, w, keys) while factors are computed: 32 MiB in float64.
FACTOR_BLOCK_ENTRIES = 1 << 22


class QueryDerivative(LinearOperator):
    """∂₁G(x_i, μ) for the tokens of one sequence: a batch of n operators (d_out, d), in memory that is linear in n.

    Args:
        attention: the layer G.
        x: tokens (n, d).
        tokens: indices of some of them, to which the batch is restricted; all by default.
        factors: F for all tokens, (n, h, w, k), if already computed.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> derivative = QueryDerivative(SelfAttention(eye, eye, eye), x)
        >>> derivative.matvec(eye)[0]  # V C_1 A applied to the first axis, on which both tokens lie
        tensor([0.4450, 0.0000], dtype=torch.float64)
    """

    def __init__(
        self, attention: SelfAttention, x: Tensor, tokens: Tensor | None = None, *, factors: Tensor | None = None
    ) -> None:
        """Compute the factors F, unless they are given."""
        attention.check_tokens(x, None)
        if x.dim() != 2:
            raise InputError(f"expected tokens of one sequence (n, {attention.d}), got {tuple(x.shape)}; give one")
        self.attention, self.x = attention, x
        self.tokens = torch.arange(len(x), device=x.device) if tokens is None else tokens
        self.factors, error = query_factors(attention, x) if factors is None else (factors, 0.0)  # (n, h, w, k)
        super().__init__(
            (attention.d_out, attention.d),
            dtype=x.dtype,
            device=x.device,
            batch=(len(self.tokens),),
            held=self.factors.numel() * x.element_size(),
        )
        self.own_error = 4 * self.roundoff * error

    @torch.no_grad()
    def matvec(self, v: Tensor) -> Tensor:
        """Apply each operator: (n, d) → (n, d_out)."""
        a = self.attention
        dq = self.rotate((v @ a.wq.T).unflatten(-1, (a.heads, -1)))
        do = (self.factors[self.tokens] @ dq.unsqueeze(-1)).squeeze(-1).flatten(-2)
        return do if a.wo is None else do @ a.wo.T

    @torch.no_grad()
    def rmatvec(self, u: Tensor) -> Tensor:
        """Apply each transpose: (n, d_out) → (n, d)."""
        a = self.attention
        g = (u if a.wo is None else u @ a.wo).unflatten(-1, (a.heads, -1))
        dq = (self.factors[self.tokens].mT @ g.unsqueeze(-1)).squeeze(-1)
        return self.rotate(dq, transposed=True).flatten(-2) @ a.wq

    def at(self, tokens: Tensor) -> QueryDerivative:
        """Return the operators of some of the tokens, with the same factors."""
        chosen = QueryDerivative(self.attention, self.x, tokens, factors=self.factors)
        chosen.own_error = self.own_error
        return chosen

    @torch.no_grad()
    def cores(self) -> Tensor:
        """Return small matrices (n, ≤ h·w, ≤ h·k) with the singular values of ∂₁G(x_i, μ).

        W and Qᵀ are replaced by their triangular QR factors. For a single head the matrices have the size of the head.
        """
        a = self.attention
        left = torch.eye(a.d_out, dtype=self.dtype, device=self.device) if a.wo is None else a.wo
        left = _triangular(left)
        right = _triangular(a.wq.T)  # (r, h·k)
        rotated = right.expand(len(self.tokens), -1, -1).unflatten(-1, (a.heads, -1))  # (n, r, h, k)
        rotated = self.rotate(rotated.transpose(0, 1))  # (r, n, h, k)
        inner = torch.einsum("nhwk,rnhk->nhwr", self.factors[self.tokens], rotated).flatten(1, 2)
        return left @ inner

    def precise(self) -> QueryDerivative:
        """Return the same operators in float64."""
        if self.dtype == torch.float64:
            return self
        return QueryDerivative(self.attention.converted(dtype=torch.float64), self.x.double(), self.tokens)

    def rotate(self, dq: Tensor, *, transposed: bool = False) -> Tensor:
        """Rotate queries or keys (…, n, h, k) of these tokens by their positions, or apply the transpose."""
        rotary = self.attention.rotary
        if rotary is None:
            return dq
        whole = dq.new_zeros(*dq.shape[:-3], len(self.x), *dq.shape[-2:])
        whole[..., self.tokens, :, :] = dq
        rotate = rotary.transpose if transposed else rotary.forward
        return rotate(whole.transpose(-3, -2)).transpose(-3, -2)[..., self.tokens, :, :]


@torch.no_grad()
def query_factors(attention: SelfAttention, x: Tensor) -> tuple[Tensor, float]:
    """Compute F_i^h = ∂o_i^h/∂q_i^h and an estimate of its rounding error.

    Scores have an error of a few units of roundoff of their size, and so has P. Keys and values have an error relative
    to their size, while F depends only on their differences.

    Args:
        attention: the layer.
        x: tokens (n, d).

    Returns:
        The factors (n, h, w, k), and their relative error in units of roundoff.

    Raises:
        InputError: if scores or output are not finite.
    """
    q, k, v = (t.unsqueeze(0) for t in attention.project(x, centred=True))
    pattern = pattern_of(q, k, v, **attention.pattern())
    o, normaliser = blockwise.forward(q, k, v, pattern)
    for name, t in (("scores", normaliser[..., 0]), ("output", o)):
        if not torch.isfinite(t).all():
            raise InputError(f"expected finite {name}, got NaN or ∞; check the tokens and weights of this layer")
    heads, shared = attention.heads, attention.heads // attention.kv_heads
    out, error = x.new_zeros(len(x), heads, v.shape[-1], k.shape[-1]), 0.0
    plain = pattern.softcap is None
    k_size, v_size = (float(t.norm(dim=-1).max()) for t in (k, v))
    # Σ_j P_ij (v_j − o_i) = 0, so that keys may be shifted by a constant; after subtracting their mean they are small.
    shifted = k - k.mean(-2, keepdim=True) if plain else k
    for block in blockwise.Linearisation(q, k, v, o, normaliser, pattern).blocks():
        weights = block.p if block.tanh is None else block.p * block.slope
        weights = blockwise.unfold(weights, heads)[0]  # (h, rows, keys)
        rows = max(1, FACTOR_BLOCK_ENTRIES // max(1, v.shape[-1] * weights.shape[-1]))
        for h in range(heads):
            keys, values = (t[0, h // shared, block.start : block.stop] for t in (shifted, v))
            for first in range(block.first, block.last, rows):
                last = min(first + rows, block.last)
                p = weights[h, first - block.first : last - block.first]
                # One product for all rows: (rows·w, keys) @ (keys, k). Values are centred first, to avoid cancellation.
                spread = (values.T - o[0, h, first:last].unsqueeze(-1)).mul_(p.unsqueeze(1))
                summed = torch.unflatten(spread.flatten(0, 1) @ F.pad(keys, (0, 1), value=1.0), 0, (-1, v.shape[-1]))
                out[first:last, h] = summed[..., :-1]
                if plain:  # rounding of o_i leaves a small sum in place of 0: subtract it times the mean of the keys
                    out[first:last, h] -= summed[..., -1:] * (p @ keys).unsqueeze(1)
                error = max(
                    error, v_size * _deviation(p, keys, plain) + k_size * _deviation(p, values - values.mean(0))
                )
    size = float(out.flatten(2).norm(dim=-1).max()) / min(out.shape[2:]) ** 0.5 if error else 1.0  # at most ‖F‖₂
    score = float(normaliser[..., 0].abs().max())
    return out.mul_(pattern.scale), score + (error / size if size else 1 / torch.finfo(x.dtype).eps)


def _deviation(p: Tensor, t: Tensor, centred: bool = True) -> float:
    """Return the largest (Σ_j p_j |t_j − t̄|²)^½ of the rows p (rows, n), for t (n, k); with t̄ = 0 if not centred."""
    squares = p @ t.square().sum(-1, keepdim=True)
    if centred:
        squares = squares - (p @ t).square().sum(-1, keepdim=True)
    return float(squares.max().clamp_min(0).sqrt())


def _triangular(m: Tensor) -> Tensor:
    """Return R of m = QR if m is tall: for every matrix B, R B has the singular values of m B."""
    return torch.linalg.qr(m, mode="r")[1] if m.shape[0] > m.shape[1] else m
