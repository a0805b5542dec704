"""Mitigations: objects that replace a softmax attention layer by a map with a smaller Lipschitz constant.

    Cap(share)        clips the singular values of a head's Q, K and V at this fraction of the largest
    Temperature(T)    divides the scores by T
    L2()              attention by distances in place of inner products: another model with the same weights

`Cap(0.5) >> Temperature(2)` applies both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.l2 import L2Attention
from howsmooth.attention.op import attend
from howsmooth.errors import InputError

VALUES = ("own", "tied")


class DistanceAttention:
    """Attention by distances, with the queries, values, mask, positions and output projection of a softmax layer.

        P_ij ∝ exp(−scale/2 · |q_i − q_j|²),  o = P v

    Since −|q_i − q_j|²/2 = ⟨q_i, q_j⟩ − |q_j|²/2 − |q_i|²/2, it is the softmax layer with keys equal to queries, and a
    penalty on long keys. Unlike in `L2Attention`, the values do not depend on the queries, and the derivative is not
    bounded over all inputs.

    Args:
        f: the softmax layer; it may not have a soft cap.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> f = DistanceAttention(SelfAttention(eye, eye, eye))
        >>> f(torch.tensor([[99.0, 0.0], [0.0, 99.0]], dtype=torch.float64))  # each token attends to itself
        tensor([[99.,  0.],
                [ 0., 99.]], dtype=torch.float64)
    """

    def __init__(self, f: SelfAttention) -> None:
        """Check the layer."""
        if not isinstance(f, SelfAttention):
            raise InputError(f"DistanceAttention: expected a SelfAttention, got {type(f).__name__}")
        if f.softcap is not None:
            raise InputError(
                "DistanceAttention: expected a layer without a soft cap of its scores, got one with a soft cap"
            )
        self.f = f

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.f.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output (…, n, d_out) at tokens x (…, n, d)."""
        f = self.f if x.dtype == self.f.dtype else self.f.converted(dtype=x.dtype)
        f.check_tokens(x, None)
        q, _, v = f.project(x)
        queries = torch.cat([q, torch.ones_like(q[..., :1])], -1)
        keys = torch.cat([q, -q.square().sum(-1, keepdim=True) / 2], -1)
        o = attend(queries, keys, v.repeat_interleave(f.heads // f.kv_heads, -3), **f.pattern())
        o = o.transpose(-3, -2).flatten(-2)
        return o if f.wo is None else F.linear(o, f.wo, f.bo)

    def __repr__(self) -> str:
        """Return the layer it is made of."""
        return f"DistanceAttention({self.f!r})"


class Mitigation:
    """A transformation of attention layers: `mitigation(f)` is the mitigated map, and f is left unchanged."""

    @property
    def name(self) -> str:
        """The mitigation and its settings in words."""
        raise NotImplementedError

    def __call__(self, f: SelfAttention) -> Callable[[Tensor], Tensor]:
        """Return the mitigated map of a layer."""
        raise NotImplementedError

    def __rshift__(self, then: Mitigation) -> Mitigation:
        """Return the composition: this mitigation, then another."""
        if not isinstance(then, Mitigation):
            raise InputError(f"{self.name} >>: expected another mitigation, got {type(then).__name__}")
        return Composition(self, then)

    def _check(self, f: object) -> SelfAttention:
        """Return the layer; refuse other maps."""
        if isinstance(f, SelfAttention):
            return f
        last = isinstance(f, (L2Attention, DistanceAttention))
        remedy = "apply L2 last" if last else "the weights of other maps are not known"
        raise InputError(f"{self.name}: expected a SelfAttention, got {type(f).__name__}; {remedy}")


@dataclass(frozen=True)
class Composition(Mitigation):
    """One mitigation, then another.

    Attributes:
        first: applied first; its result has to be a `SelfAttention`.
        second: applied to the result of the first.
    """

    first: Mitigation
    second: Mitigation

    @property
    def name(self) -> str:
        """Both names, in the order of application."""
        return f"{self.first.name} >> {self.second.name}"

    def __call__(self, f: SelfAttention) -> Callable[[Tensor], Tensor]:
        """Apply both mitigations."""
        return self.second(self.second._check(self.first(f)))


@dataclass(frozen=True)
class Cap(Mitigation):
    """Clips the singular values of each head's query, key and value projections.

    Attributes:
        share: the largest singular value allowed, as a fraction of the head's largest, in (0, 1].
        of: which projections: some of the letters q, k and v.

    Example:
        >>> w = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
        >>> Cap(0.5)(SelfAttention(w, w, w)).wq.diagonal()
        tensor([2., 1.], dtype=torch.float64)
    """

    share: float
    of: str = "qkv"

    def __post_init__(self) -> None:
        """Check the settings."""
        if isinstance(self.share, bool) or not isinstance(self.share, (int, float)) or not 0 < self.share <= 1:
            raise InputError(
                f"Cap: expected a share of the largest singular value above 0 and up to 1, got {self.share!r}"
            )
        if not self.of or set(self.of) - set("qkv"):
            raise InputError(f"Cap: expected of as some of the letters q, k and v, got {self.of!r}")

    @property
    def name(self) -> str:
        """The projections and the share."""
        return f"cap {self.of.upper()} at {self.share:g}"

    def __call__(self, f: SelfAttention) -> SelfAttention:
        """Return the layer with clipped projections."""
        self._check(f)
        heads = {"q": f.heads, "k": f.kv_heads, "v": f.kv_heads}
        weights = {f"w{letter}": self._clip(getattr(f, f"w{letter}"), heads[letter]) for letter in self.of}
        return f.replaced(**weights)

    def _clip(self, w: Tensor, heads: int) -> Tensor:
        """Clip the singular values of each head's rows of w."""
        u, s, vh = torch.linalg.svd(w.detach().double().unflatten(0, (heads, -1)), full_matrices=False)
        s = s.clamp(max=self.share * s[:, :1])
        return (u * s.unsqueeze(-2) @ vh).flatten(0, 1).to(w)


@dataclass(frozen=True)
class Temperature(Mitigation):
    """Divides the scores by T, which makes the attention weights more equal.

    Attributes:
        T: the temperature, finite and positive.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> Temperature(4.0)(SelfAttention(eye, eye, eye, scale=1.0)).scale
        0.25
    """

    T: float

    def __post_init__(self) -> None:
        """Check the settings."""
        if isinstance(self.T, bool) or not isinstance(self.T, (int, float)) or not 0 < self.T < math.inf:
            raise InputError(f"Temperature: expected a finite T above 0, got {self.T!r}")

    @property
    def name(self) -> str:
        """The temperature."""
        return f"temperature {self.T:g}"

    def __call__(self, f: SelfAttention) -> SelfAttention:
        """Return the layer with a smaller scale."""
        self._check(f)
        return f.replaced(scale=f.scale / self.T)


@dataclass(frozen=True)
class L2(Mitigation):
    """Attention by distances with keys equal to queries: another model, not a smoother version of the old one.

    Attributes:
        values: "own" keeps the values (`DistanceAttention`, any mask and positions). "tied" is the layer of Kim et al.
            (`L2Attention`) with these weights, whose values are computed from the queries: it is Lipschitz, with a
            known bound. It is for layers without mask, positions and shared keys, and ignores their biases.

    Reference:
        kim2021lipschitz, for "tied".

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> type(L2()(SelfAttention(eye, eye, eye))).__name__, L2("tied").name
        ('DistanceAttention', 'L2, tied values')
    """

    values: str = "own"

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.values not in VALUES:
            raise InputError(f"L2: expected values to be one of {', '.join(VALUES)}, got {self.values!r}")

    @property
    def name(self) -> str:
        """Whether values are tied."""
        return "L2" if self.values == "own" else "L2, tied values"

    def __call__(self, f: SelfAttention) -> DistanceAttention | L2Attention:
        """Return attention by distances with the weights of the layer."""
        self._check(f)
        if self.values == "own":
            return DistanceAttention(f)
        plain = not f.causal and f.window is None and f.rotary is None and f.score_bias is None
        if not plain or f.kv_heads != f.heads or f.softcap is not None or {f.wq.shape, f.wv.shape} != {(f.d, f.d)}:
            raise InputError(
                "L2: expected a layer without mask, positions, caps and shared keys for tied values, got "
                f'{f!r}; use L2(values="own")'
            )
        wo = torch.eye(f.d, dtype=f.dtype, device=f.device) if f.wo is None else f.wo
        return L2Attention(f.wq, f.wv, wo, heads=f.heads)
