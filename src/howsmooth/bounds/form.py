"""A layer as its bounds need it: norms of small matrices, one number per head.

The score of query i and key j in head h is `⟨A x_i + c, x_j⟩`, up to terms that softmax cancels, with `A = scale·KᵀQ`
and `c = scale·Kᵀb_q`. A has rank k at most. With `Kᵀ = U_K R_K` and `Qᵀ = U_Q R_Q` (thin QR), its singular values are
those of `scale·R_K R_Qᵀ` (k × k), its eigenvalues those of `scale·Q Kᵀ` (and zero), and those of its symmetric part
come from the QR of `[Kᵀ Qᵀ]` (2k × 2k). No matrix of size d × d is formed.

Scores of other forms enter as follows.

    rotary      A and c depend on j − i. ‖A‖ := scale‖Q‖‖K‖ and |c| := scale‖K‖|b_q| bound all of them. The key bias is
                no longer the same for all keys of a row: it adds ⟨c_k, x_i⟩ with |c_k| ≤ scale‖Q‖|b_k|.
    soft cap    slopes lie in [0, 1]. Scores in a row differ by no more than before, nor by more than 2·cap. Terms that
                are constant along a row no longer cancel: the key bias counts as above.
    offsets     are added to the scores; only their oscillation along a row matters, and only to bounds free of n.
    window      at most `max_queries_per_key(n)` queries attend to a key; this number replaces n.

The proofs are in docs/bounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.pattern import Pattern
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.conditions import check_radius, check_weights
from howsmooth.bounds.norms import spectral_norm
from howsmooth.errors import InputError


@dataclass(frozen=True)
class Slopes:
    """Bounds on the change of scores within the ball of radius R, one number per head, (h,) each.

    Attributes:
        query: R·max|∂s_ij/∂x_i|; a = ‖A‖R² for plain scores.
        key: R·max|∂s_ij/∂x_j|; b = R(‖A‖R + |c|) for plain scores.
        spread: half of the largest difference of two scores in a row, without offsets; b for plain scores.
    """

    query: Tensor
    key: Tensor
    spread: Tensor


class LayerForm:
    """The quantities of one layer that bounds are made of, each computed once, in float64 on the CPU.

    Args:
        f: the layer.

    Raises:
        InputError: if f is not a `SelfAttention`, or has weights above 10¹⁰⁰.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> form = LayerForm(SelfAttention(2 * eye, eye, eye, scale=1.0))
        >>> form.score_norm, form.gamma(0)
        (tensor([2.], dtype=torch.float64), 0.25)
    """

    def __init__(self, f: SelfAttention):
        """Copy the weights of the layer to float64 on the CPU."""
        if not isinstance(f, SelfAttention):
            raise InputError(f"expected a SelfAttention, got {type(f).__name__}; bounds need a layer's weights")
        check_weights(f)
        self.f = f
        self.d, self.heads, self.groups = f.d, f.heads, f.heads // f.kv_heads
        with torch.no_grad():
            copy = f.converted(device="cpu", dtype=torch.float64)
            self.wq = torch.unflatten(copy.wq, 0, (f.heads, -1))  # (h, k, d)
            self.wk = torch.unflatten(copy.wk, 0, (f.kv_heads, -1))  # (hkv, k, d)
            self.wv = torch.unflatten(copy.wv, 0, (f.kv_heads, -1))  # (hkv, w, d)
            wo, bq, bk = copy.wo, copy.bq, copy.bk
            self.wo = None if wo is None else torch.unflatten(wo, 1, (f.heads, -1)).movedim(1, 0)  # (h, d_out, w)
            self.bq = None if bq is None else torch.unflatten(bq, 0, (f.heads, -1))  # (h, k)
            self.bk = None if bk is None else torch.unflatten(bk, 0, (f.kv_heads, -1))  # (hkv, k)
        self.scale: float = abs(f.scale)

    @property
    def causal(self) -> bool:
        """Whether the layer has a causal mask."""
        return self.f.causal

    @property
    def is_rotary(self) -> bool:
        """Whether A depends on the positions i and j."""
        return self.f.rotary is not None

    @property
    def has_bias_in_scores(self) -> bool:
        """Whether a query or key bias enters the derivative."""
        return bool((self.query_offset > 0).any() or (self.key_offset > 0).any())

    def max_queries_per_key(self, n: int) -> int:
        """Return the largest number of queries that attend to one key among n tokens."""
        if self.f.window is None:
            return n
        return min(n, self.f.window if self.causal else 2 * self.f.window - 1)

    def repeat_kv(self, t: Tensor) -> Tensor:
        """Repeat a tensor over the query heads that share a key/value head, (hkv, …) → (h, …)."""
        return t if self.groups == 1 else t.repeat_interleave(self.groups, 0)

    # Norms, one per head.

    @cached_property
    def query_factor(self) -> Tensor:
        """R_Q with Qᵀ = U_Q R_Q, (h, min(k, d), k)."""
        return _triangular_factor(self.wq.mT)

    @cached_property
    def key_factor(self) -> Tensor:
        """R_K with Kᵀ = U_K R_K, (hkv, min(k, d), k)."""
        return _triangular_factor(self.wk.mT)

    @cached_property
    def value_factor(self) -> Tensor:
        """R_V with Vᵀ = U_V R_V, (hkv, min(w, d), w)."""
        return _triangular_factor(self.wv.mT)

    @cached_property
    def out_factor(self) -> Tensor:
        """R with W_h = U R, (h, min(d_out, w), w)."""
        if self.wo is None:
            raise InputError("expected a layer with an output projection, got one without; its factor is the identity")
        return _triangular_factor(self.wo)

    @cached_property
    def query_norm(self) -> Tensor:
        """‖Q‖ (h,)."""
        return spectral_norm(self.query_factor)

    @cached_property
    def key_norm(self) -> Tensor:
        """‖K‖ (h,)."""
        return self.repeat_kv(spectral_norm(self.key_factor))

    @cached_property
    def rotary_gain(self) -> float:
        """The largest norm of a rotation of the rotary table: 1, unless its entries carry a scale."""
        if self.f.rotary is None:
            return 1.0
        cos, sin = (t.double().cpu() for t in (self.f.rotary.cos, self.f.rotary.sin))
        first, second = (
            (slice(0, None, 2), slice(1, None, 2))
            if self.f.rotary.interleaved
            else (slice(0, cos.shape[1] // 2), slice(cos.shape[1] // 2, None))
        )
        rotations = torch.stack(
            [torch.stack([cos[:, first], -sin[:, first]], -1), torch.stack([sin[:, second], cos[:, second]], -1)], -2
        )
        return max(1.0, float(spectral_norm(rotations).max()))  # channels that are not rotated keep their length

    @cached_property
    def score_norm(self) -> Tensor:
        """‖A‖ (h,); with rotary positions the bound scale‖Q‖‖K‖ on all ‖A_ij‖."""
        if self.is_rotary:
            return self.scale * self.rotary_gain**2 * self.query_norm * self.key_norm
        return self.scale * spectral_norm(self.repeat_kv(self.key_factor) @ self.query_factor.mT)

    @cached_property
    def query_offset(self) -> Tensor:
        """|c| (h,): the norm of the vector that the query bias adds to A x."""
        if self.bq is None:
            return torch.zeros(self.heads, dtype=torch.float64)
        if self.is_rotary:
            bq_norm: Tensor = self.bq.norm(dim=-1)
            return self.scale * self.rotary_gain**2 * self.key_norm * bq_norm
        return self.scale * _vector_norms(self.repeat_kv(self.wk).mT @ self.bq.unsqueeze(-1))

    @cached_property
    def key_offset(self) -> Tensor:
        """|c_k| (h,): the norm of the vector that the key bias adds to Aᵀx; zero where softmax cancels it."""
        if self.bk is None or not (self.is_rotary or self.f.softcap is not None):
            return torch.zeros(self.heads, dtype=torch.float64)
        bk = self.repeat_kv(self.bk)
        if self.is_rotary:
            bk_norm: Tensor = bk.norm(dim=-1)
            return self.scale * self.rotary_gain**2 * self.query_norm * bk_norm
        return self.scale * _vector_norms(self.wq.mT @ bk.unsqueeze(-1))

    @cached_property
    def value_norm(self) -> Tensor:
        """‖W_h V_h‖ (h,), or ‖V_h‖ without an output projection."""
        values = self.repeat_kv(self.value_factor)
        return spectral_norm(values) if self.wo is None else spectral_norm(self.out_factor @ values.mT)

    @cached_property
    def raw_value_norm(self) -> Tensor:
        """‖V_h‖ (h,), before the output projection."""
        return self.repeat_kv(spectral_norm(self.value_factor))

    @cached_property
    def out_norm(self) -> float:
        """‖[W_1 … W_H]‖, 1 without an output projection."""
        wo = self.f.wo
        return 1.0 if wo is None else float(spectral_norm(wo.detach().double().cpu(), certified=True))

    # Scores.

    def slopes(self, radius: float) -> Slopes:
        """Bound the change of scores on the ball of this radius."""
        check_radius(radius)
        a = radius * self.score_norm
        key = radius * (a + self.query_offset)
        spread = key
        if self.is_rotary and self.bk is not None:
            q_norm = self.query_norm * radius + (0.0 if self.bq is None else self.bq.norm(dim=-1))
            bk_norm = self.repeat_kv(self.bk).norm(dim=-1)
            spread = spread + self.scale * self.rotary_gain**2 * q_norm * bk_norm
        if self.f.softcap is not None:
            spread = spread.clamp(max=self.f.softcap)
        return Slopes(radius * (a + self.key_offset), key, spread)

    def oscillation(self, n: int) -> Tensor:
        """Return max_i (max_j β_ij − min_j β_ij) over the visible keys j of n tokens, (h,): zero without offsets."""
        bias, masked = score_bias_table(self.f, n)
        masked = masked | torch.isneginf(bias)
        highest = bias.masked_fill(masked, -torch.inf).amax(-1)
        lowest = bias.masked_fill(masked, torch.inf).amin(-1)
        return (highest - lowest).clamp(min=0).amax(-1).expand(self.heads)

    def has_infinite_score_bias(self, n: int) -> bool:
        """Return whether an offset of −∞ hides a key that the mask leaves visible, among n tokens."""
        bias, masked = score_bias_table(self.f, n)
        return bool((torch.isneginf(bias) & ~masked).any())

    # Spectra of A, one head at a time.

    def symmetric_extremes(self, head: int) -> tuple[float, float]:
        """Return the smallest and the largest eigenvalue of (A + Aᵀ)/2 over all of R^d."""
        low, high = self.extreme_pairs[0][head].tolist()
        rank_deficient = 2 * self.wq.shape[1] < self.d
        return (min(low, 0.0), max(high, 0.0)) if rank_deficient else (low, high)

    @cached_property
    def extreme_pairs(self) -> tuple[Tensor, Tensor]:
        """The extreme eigenvalues (h, 2) of (A + Aᵀ)/2 on the span of Kᵀ and Qᵀ, with unit eigenvectors (h, 2, d).

        With B = [Kᵀ Qᵀ] = U R and A + Aᵀ = B M Bᵀ, an eigenvector v of R M Rᵀ gives u = U v = B M Rᵀ v/λ without U.
        """
        self.require_bilinear_scores("the spectrum of A")
        k = self.wq.shape[1]
        both = torch.cat([self.repeat_kv(self.wk), self.wq], 1)  # Bᵀ (h, 2k, d)
        r = _triangular_factor(both.mT)
        swapped = torch.cat([r[..., k:], r[..., :k]], -1)  # R M
        values, vectors = torch.linalg.eigh(self.f.scale / 2 * swapped @ r.mT)
        u = (swapped.mT @ vectors[..., [0, -1]]).mT @ both
        size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        # Where λ = 0 the formula gives no direction: A is zero, or any direction serves, such as the first row of K.
        fallback = both[:, :1] / torch.linalg.vector_norm(both[:, :1], dim=-1, keepdim=True).clamp(min=1e-300)
        return values[:, [0, -1]], torch.where(size > 0, u / size, fallback)

    def real_eigenpairs(self, head: int) -> list[tuple[float, Tensor]]:
        """Return the nonzero real eigenvalues of A in ascending order, with unit right eigenvectors (d,), A u = λ u."""
        self.require_bilinear_scores("the spectrum of A")
        wk, wq = self.wk[head // self.groups], self.wq[head]
        values, vectors = torch.linalg.eig(self.f.scale * wq @ wk.mT)
        size = float(values.abs().max())
        pairs = []
        for value, vector in zip(values, vectors.mT, strict=True):
            # LAPACK returns real eigenvalues of a real matrix with an imaginary part of exactly zero.
            if value.imag == 0 and abs(float(value.real)) > 1e-13 * size:
                u = wk.mT @ vector.real
                if float(u.norm()) > 0:
                    pairs.append((float(value.real), u / u.norm()))
        return sorted(pairs, key=lambda pair: pair[0])

    def gamma(self, head: int, symmetric: bool = False, bound: str = "γ") -> float:
        """Return γ = max(−γ_min, γ_max/8) over the real eigenvalues of A.

        Args:
            head: index of the head.
            symmetric: whether to use the eigenvalues of (A + Aᵀ)/2 instead, for which γ is no smaller.
            bound: name of the bound for refusals.

        Raises:
            Refused: if A has no real eigenvalue, or scores are not bilinear.
        """
        self.require_bilinear_scores(bound)
        if symmetric:
            low, high = self.symmetric_extremes(head)
            return max(-low, high / 8)
        wk, wq = self.wk[head // self.groups], self.wq[head]
        rank_deficient = len(wq) < self.d  # then A has the eigenvalues of QKᵀ, and zero
        eigenvalues = torch.linalg.eigvals(self.f.scale * (wq @ wk.mT if rank_deficient else wk.mT @ wq))
        real: list[float] = [*eigenvalues[eigenvalues.imag == 0].real.tolist(), *[0.0] * rank_deficient]
        if not real:
            raise Refused(
                bound,
                "a real eigenvalue of A",
                "none",
                "use the symmetric part: gamma(head, symmetric=True), or this_project.lower",
            )
        return max(-min(real), max(real) / 8)

    def value_gain(self, head: int, u: Tensor) -> float:
        """Return ‖W_h V_h u‖ for a vector u (d,), or ‖V_h u‖ without an output projection."""
        v = self.wv[head // self.groups] @ u
        return float((v if self.wo is None else self.wo[head] @ v).norm())

    def require_bilinear_scores(self, bound: str) -> None:
        """Refuse layers whose scores are not ⟨A x_i + c, x_j⟩ with the same A for all positions."""
        remedy = "take a bound that needs only ‖A‖, such as this_project.upper"
        if self.is_rotary:
            raise Refused(bound, "scores with one A for all positions", "rotary positions (A depends on j − i)", remedy)
        if self.f.softcap is not None:
            raise Refused(bound, "scores that are bilinear in the tokens", f"a soft cap of {self.f.softcap:g}", remedy)
        if self.f.score_bias is not None:
            raise Refused(bound, "scores without offsets", "a score_bias", remedy)

    # Combination of heads.

    def combine_heads(self, logs: Tensor) -> float:
        """Return the logarithm of the bound of the layer from log(bound_h/‖V_h‖), (h,).

        It is the smaller of

            Σ_h bound(A_h, W_h V_h)    and    ‖[W_1 … W_H]‖ (Σ_h bound(A_h, V_h)²)^½
        """
        summed = float(torch.logsumexp(logs + self.value_norm.log(), 0))
        if self.heads == 1:  # ‖WV‖ ≤ ‖W‖‖V‖
            return summed
        out = math.log(self.out_norm) if self.out_norm > 0 else -math.inf
        return min(summed, out + float(torch.logsumexp(2 * (logs + self.raw_value_norm.log()), 0)) / 2)


def form_of(f: SelfAttention | LayerForm) -> LayerForm:
    """Return the form of a layer; an existing form is returned as it is."""
    return f if isinstance(f, LayerForm) else LayerForm(f)


def score_bias_table(f: SelfAttention, n: int) -> tuple[Tensor, Tensor]:
    """Return the offsets β (h or 1, n, n) of n tokens, and the pairs that the mask hides (n, n).

    Without offsets both have a single pair, with β = 0.
    """
    if f.score_bias is None:
        return torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.bool)
    pattern = Pattern(1.0, f.causal, f.window, None, f.score_bias)
    i, j = torch.arange(n).unsqueeze(1), torch.arange(n).unsqueeze(0)
    bias = pattern.bias(i.to(f.device), j.to(f.device), torch.float64)
    assert bias is not None  # the pattern has the score_bias of f
    bias = bias.cpu().reshape((1,) * (3 - bias.dim()) + bias.shape)
    if isinstance(f.score_bias, Tensor) and tuple(bias.shape[-2:]) != (n, n):
        raise InputError(f"expected a score_bias table of at least {n} × {n}, got {tuple(f.score_bias.shape)}")
    visible = pattern.visible(i, j)
    return bias.expand(-1, n, n), torch.zeros(n, n, dtype=torch.bool) if visible is None else ~visible


def _triangular_factor(m: Tensor) -> Tensor:
    """Return R of the thin QR factorisation of each matrix."""
    factor: Tensor = torch.linalg.qr(m, mode="r").R
    return factor


def _vector_norms(columns: Tensor) -> Tensor:
    """Return the norms of column vectors (h, d, 1), (h,)."""
    norms: Tensor = torch.linalg.vector_norm(columns, dim=(-2, -1))
    return norms
