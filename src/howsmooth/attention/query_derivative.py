"""What each output owes to its own token alone: ∂₁G(x_i, μ), the tokens that are looked at held fixed.

An attention layer is x_i ↦ G(x_i, μ), μ the tokens that x_i sees. Moving x_i as the one that looks, and not as one that
is looked at, moves its query. With the projections q = Qx, k = Kx, v = Vx of each head

    ∂₁G(x_i, μ) = Σ_h W_h F_i^h Q_h,    F_i^h = scale Σ_j P_ij (v_j − o_i) k_jᵀ

which without rotary positions is Σ_h W_h V_h C_i^h A_h. F is (w, k) for each head and token: all that is kept. With
rotary positions q and k are the turned ones, and x_i keeps its position; a soft cap multiplies P_ij by its slope.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention import blockwise
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator

# Numbers (rows, w, keys) held at once while factors are made: 32 MiB in float64.
_AT_ONCE = 1 << 22


class QueryDerivative(LinearOperator):
    """∂₁G(x_i, μ) for the tokens x (n, d) of one sequence: a batch of n operators (d_out, d), made in O(n) memory.

    `tokens` chooses some of them: the batch then has these members alone.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> own = QueryDerivative(SelfAttention(eye, eye, eye), torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
    >>> own.matvec(eye)[0]  # V C_1 A applied to the first axis: both tokens lie on it
    tensor([0.4450, 0.0000], dtype=torch.float64)
    """

    def __init__(
        self, attention: SelfAttention, x: Tensor, tokens: Tensor | None = None, *, factors: Tensor | None = None
    ):
        attention.check_tokens(x, None)
        if x.dim() != 2:
            raise InputError(f"expected tokens of one sequence (n, {attention.d}), got {tuple(x.shape)}")
        self.attention, self.x = attention, x
        self.tokens = torch.arange(len(x), device=x.device) if tokens is None else tokens
        self.factors, lost = query_factors(attention, x) if factors is None else (factors, 0.0)  # (n, h, w, k)
        super().__init__(
            (attention.d_out, attention.d),
            dtype=x.dtype,
            device=x.device,
            batch=(len(self.tokens),),
            held=self.factors.numel() * x.element_size(),
        )
        self.hidden = 4 * self.roundoff * lost

    @torch.no_grad()
    def matvec(self, v: Tensor) -> Tensor:
        """(n, d) → (n, d_out)."""
        a = self.attention
        dq = self._turn((v @ a.wq.T).unflatten(-1, (a.heads, -1)), transposed=False)
        do = (self.factors[self.tokens] @ dq.unsqueeze(-1)).squeeze(-1).flatten(-2)
        return do if a.wo is None else do @ a.wo.T

    @torch.no_grad()
    def rmatvec(self, u: Tensor) -> Tensor:
        """(n, d_out) → (n, d)."""
        a = self.attention
        g = (u if a.wo is None else u @ a.wo).unflatten(-1, (a.heads, -1))
        dq = (self.factors[self.tokens].mT @ g.unsqueeze(-1)).squeeze(-1)
        return self._turn(dq, transposed=True).flatten(-2) @ a.wq

    def at(self, tokens: Tensor) -> QueryDerivative:
        """The same for some of the tokens; what was computed is kept."""
        chosen = QueryDerivative(self.attention, self.x, tokens, factors=self.factors)
        chosen.hidden = self.hidden
        return chosen

    @torch.no_grad()
    def cores(self) -> Tensor:
        """The same matrices without the directions on which all of them vanish, (n, ≤ h·w, ≤ h·k).

        Singular values are those of ∂₁G(x_i, μ): the triangular factors of W and of Qᵀ stand for them. Of one head
        these matrices are as small as the head is wide.
        """
        a = self.attention
        left = torch.eye(a.d_out, dtype=self.dtype, device=self.device) if a.wo is None else a.wo
        left = _triangular(left)
        right = _triangular(a.wq.T).T  # (h·k, r)
        turned = right.T.expand(len(self.tokens), -1, -1).unflatten(-1, (a.heads, -1))  # (n, r, h, k)
        turned = self._turn(turned.transpose(0, 1), transposed=False)  # (r, n, h, k)
        inner = torch.einsum("nhwk,rnhk->nhwr", self.factors[self.tokens], turned).flatten(1, 2)
        return left @ inner

    def precise(self) -> QueryDerivative:
        """The same in float64."""
        if self.dtype == torch.float64:
            return self
        return QueryDerivative(self.attention.to(torch.float64), self.x.double(), self.tokens)

    def _turn(self, dq: Tensor, transposed: bool) -> Tensor:
        """Dq (…, n, h, k) of these tokens, turned by their positions."""
        rotary = self.attention.rotary
        if rotary is None:
            return dq
        whole = dq.new_zeros(*dq.shape[:-3], len(self.x), *dq.shape[-2:])
        whole[..., self.tokens, :, :] = dq
        turn = rotary.transpose if transposed else rotary.apply
        return turn(whole.transpose(-3, -2)).transpose(-3, -2)[..., self.tokens, :, :]


@torch.no_grad()
def query_factors(attention: SelfAttention, x: Tensor) -> tuple[Tensor, float]:
    """F_i^h = ∂o_i^h/∂q_i^h for x (n, d), as (n, h, w, k), and how many units of rounding may be in it, relatively.

    Scores come with an error of a few units of their size, and P with the same; keys and values with one of theirs,
    where F knows but their differences.
    """
    q, k, v = (t.unsqueeze(0) for t in attention.project(x))
    pattern = pattern_of(q, k, v, **attention.pattern())
    o, normaliser = blockwise.forward(q, k, v, pattern)
    for name, t in (("scores", normaliser[..., 0]), ("output", o)):
        if not torch.isfinite(t).all():
            raise InputError(f"expected finite {name}, got NaN or ∞; look at the tokens and weights of this layer")
    heads, shared = attention.heads, attention.heads // attention.kv_heads
    out, lost = x.new_zeros(len(x), heads, v.shape[-1], k.shape[-1]), 0.0
    plain = pattern.softcap is None
    k_size, v_size = (float(t.norm(dim=-1).max()) for t in (k, v))
    # Σ_j P_ij (v_j − o_i) = 0: keys may be seen from anywhere, and from their middle they are small.
    shifted = k - k.mean(-2, keepdim=True) if plain else k
    for block in blockwise.Linearisation(q, k, v, o, normaliser, pattern).blocks():
        weights = block.p if block.tanh is None else block.p * block.slope
        weights = blockwise.unfold(weights, heads)[0]  # (h, rows, keys)
        rows = max(1, _AT_ONCE // max(1, v.shape[-1] * weights.shape[-1]))
        for h in range(heads):
            keys, values = (t[0, h // shared, block.start : block.stop] for t in (shifted, v))
            for first in range(block.first, block.last, rows):
                last = min(first + rows, block.last)
                p = weights[h, first - block.first : last - block.first]
                # One product for all rows: (rows·w, keys) @ (keys, k). Centred first, so that nothing cancels.
                spread = (values.T - o[0, h, first:last].unsqueeze(-1)).mul_(p.unsqueeze(1))
                summed = (spread.flatten(0, 1) @ F.pad(keys, (0, 1), value=1.0)).unflatten(0, (-1, v.shape[-1]))
                out[first:last, h] = summed[..., :-1]
                if plain:  # what rounding of o_i leaves of that sum, times the mean of the keys
                    out[first:last, h] -= summed[..., -1:] * (p @ keys).unsqueeze(1)
                lost = max(lost, v_size * _deviation(p, keys, plain) + k_size * _deviation(p, values - values.mean(0)))
    size = float(out.flatten(2).norm(dim=-1).max()) / min(out.shape[2:]) ** 0.5 if lost else 1.0  # at most ‖F‖₂
    score = float(normaliser[..., 0].abs().max())
    return out.mul_(pattern.scale), score + (lost / size if size else 1 / torch.finfo(x.dtype).eps)


def _deviation(p: Tensor, t: Tensor, centred: bool = True) -> float:
    """(Σ_j p_j |t_j − t̄|²)^½ of the row p (rows, n) where that is largest, t (n, k); or around 0."""
    squares = p @ t.square().sum(-1, keepdim=True)
    if centred:
        squares = squares - (p @ t).square().sum(-1, keepdim=True)
    return float(squares.max().clamp_min(0).sqrt())


def _triangular(m: Tensor) -> Tensor:
    """R of m = QR where m is tall: it has the singular values of m, whatever stands to its right."""
    return torch.linalg.qr(m, mode="r").R if m.shape[0] > m.shape[1] else m
