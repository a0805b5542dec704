"""Mass splitting: does a measure become rougher when its atoms are cut into several that may move apart?

Cut every atom into k ≥ 2 and move the pieces freely. For any map x_i ↦ G(x_i, μ) of atoms with masses, exactly,

    norm after splitting = max( ‖D‖ , max_i ‖∂₁G(x_i, μ)‖ )

in L²(μ), for every k and every way of cutting: pieces enter the other outputs by their mean alone, so that means and
zero-sum parts do not mix, and a zero-sum part meets its own atom's ∂₁G only (docs/splitting.md has the proof). For
attention ∂₁G(x_i, μ) is Σ_h W_h V_h C_i^h A_h. So a measure splits iff max_i ‖∂₁G(x_i, μ)‖ > ‖D‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.fields import SoftmaxField
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.attention.weighted import root_weights
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import TokenGains, own_norms, own_operator, plus_identity
from howsmooth.lipschitz.local import local_lipschitz
from howsmooth.lipschitz.mean_field import refuse_lost_masses
from howsmooth.spectral import LinearOperator
from howsmooth.transport import TokenMeasure
from howsmooth.transport.measures import refuse_without_order

SPLITS, DOES_NOT, UNDECIDED = "splits", "does not split", "undecided"
_FINEST = 1e-9  # relative width beyond which float64 leaves nothing to decide


@dataclass(frozen=True, eq=False)
class Splitting:
    """The two norms that decide, with their intervals, and what splitting gains.

    norm: ‖D‖ at this measure, in L²(μ). own: ‖∂₁G(x_i, μ)‖ for each atom. atom: the one with the largest.
    status: "splits" or "does not split" where the intervals of the two do not meet, else "undecided".
    """

    status: str
    norm: Estimate
    own: TokenGains
    atom: int

    @property
    def splits(self) -> bool:
        """Whether splitting is certain to gain."""
        return self.status == SPLITS

    @property
    def ratio(self) -> float:
        """max_i ‖∂₁G(x_i, μ)‖ / ‖D‖: the measure splits where this is above 1."""
        return _ratio(self.own.largest, self.norm.value)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the ratio lies."""
        return (
            _ratio(float(self.own.lower.max()), self.norm.upper),
            _ratio(float(self.own.upper.max()), self.norm.lower),
        )

    @property
    def after(self) -> float:
        """The norm once atoms are split."""
        return max(self.norm.value, self.own.largest)

    @property
    def gain(self) -> float:
        """The norm after splitting over the norm before, at least 1."""
        return max(1.0, self.ratio)

    @property
    def atoms(self) -> Tensor:
        """The atoms whose splitting alone already gains, certainly."""
        return (self.own.lower > self.norm.upper).nonzero().flatten()

    def as_record(self) -> dict:
        """The numbers as plain Python values."""
        low, high = self.interval
        return {
            "verdict": self.status,
            "status": self.norm.status,
            "ratio": self.ratio,
            "ratio_lower": low,
            "ratio_upper": high,
            "gain": self.gain,
            "norm": self.norm.as_record(),
            "own": self.own.largest,
            "own_lower": float(self.own.lower.max()),
            "own_upper": float(self.own.upper.max()),
            "own_confidence": self.own.confidence,
            "atom": self.atom,
            "atoms": self.atoms.tolist(),
            "dtype": str(self.norm.dtype).removeprefix("torch."),
            "seed": self.norm.seed,
        }


def splits(
    f: SelfAttention | Callable,
    x,
    log_weights: Tensor | None = None,
    times: Tensor | None = None,
    *,
    residual: bool = False,
    tol: float = 1e-3,
    confidence: float = 0.999,
    seed: int = 0,
) -> Splitting:
    """Whether the measure Σ a_i δ_{x_i} splits under a map, and what that gains.

    f: an attention layer, with whatever it has (heads, biases, mask, rotary positions: a copy keeps its position); or
       any G(places, points, log_weights) that gives one output for each place, such as a field of
       `howsmooth.attention.fields`.
    x: atoms (n, d), or a `TokenMeasure` or `TimedMeasure`. log_weights (n,): equal unless given.
    times (n,): an atom sees those whose time is not after its own, ties together, and copies have the time of their
       atom. In a causal layer without times every token has a time of its own, in order.
    residual: add x itself to the map.

    An undecided comparison is made again with a smaller tolerance, down to 1e-9; the attempts that there may be share
    what the confidence leaves.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> found = splits(SelfAttention(one, one, one), torch.tensor([[0.2], [10.0]], dtype=torch.float64))
    >>> found.status, round(found.own.largest, 4), round(found.norm.value, 4)
    ('splits', 10.3937, 10.363)
    """
    f = f.layer if isinstance(f, SoftmaxField) else f
    if isinstance(f, SelfAttention) and isinstance(x, TokenMeasure):
        refuse_without_order(f, x)
    x, log_weights, times = _atoms(x, log_weights, times)
    if log_weights is not None:
        refuse_lost_masses(torch.log_softmax(log_weights.double(), -1))
    attempts = 1 + max(0, math.ceil(math.log(tol / _FINEST, 100) - 1e-9))
    share = 1 - (1 - confidence) / attempts
    while True:
        if log_weights is not None or tol < 1e-6:  # logarithms of small masses need their digits
            f, x = _in_float64(f, x)
            log_weights = None if log_weights is None else log_weights.double()
        if isinstance(f, SelfAttention):
            whole, own = _attention(f, x, log_weights, times, residual)
        else:
            whole, own = _field(f, x, log_weights, times, residual)
        start = x if log_weights is None else root_weights(log_weights) * x
        found = decide(whole, own, start, tol=tol, confidence=share, seed=seed)
        if found.status != UNDECIDED or tol <= _FINEST:
            return found
        f, x = _in_float64(f, x)
        tol = max(tol / 100, _FINEST)


def decide(
    whole: SelfAttention | Callable[[Tensor], Tensor],
    own: LinearOperator,
    x: Tensor,
    *,
    tol: float = 1e-3,
    confidence: float = 0.999,
    seed: int = 0,
) -> Splitting:
    """The comparison itself: ‖D‖ of a map at x against the norms of `own`, n operators side by side."""
    share = 1 - (1 - confidence) / 2
    norms = own_norms(own, tol=tol, confidence=share, seed=seed)
    norm = local_lipschitz(whole, x, tol=tol, confidence=share, seed=seed, strict=False)
    return Splitting(_verdict(norm, norms), norm, norms, int(norms.value.argmax()))


def on_atoms(f: SelfAttention, log_weights: Tensor | None = None, times: Tensor | None = None) -> SelfAttention:
    """The layer with masses in its scores (P_ij ∝ a_j e^{s_ij}), and times in place of its causal mask."""
    if log_weights is None and times is None:
        return f
    before = f.score_bias

    def bias(i: Tensor, j: Tensor) -> Tensor:
        table = torch.zeros(i.shape[0], j.shape[1], dtype=torch.float64, device=i.device)
        if log_weights is not None:
            table = table + torch.log_softmax(log_weights.double(), -1)[j]
        if times is not None:
            table = table.masked_fill(times[j] > times[i], -torch.inf)
        if before is None:
            return table
        return table + (
            before[..., i[0, 0] : i[-1, 0] + 1, j[0, 0] : j[0, -1] + 1] if isinstance(before, Tensor) else before(i, j)
        )

    return f.replaced(score_bias=bias, causal=f.causal and times is None)


def _attention(f: SelfAttention, x: Tensor, log_weights, times, residual: bool):
    f.check_tokens(x, None)
    layer = on_atoms(f, log_weights, times)
    own = QueryDerivative(layer.converted(dtype=torch.float64), x.double())
    if residual:
        own = plus_identity(own)
    if log_weights is None and not residual:
        return layer, own
    root = 1.0 if log_weights is None else root_weights(log_weights)
    return (lambda y: root * layer(y / root) + (y if residual else 0)), own


def _field(g: Callable, x: Tensor, log_weights, times, residual: bool):
    seen = {} if times is None else {"times": times, "source_times": times}
    root = 1.0 if log_weights is None else root_weights(log_weights)

    def whole(y: Tensor) -> Tensor:
        return root * g(y / root, y / root, log_weights, **seen) + (y if residual else 0)

    # Where its own token is all that an atom sees, nothing but rounding is left here; `whole` shows that g is right.
    own = own_operator(lambda z: g(z, x, log_weights, **seen), x, trusted=True)
    return whole, plus_identity(own) if residual else own


def _verdict(norm: Estimate, own: TokenGains) -> str:
    if float(own.lower.max()) > norm.upper:
        return SPLITS
    return DOES_NOT if float(own.upper.max()) <= norm.lower else UNDECIDED


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else (math.inf if a > 0 else 1.0)


def _in_float64(f, x: Tensor):
    return (f.converted(dtype=torch.float64) if isinstance(f, SelfAttention) else f), x.double()


def _atoms(x, log_weights: Tensor | None, times: Tensor | None):
    """Points, log masses and times, of a measure or as given."""
    if isinstance(x, TokenMeasure):
        if log_weights is not None or times is not None:
            raise InputError("expected masses and times from the measure alone, got them beside it")
        x, log_weights, times = x.points, x.log_weights, getattr(x, "times", None)
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.dtype.is_floating_point or not x.numel():
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected atoms as a floating tensor (n, d) or a measure, got {got}")
    if not torch.isfinite(x).all():
        raise InputError("expected finite atoms, got NaN or ∞")
    for name, t in (("log_weights", log_weights), ("times", times)):
        if t is not None and (not isinstance(t, Tensor) or t.shape != x.shape[:1] or not torch.isfinite(t).all()):
            got = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise InputError(
                f"expected {name} as {len(x)} finite numbers, one for each atom, got {got}; leave out "
                "atoms without mass"
            )
    return x, log_weights, times
