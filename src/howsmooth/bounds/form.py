"""A layer as its bounds see it: norms of small matrices, one number per head.

Of head h the score of query i and key j is ⟨A x_i + c, x_j⟩ up to what softmax drops, A = scale·KᵀQ and
c = scale·Kᵀb_q. A has rank k at most: with Kᵀ = U_K R_K and Qᵀ = U_Q R_Q (thin QR), its singular values are those of
scale·R_K R_Qᵀ (k × k), its eigenvalues those of scale·Q Kᵀ (and zero), and those of its symmetric part come from the
QR of [Kᵀ Qᵀ] (2k × 2k). Nothing of size d × d is formed.

What is not ⟨A x_i + c, x_j⟩ enters as follows.

    rotary      A and c depend on j − i: ‖A‖ := scale‖Q‖‖K‖ and |c| := scale‖K‖|b_q| hold for each of them. The key bias
                is no longer the same for all keys of a row: it adds ⟨c_k, x_i⟩ with |c_k| ≤ scale‖Q‖|b_k|.
    soft cap    slopes lie in [0, 1], and scores in a row differ by no more than before, nor by more than 2·cap. What is
                constant along a row is not dropped any more: the key bias counts as above.
    offsets     added to the scores; only their oscillation along a row matters, and only to bounds free of n.
    window      a key is seen by `reach` queries at most, which takes the place of n.

References in comments are to the proofs in docs/bounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.pattern import Pattern
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.conditions import check_radius, check_weights
from howsmooth.bounds.norms import top_value
from howsmooth.errors import InputError


@dataclass(frozen=True)
class Slopes:
    """By how much scores can change within a ball of radius R, one number per head (h,)."""

    query: Tensor  # R·max|∂s_ij/∂x_i|: a = ‖A‖R² for plain scores
    key: Tensor  # R·max|∂s_ij/∂x_j|: b = R(‖A‖R + |c|)
    spread: Tensor  # half of the largest difference of two scores in a row, offsets aside; b for plain scores


class LayerForm:
    """The quantities of one layer that bounds are made of, each computed once, in float64 on the CPU.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> form = LayerForm(SelfAttention(2 * eye, eye, eye, scale=1.0))
    >>> form.score_norm, form.gamma(0)
    (tensor([2.], dtype=torch.float64), 0.25)
    """

    def __init__(self, f: SelfAttention):
        if not isinstance(f, SelfAttention):
            raise InputError(f"expected a SelfAttention, got {type(f).__name__}; bounds need a layer's weights")
        check_weights(f)
        self.f = f
        self.d, self.heads, self.groups = f.d, f.heads, f.heads // f.kv_heads
        with torch.no_grad():
            moved = f.to(device="cpu", dtype=torch.float64)
            self.wq = moved.wq.unflatten(0, (f.heads, -1))  # (h, k, d)
            self.wk = moved.wk.unflatten(0, (f.kv_heads, -1))  # (hkv, k, d)
            self.wv = moved.wv.unflatten(0, (f.kv_heads, -1))  # (hkv, w, d)
            self.wo = None if f.wo is None else moved.wo.unflatten(1, (f.heads, -1)).movedim(1, 0)  # (h, d_out, w)
            self.bq = None if f.bq is None else moved.bq.unflatten(0, (f.heads, -1))  # (h, k)
            self.bk = None if f.bk is None else moved.bk.unflatten(0, (f.kv_heads, -1))  # (hkv, k)
        self.scale = abs(f.scale)

    # Traits, by the names that refusals use.

    @property
    def causal(self) -> bool:
        return self.f.causal

    @property
    def positional(self) -> bool:
        """Whether A depends on the places i and j."""
        return self.f.rotary is not None

    @property
    def biased(self) -> bool:
        """Whether a bias enters the derivative."""
        return bool((self.query_offset > 0).any() or (self.key_offset > 0).any())

    def reach(self, n: int) -> int:
        """The most queries that can see one key among n tokens."""
        if self.f.window is None:
            return n
        return min(n, self.f.window if self.causal else 2 * self.f.window - 1)

    def shared(self, per_key_head: Tensor) -> Tensor:
        """(hkv, …) → (h, …)."""
        return per_key_head if self.groups == 1 else per_key_head.repeat_interleave(self.groups, 0)

    # Norms, one per head.

    @cached_property
    def query_factor(self) -> Tensor:
        """R_Q with Qᵀ = U_Q R_Q, (h, min(k, d), k)."""
        return torch.linalg.qr(self.wq.mT, mode="r").R

    @cached_property
    def key_factor(self) -> Tensor:
        """R_K with Kᵀ = U_K R_K, (hkv, min(k, d), k)."""
        return torch.linalg.qr(self.wk.mT, mode="r").R

    @cached_property
    def value_factor(self) -> Tensor:
        """R_V with Vᵀ = U_V R_V, (hkv, min(w, d), w)."""
        return torch.linalg.qr(self.wv.mT, mode="r").R

    @cached_property
    def query_norm(self) -> Tensor:
        return top_value(self.query_factor)

    @cached_property
    def key_norm(self) -> Tensor:
        return self.shared(top_value(self.key_factor))

    @cached_property
    def rotary_gain(self) -> float:
        """The largest stretch of a rotation: 1, unless the tables carry a scale."""
        if self.f.rotary is None:
            return 1.0
        cos, sin = (t.double().cpu() for t in (self.f.rotary.cos, self.f.rotary.sin))
        first, second = (
            (slice(0, None, 2), slice(1, None, 2))
            if self.f.rotary.interleaved
            else (slice(0, cos.shape[1] // 2), slice(cos.shape[1] // 2, None))
        )
        turns = torch.stack(
            [torch.stack([cos[:, first], -sin[:, first]], -1), torch.stack([sin[:, second], cos[:, second]], -1)], -2
        )
        return max(1.0, float(top_value(turns).max()))  # channels that are not turned keep their length

    @cached_property
    def score_norm(self) -> Tensor:
        """‖A‖ (h,); the bound scale‖Q‖‖K‖ on all ‖A_ij‖ where positions are rotary."""
        if self.positional:
            return self.scale * self.rotary_gain**2 * self.query_norm * self.key_norm
        return self.scale * top_value(self.shared(self.key_factor) @ self.query_factor.mT)

    @cached_property
    def query_offset(self) -> Tensor:
        """|c| (h,): what the query bias adds to A x."""
        if self.bq is None:
            return torch.zeros(self.heads, dtype=torch.float64)
        if self.positional:
            return self.scale * self.rotary_gain**2 * self.key_norm * self.bq.norm(dim=-1)
        return self.scale * torch.linalg.vector_norm(self.shared(self.wk).mT @ self.bq.unsqueeze(-1), dim=(-2, -1))

    @cached_property
    def key_offset(self) -> Tensor:
        """|c_k| (h,): what the key bias adds to Aᵀx where softmax does not drop it, else zero."""
        if self.bk is None or not (self.positional or self.f.softcap is not None):
            return torch.zeros(self.heads, dtype=torch.float64)
        bk = self.shared(self.bk)
        if self.positional:
            return self.scale * self.rotary_gain**2 * self.query_norm * bk.norm(dim=-1)
        return self.scale * torch.linalg.vector_norm(self.wq.mT @ bk.unsqueeze(-1), dim=(-2, -1))

    @cached_property
    def value_norm(self) -> Tensor:
        """‖W_h V_h‖ (h,), or ‖V_h‖ without an output projection."""
        values = self.shared(self.value_factor)
        return top_value(values) if self.wo is None else top_value(self.out_factor @ values.mT)

    @cached_property
    def out_factor(self) -> Tensor:
        """R with W_h = U R, (h, min(d_out, w), w)."""
        return torch.linalg.qr(self.wo, mode="r").R

    @cached_property
    def raw_value_norm(self) -> Tensor:
        """‖V_h‖ (h,)."""
        return self.shared(top_value(self.value_factor))

    @cached_property
    def out_norm(self) -> float:
        """‖[W_1 … W_H]‖, 1 without an output projection."""
        return 1.0 if self.wo is None else float(top_value(self.f.wo.detach().double().cpu(), proven=True))

    # Scores.

    def slopes(self, radius: float) -> Slopes:
        """How much scores can change on the ball of this radius."""
        check_radius(radius)
        a = radius * self.score_norm
        key = radius * (a + self.query_offset)
        spread = key
        if self.positional and self.bk is not None:
            q_norm = self.query_norm * radius + (0.0 if self.bq is None else self.bq.norm(dim=-1))
            bk_norm = self.shared(self.bk).norm(dim=-1)
            spread = spread + self.scale * self.rotary_gain**2 * q_norm * bk_norm
        if self.f.softcap is not None:
            spread = spread.clamp(max=self.f.softcap)
        return Slopes(radius * (a + self.key_offset), key, spread)

    def oscillation(self, n: int) -> Tensor:
        """max_i (max_j β_ij − min_j β_ij) over the visible j among n tokens, (h,): zero without offsets."""
        bias, hidden = offsets(self.f, n)
        hidden = hidden | torch.isneginf(bias)
        highest = bias.masked_fill(hidden, -torch.inf).amax(-1)
        lowest = bias.masked_fill(hidden, torch.inf).amin(-1)
        return (highest - lowest).clamp(min=0).amax(-1).expand(self.heads)

    def hides(self, n: int) -> bool:
        """Whether offsets hide keys that the mask would show, by a score of −∞."""
        bias, hidden = offsets(self.f, n)
        return bool((torch.isneginf(bias) & ~hidden).any())

    # Spectra of A, one head at a time.

    def symmetric_extremes(self, head: int) -> tuple[float, float]:
        """The least and the greatest eigenvalue of (A + Aᵀ)/2 over all of R^d."""
        low, high = self.extreme_pairs[0][head].tolist()
        inside = 2 * self.wq.shape[1] < self.d
        return (min(low, 0.0), max(high, 0.0)) if inside else (low, high)

    @cached_property
    def extreme_pairs(self) -> tuple[Tensor, Tensor]:
        """Least and greatest eigenvalue (h, 2) of (A + Aᵀ)/2 on the span of Kᵀ and Qᵀ, with unit vectors (h, 2, d).

        With B = [Kᵀ Qᵀ] = U R and A + Aᵀ = B M Bᵀ, an eigenvector v of R M Rᵀ stands for u = U v = B M Rᵀ v/λ: no U.
        """
        self.one_form("the spectrum of A")
        k = self.wq.shape[1]
        both = torch.cat([self.shared(self.wk), self.wq], 1)  # Bᵀ (h, 2k, d)
        r = torch.linalg.qr(both.mT, mode="r").R
        swapped = torch.cat([r[..., k:], r[..., :k]], -1)  # R M
        values, vectors = torch.linalg.eigh(self.f.scale / 2 * swapped @ r.mT)
        u = (swapped.mT @ vectors[..., [0, -1]]).mT @ both
        size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        # Where λ = 0 every direction will do: that of A = 0, or none that is worse than Kᵀ's first.
        spare = both[:, :1] / torch.linalg.vector_norm(both[:, :1], dim=-1, keepdim=True).clamp(min=1e-300)
        return values[:, [0, -1]], torch.where(size > 0, u / size, spare)

    def real_eigenpairs(self, head: int) -> list[tuple[float, Tensor]]:
        """The real eigenvalues of A that are not zero, with unit right eigenvectors (d,), A u = λ u, ascending."""
        self.one_form("the spectrum of A")
        wk, wq = self.wk[head // self.groups], self.wq[head]
        values, vectors = torch.linalg.eig(self.f.scale * wq @ wk.mT)
        size = float(values.abs().max())
        pairs = []
        for value, vector in zip(values, vectors.mT, strict=True):
            # A real eigenvalue of a real matrix comes out exactly real: LAPACK keeps conjugate pairs apart.
            if value.imag == 0 and abs(float(value.real)) > 1e-13 * size:
                u = wk.mT @ vector.real
                if float(u.norm()) > 0:
                    pairs.append((float(value.real), u / u.norm()))
        return sorted(pairs, key=lambda pair: pair[0])

    def gamma(self, head: int, symmetric: bool = False, bound: str = "γ") -> float:
        """γ = max(−γ_min, γ_max/8) over the real eigenvalues of A, or over those of (A + Aᵀ)/2, where it is no smaller.

        Refused, in the name of `bound`, where A has no real eigenvalue.
        """
        self.one_form(bound)
        if symmetric:
            low, high = self.symmetric_extremes(head)
            return max(-low, high / 8)
        wk, wq = self.wk[head // self.groups], self.wq[head]
        thin = len(wq) < self.d  # then A has the eigenvalues of QKᵀ, and zero
        values = torch.linalg.eigvals(self.f.scale * (wq @ wk.mT if thin else wk.mT @ wq))
        values = [*values[values.imag == 0].real.tolist(), *[0.0] * thin]
        if not values:
            raise Refused(
                bound,
                "a real eigenvalue of A",
                "none",
                "use the symmetric part: gamma(head, symmetric=True), or this_project.lower",
            )
        return max(-min(values), max(values) / 8)

    def one_form(self, bound: str) -> None:
        """Refuses layers whose scores are not ⟨A x_i + c, x_j⟩ with one A for all places."""
        if self.positional:
            raise Refused(
                bound,
                "scores with one A for all places",
                "rotary positions (A depends on j − i)",
                "take a bound that needs only ‖A‖, such as this_project.upper",
            )
        if self.f.softcap is not None:
            raise Refused(
                bound,
                "scores that are bilinear in the tokens",
                f"a soft cap of {self.f.softcap:g}",
                "take a bound that needs only ‖A‖, such as this_project.upper",
            )
        if self.f.score_bias is not None:
            raise Refused(
                bound,
                "scores without offsets",
                "a score_bias",
                "take a bound that needs only ‖A‖, such as this_project.upper",
            )

    # Heads put together.

    def over_heads(self, logs_with_out: Tensor, logs_raw: Tensor) -> float:
        """Log of the smaller of Σ_h bound(A_h, W_h V_h) and ‖[W_1 … W_H]‖ (Σ_h bound(A_h, V_h)²)^½, from logs (h,)."""
        summed = float(torch.logsumexp(logs_with_out, 0))
        if self.heads == 1:  # ‖WV‖ ≤ ‖W‖‖V‖
            return summed
        stacked = math.log(self.out_norm) if self.out_norm > 0 else -math.inf
        return min(summed, stacked + float(torch.logsumexp(2 * logs_raw, 0)) / 2)


def form_of(f: SelfAttention | LayerForm) -> LayerForm:
    """The form of a layer; one that is already made is used again."""
    return f if isinstance(f, LayerForm) else LayerForm(f)


def offsets(f: SelfAttention, n: int) -> tuple[Tensor, Tensor]:
    """β (h or 1, n, n), and which pairs the mask hides (n, n); both of one pair alone if there are no offsets."""
    if f.score_bias is None:
        return torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.bool)
    pattern = Pattern(1.0, f.causal, f.window, None, f.score_bias)
    i, j = torch.arange(n).unsqueeze(1), torch.arange(n).unsqueeze(0)
    bias = pattern.bias(i.to(f.device), j.to(f.device), torch.float64).cpu()
    bias = bias.reshape((1,) * (3 - bias.dim()) + bias.shape)
    if isinstance(f.score_bias, Tensor) and tuple(bias.shape[-2:]) != (n, n):
        raise InputError(f"expected a score_bias table of at least {n} × {n}, got {tuple(f.score_bias.shape)}")
    seen = pattern.visible(i, j)
    return bias.expand(-1, n, n), torch.zeros(n, n, dtype=torch.bool) if seen is None else ~seen
