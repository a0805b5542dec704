"""Ways to make a layer smoother: small objects that turn a softmax layer into another map.

    Cap(share)        no singular value of a head's Q, K or V above this share of its largest
    Temperature(T)    scores divided by T
    L2()              weights by distance in place of softmax of products: another model, with the old weights in it

`Cap(0.5) >> Temperature(2)` does both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention import L2Attention, SelfAttention, attend
from howsmooth.errors import InputError

VALUES = ("own", "tied")


class DistanceAttention:
    """P_ij ∝ exp(−scale/2 · |q_i − q_j|²), o = P v, with q, v, mask, positions and projection of a softmax layer.

    Since −|q_i − q_j|²/2 = ⟨q_i, q_j⟩ − |q_j|²/2 − |q_i|²/2, it is the softmax layer with keys tied to its queries, and
    less weight for long ones. Values do not go through the queries as in `L2Attention`, and nothing bounds the
    derivative over all inputs.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = DistanceAttention(SelfAttention(eye, eye, eye))
    >>> f(torch.tensor([[99.0, 0.0], [0.0, 99.0]], dtype=torch.float64))  # each token sees itself
    tensor([[99.,  0.],
            [ 0., 99.]], dtype=torch.float64)
    """

    def __init__(self, f: SelfAttention):
        if not isinstance(f, SelfAttention):
            raise InputError(f"DistanceAttention: expected a SelfAttention, got {type(f).__name__}")
        if f.softcap is not None:
            raise InputError("DistanceAttention: expected a layer without a soft cap of its scores, got one with it")
        self.f = f

    @property
    def dtype(self) -> torch.dtype:
        return self.f.dtype

    def __call__(self, x: Tensor) -> Tensor:
        f = self.f if x.dtype == self.f.dtype else self.f.to(x.dtype)
        f.check_tokens(x, None)
        q, _, v = f.project(x)
        queries = torch.cat([q, torch.ones_like(q[..., :1])], -1)
        keys = torch.cat([q, -q.square().sum(-1, keepdim=True) / 2], -1)
        o = attend(queries, keys, v.repeat_interleave(f.heads // f.kv_heads, -3), **f.pattern())
        o = o.transpose(-3, -2).flatten(-2)
        return o if f.wo is None else F.linear(o, f.wo, f.bo)

    def __repr__(self) -> str:
        return f"DistanceAttention({self.f!r})"


class Mitigation:
    """`mitigation(f)` is the mitigated map of a `SelfAttention`; the layer that was given stays as it is."""

    name: str

    def __call__(self, f: SelfAttention) -> Callable[[Tensor], Tensor]:
        raise NotImplementedError

    def __rshift__(self, then: Mitigation) -> Mitigation:
        if not isinstance(then, Mitigation):
            raise InputError(f"{self.name} >>: expected another mitigation, got {type(then).__name__}")
        return Both(self, then)

    def _check(self, f: SelfAttention) -> None:
        if not isinstance(f, SelfAttention):
            raise InputError(
                f"{self.name}: expected a SelfAttention, got {type(f).__name__}; "
                + (
                    "put it last"
                    if isinstance(f, (L2Attention, DistanceAttention))
                    else "the weights of this layer are not known"
                )
            )


@dataclass(frozen=True)
class Both(Mitigation):
    """One mitigation, then another."""

    first: Mitigation
    second: Mitigation

    @property
    def name(self) -> str:
        return f"{self.first.name} >> {self.second.name}"

    def __call__(self, f: SelfAttention) -> Callable[[Tensor], Tensor]:
        return self.second(self.first(f))


@dataclass(frozen=True)
class Cap(Mitigation):
    """Singular values of each head's projections of queries, keys and values cut at a share of the head's largest.

    >>> w = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
    >>> Cap(0.5)(SelfAttention(w, w, w)).wq.diagonal()
    tensor([2., 1.], dtype=torch.float64)
    """

    share: float
    of: str = "qkv"

    def __post_init__(self):
        if isinstance(self.share, bool) or not isinstance(self.share, (int, float)) or not 0 < self.share <= 1:
            raise InputError(
                f"Cap: expected a share of the largest singular value above 0 and up to 1, got {self.share!r}"
            )
        if not self.of or set(self.of) - set("qkv"):
            raise InputError(f"Cap: expected of as some of the letters q, k and v, got {self.of!r}")

    @property
    def name(self) -> str:
        return f"cap {self.of.upper()} at {self.share:g}"

    def __call__(self, f: SelfAttention) -> SelfAttention:
        self._check(f)
        heads = {"q": f.heads, "k": f.kv_heads, "v": f.kv_heads}
        return changed(f, **{f"w{letter}": self._cut(getattr(f, f"w{letter}"), heads[letter]) for letter in self.of})

    def _cut(self, w: Tensor, heads: int) -> Tensor:
        u, s, vh = torch.linalg.svd(w.detach().double().unflatten(0, (heads, -1)), full_matrices=False)
        s = s.clamp(max=self.share * s[:, :1])
        return (u * s.unsqueeze(-2) @ vh).flatten(0, 1).to(w)


@dataclass(frozen=True)
class Temperature(Mitigation):
    """Scores divided by T: attention closer to the mean of what it sees.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> Temperature(4.0)(SelfAttention(eye, eye, eye, scale=1.0)).scale
    0.25
    """

    T: float

    def __post_init__(self):
        if isinstance(self.T, bool) or not isinstance(self.T, (int, float)) or not 0 < self.T < math.inf:
            raise InputError(f"Temperature: expected a finite T above 0, got {self.T!r}")

    @property
    def name(self) -> str:
        return f"temperature {self.T:g}"

    def __call__(self, f: SelfAttention) -> SelfAttention:
        self._check(f)
        return changed(f, scale=f.scale / self.T)


@dataclass(frozen=True)
class L2(Mitigation):
    """Attention by distance, keys tied to queries: another model, not a smoother version of the old one.

    values: "own" keeps the values (`DistanceAttention`, any mask and positions); "tied" is the layer of Kim et al.
    (`L2Attention`) with these weights, whose values go through the queries too: Lipschitz everywhere, with a bound. It
    is for layers without a mask, positions or shared keys, and leaves their biases out.
    """

    values: str = "own"

    def __post_init__(self):
        if self.values not in VALUES:
            raise InputError(f"L2: expected values to be one of {', '.join(VALUES)}, got {self.values!r}")

    @property
    def name(self) -> str:
        return "L2" if self.values == "own" else "L2, tied values"

    def __call__(self, f: SelfAttention) -> DistanceAttention | L2Attention:
        self._check(f)
        if self.values == "own":
            return DistanceAttention(f)
        plain = not f.causal and f.window is None and f.rotary is None and f.score_bias is None
        if not plain or f.kv_heads != f.heads or f.softcap is not None or {f.wq.shape, f.wv.shape} != {(f.d, f.d)}:
            raise InputError(
                f"L2: expected a layer without mask, positions, caps and shared keys for tied values, got "
                f'{f!r}; use L2(values="own")'
            )
        wo = torch.eye(f.d, dtype=f.dtype, device=f.device) if f.wo is None else f.wo
        return L2Attention(f.wq, f.wv, wo, heads=f.heads)


def changed(f: SelfAttention, **changes) -> SelfAttention:
    """The layer with some of its weights or settings replaced."""
    names = (
        "wq",
        "wk",
        "wv",
        "wo",
        "bq",
        "bk",
        "bv",
        "bo",
        "heads",
        "kv_heads",
        "scale",
        "causal",
        "window",
        "rotary",
        "softcap",
        "score_bias",
    )
    return SelfAttention(**({name: getattr(f, name) for name in names} | changes))
