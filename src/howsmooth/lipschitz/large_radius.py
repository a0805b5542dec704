"""Far tokens: what attention does at ρX as ρ grows, and how close a layer is to that already.

Scores grow like ρ², so that each query i ends up with one key, m(i) = argmax_j of its scores without biases: biases
grow like ρ only, finite offsets not at all. The terms of the derivative that come from the scores vanish like
ρ² e^{−ρ²·gap}, and what is left is linear, the same at all later ρ:

    E ↦ ( Σ_h W_h V_h ε_{m_h(i)} )_i

One head has the norm ‖V‖ (max_j #{i : m(i) = j})^½, at most ‖V‖√n, reached where all queries choose the same key.
At a tie the covariance of a row grows like ρ² instead, and there is no limit.

Reference: castin2024smooth, large radius; the multiplicities and several heads are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.argmax import ArgmaxKeys, argmax_keys
from howsmooth.attention.backend import upcast_half
from howsmooth.attention.blockwise import Linearisation
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import local_lipschitz, single_at_least
from howsmooth.spectral import FunctionOperator, LinearOperator, singular_values


@dataclass(frozen=True, eq=False)
class LargeRadius:
    """The limit of D f at ρX: its norm in [lower, upper] with this confidence, and who looks at whom."""

    value: float
    lower: float
    upper: float
    confidence: float  # 1 where the norm is a formula: one head, or heads that agree
    operator: LinearOperator = field(repr=False)
    argmax: Tensor = field(repr=False)  # (h, n): the key that query i ends up with, −1 if it sees none
    gap: float  # the smallest lead of a first score over a second one, at ρ = 1; ∞ where nobody has a choice

    @property
    def multiplicities(self) -> Tensor:
        """How many queries end up with each key, (h, n)."""
        h, n = self.argmax.shape
        counts = torch.zeros(h, n + 1, dtype=torch.int64)
        return counts.scatter_add_(1, self.argmax + 1, torch.ones_like(self.argmax))[:, 1:]

    @property
    def settles_at(self) -> float:
        """The ρ from which on no key but the winner has more than 10⁻⁶ of a query's attention, biases aside."""
        return math.sqrt(math.log(1e6) / self.gap)


def large_radius_limit(f: SelfAttention, x: Tensor, *, tol: float = 1e-3, confidence: float = 0.999) -> LargeRadius:
    """The derivative that D_{ρX} f tends to as ρ → ∞, for x (n, d). Refused by name at ties and with a soft cap.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> x = torch.tensor([[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> limit = large_radius_limit(SelfAttention(eye, eye, 3 * eye), x)
    >>> limit.argmax.tolist(), round(limit.value, 6)  # 3 √2
    ([[0, 0, 2]], 4.242641)
    """
    f, x = _single_sequence(f, x)
    f, x = f.converted(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    found = _decided(f, x)
    keys, gap, operator = found.key, found.gap, _limit_operator(f, found.key)
    if bool((keys == keys[0]).all()):  # one matrix Σ_h W_h V_h and one choice of keys: ‖V‖ √multiplicity
        whole = _value_matrix(f)
        most = int(keys[0][keys[0] >= 0].bincount().max()) if bool((keys >= 0).any()) else 0
        value = float(torch.linalg.matrix_norm(whole, 2)) * math.sqrt(most)
        return LargeRadius(value, value, value, 1.0, operator, keys, gap)
    norm = singular_values(operator, tol=tol, confidence=confidence)
    return LargeRadius(
        *(float(t[0]) for t in (norm.value, norm.lower, norm.upper)), norm.confidence, operator, keys, gap
    )


def approach(f: SelfAttention, x: Tensor, radii: Iterable[float], **options) -> list[Estimate]:
    """‖D_{ρX} f‖₂ for each factor ρ: what `large_radius_limit` is the limit of. Options are those of `local_lipschitz`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> [round(estimate.value, 3) for estimate in approach(SelfAttention(one, one, one), x, (1, 2, 4))]
    [1.516, 1.455, 1.414]
    """
    if not isinstance(x, Tensor):
        raise InputError(f"approach: expected tokens as a tensor, got {type(x).__name__}")
    factors = _factors(radii)
    return [local_lipschitz(f, factor * x, **options) for factor in factors]


@torch.no_grad()
def largest_probabilities(f: SelfAttention, x: Tensor, padding: Tensor | None = None) -> Tensor:
    """max_j P_ij of each head and real token, (h, n), as they come out of x (n, d); zero for rows that see nothing."""
    f, x = _single_sequence(f, x)
    if padding is not None and not isinstance(padding, Tensor):
        raise InputError(
            f"expected padding as a tensor of dtype bool, True where the token is real, got {type(padding).__name__}"
        )
    near = f.jacobian(x, padding).linearised
    # The kernels never form probabilities, so that a block of them is made here whatever served the derivative.
    linearised = (
        near
        if isinstance(near, Linearisation)
        else Linearisation(
            *(upcast_half(t) for t in (near.q, near.k, near.v, near.o)), near.normaliser, near.pattern, near.padding
        )
    )
    rows = [
        at.p.reshape(f.heads, at.last - at.first, -1).amax(-1)
        if at.stop > at.start
        else x.new_zeros(f.heads, at.last - at.first)
        for at in linearised.blocks()
    ]
    peaks = torch.cat(rows, 1)
    return peaks if padding is None else peaks[:, padding]


def argmax_share(f: SelfAttention, x: Tensor, threshold: float = 0.99, padding: Tensor | None = None) -> Tensor:
    """The share of queries that give at least `threshold` of their attention to one key, per head (h,).

    1 is the regime of far tokens; `largest_probabilities` has the whole distribution. Rows that see nothing, or one key
    alone (the first row of causal attention), count with what they have: nothing, or all.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> argmax_share(SelfAttention(eye, eye, eye), 10 * eye), argmax_share(SelfAttention(eye, eye, eye), eye)
    (tensor([1.], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
        raise InputError(f"argmax_share: expected a threshold above 0 and up to 1, got {threshold!r}")
    peaks = largest_probabilities(f, x, padding)
    if not peaks.shape[1]:
        raise InputError("argmax_share: expected at least one real token, got padding that is False everywhere")
    return (peaks >= threshold).double().mean(-1)


def _factors(radii: Iterable[float]) -> list[float]:
    try:
        factors = [] if isinstance(radii, str) else [float(factor) for factor in radii]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # no numbers, too large a one, or no one number
        factors = []
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise InputError(f"approach: expected positive finite factors ρ, as in (1, 2, 4), got {radii!r}")
    return factors


def _value_matrix(f: SelfAttention) -> Tensor:
    """[W_1V_1; …] summed through the output projection, or side by side without one, (d_out, d)."""
    values = f.wv.unflatten(0, (f.kv_heads, -1)).repeat_interleave(f.heads // f.kv_heads, 0).flatten(0, 1)
    return values if f.wo is None else f.wo @ values


def _decided(f: SelfAttention, x: Tensor) -> ArgmaxKeys:
    """Who looks at whom; refuses what has no limit."""
    try:
        found = argmax_keys(f, x)
    except InputError as error:
        raise InputError(f"large_radius_limit: {error}") from None
    if (tie := found.first_tie) is not None:
        raise InputError(
            f"large_radius_limit: expected one largest score in each row, got a tie in head {tie[0]}, row "
            f"{tie[1]} (gap {float(found.lead[tie]):.3g}); move a token: at a tie the norm grows like ρ²"
        )
    return found


def _limit_operator(f: SelfAttention, argmax: Tensor) -> LinearOperator:
    """E ↦ (Σ_h W_h V_h ε_{m_h(i)})_i, by gathering rows; its adjoint scatters them back."""
    (h, n), groups = argmax.shape, f.heads // f.kv_heads
    index = argmax.clamp(min=0).unsqueeze(-1)
    sees = (argmax >= 0).unsqueeze(-1).to(f.dtype)

    def matvec(v: Tensor) -> Tensor:
        values = (v.view(n, f.d) @ f.wv.T).unflatten(-1, (f.kv_heads, -1)).transpose(0, 1)
        values = values.repeat_interleave(groups, 0)
        taken = (values.gather(1, index.expand(-1, -1, values.shape[-1])) * sees).transpose(0, 1).flatten(1)
        return (taken if f.wo is None else taken @ f.wo.T).flatten()

    def rmatvec(u: Tensor) -> Tensor:
        g = u.view(n, f.d_out)
        g = (g if f.wo is None else g @ f.wo).unflatten(-1, (h, -1)).transpose(0, 1) * sees
        back = torch.zeros_like(g).scatter_add_(1, index.expand_as(g), g)
        return (back.unflatten(0, (f.kv_heads, groups)).sum(1).transpose(0, 1).flatten(1) @ f.wv).flatten()

    return FunctionOperator(matvec, rmatvec, (n * f.d_out, n * f.d), dtype=f.dtype, device=f.device)


def _single_sequence(f: SelfAttention, x: Tensor) -> tuple[SelfAttention, Tensor]:
    if not isinstance(f, SelfAttention) or not isinstance(x, Tensor) or x.dim() != 2:
        raise InputError(
            "expected a SelfAttention and tokens of shape (n, d), got "
            f"{type(f).__name__} and {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}"
        )
    return single_at_least(f, x)
