"""One self-attention layer by its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.jacobian import AttentionJacobian
from howsmooth.attention.op import attend
from howsmooth.attention.pattern import ScoreBias
from howsmooth.errors import InputError

WEIGHTS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions: cos and sin (positions, r) turn the first r channels of q and k at each position.

    Channel c is paired with c + r/2 (as in Llama), or with its neighbour if `interleaved` (as in GPT-J).
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False

    def __post_init__(self):
        if self.cos.dim() != 2 or self.cos.shape != self.sin.shape or self.cos.shape[1] % 2:
            raise InputError(
                "expected rotary cos and sin of one shape (positions, r) with even r, got "
                f"{tuple(self.cos.shape)} and {tuple(self.sin.shape)}"
            )
        if not (torch.isfinite(self.cos).all() and torch.isfinite(self.sin).all()):
            raise InputError("expected finite rotary tables, got NaN or ∞")

    def apply(self, x: Tensor) -> Tensor:
        """X (…, n, k) turned by its positions 0 … n − 1."""
        cos, sin, turned, rest = self._parts(x)
        return torch.cat([turned * cos + self._quarter_turn(turned) * sin, rest], -1)

    def transpose(self, x: Tensor) -> Tensor:
        """The adjoint of `apply`; its inverse too, unless cos and sin carry a scale."""
        cos, sin, turned, rest = self._parts(x)
        return torch.cat([turned * cos - self._quarter_turn(turned * sin), rest], -1)

    def _parts(self, x: Tensor):
        n, r = x.shape[-2], self.cos.shape[1]
        if n > self.cos.shape[0] or r > x.shape[-1]:
            raise InputError(
                f"expected at most {self.cos.shape[0]} tokens and a head width of at least {r} for these "
                f"rotary tables, got {n} tokens of head width {x.shape[-1]}"
            )
        return self.cos[:n], self.sin[:n], x[..., :r], x[..., r:]

    def _quarter_turn(self, x: Tensor) -> Tensor:
        if self.interleaved:
            return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    def to(self, *args, **kwargs) -> Rotary:
        return Rotary(self.cos.to(*args, **kwargs), self.sin.to(*args, **kwargs), self.interleaved)


class SelfAttention:
    """Multi-head self-attention f(X) of one layer, with its exact derivative.

    Weights have the layout of `torch.nn.Linear`, (out, in): wq (h·k, d), wk (hkv·k, d), wv (hkv·w, d),
    wo (d_out, h·w). Without `wo` the heads are concatenated. Neither residual nor normalisation is part of the map.

    Args:
        heads, kv_heads: query heads h, and key/value heads hkv that they share (default: as many).
        scale: multiplies q·k; 1/√k unless given.
        causal, window, softcap, score_bias: see `howsmooth.attend`.
        rotary: a `Rotary`, or a pair (cos, sin) of tables (positions, r).

    >>> import torch
    >>> f = SelfAttention(*(torch.eye(2, dtype=torch.float64) for _ in range(3)))
    >>> f(torch.zeros(3, 2, dtype=torch.float64)).shape
    torch.Size([3, 2])
    >>> f.jacobian(torch.zeros(3, 2, dtype=torch.float64)).shape
    (6, 6)
    """

    def __init__(
        self,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor,
        wo: Tensor | None = None,
        *,
        bq: Tensor | None = None,
        bk: Tensor | None = None,
        bv: Tensor | None = None,
        bo: Tensor | None = None,
        heads: int = 1,
        kv_heads: int | None = None,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        rotary: Rotary | tuple[Tensor, Tensor] | None = None,
        softcap: float | None = None,
        score_bias: ScoreBias | None = None,
    ):
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.bq, self.bk, self.bv, self.bo = bq, bk, bv, bo
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        self._check_weights()
        self.scale = (wq.shape[0] // heads) ** -0.5 if scale is None else float(scale)
        self.causal, self.window, self.softcap, self.score_bias = causal, window, softcap, score_bias
        self.rotary = rotary if isinstance(rotary, Rotary) or rotary is None else Rotary(*rotary)
        if self.rotary is not None and (self.rotary.cos.dtype, self.rotary.cos.device) != (self.dtype, self.device):
            raise InputError(
                f"SelfAttention: expected rotary tables as the weights are ({self.dtype} on "
                f"{self.device}), got {self.rotary.cos.dtype} on {self.rotary.cos.device}; use .to()"
            )

    @property
    def d(self) -> int:
        """Width of the tokens that come in."""
        return self.wq.shape[1]

    @property
    def d_out(self) -> int:
        """Width of the tokens that go out."""
        return self.wo.shape[0] if self.wo is not None else self.heads * self.wv.shape[0] // self.kv_heads

    @property
    def dtype(self) -> torch.dtype:
        return self.wq.dtype

    @property
    def device(self) -> torch.device:
        return self.wq.device

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """f(X) for x (n, d) or (b, n, d); `padding` (n) or (b, n) is True where the token is real."""
        self.check_tokens(x, padding)
        o = attend(*self.project(x), padding=padding, **self.pattern())
        o = o.transpose(-3, -2).flatten(-2)
        return o if self.wo is None else F.linear(o, self.wo, self.bo)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q (…, h, n, k), k (…, hkv, n, k) and v (…, hkv, n, w), rotated where positions are rotary."""
        q = _split(F.linear(x, self.wq, self.bq), self.heads)
        k = _split(F.linear(x, self.wk, self.bk), self.kv_heads)
        v = _split(F.linear(x, self.wv, self.bv), self.kv_heads)
        return (q, k, v) if self.rotary is None else (self.rotary.apply(q), self.rotary.apply(k), v)

    def pattern(self) -> dict:
        """The arguments of `attend` that belong to the layer."""
        return dict(
            scale=self.scale, causal=self.causal, window=self.window, softcap=self.softcap, score_bias=self.score_bias
        )

    def jacobian(
        self, x: Tensor, padding: Tensor | None = None, product_dtype: torch.dtype | None = None
    ) -> AttentionJacobian:
        """D_X f as a matrix-free operator (n·d_out, n·d), one per sequence for x (b, n, d); `.dense()` if small.

        `product_dtype`: torch.bfloat16 or float16 to round what is multiplied, for speed on a GPU.
        """
        self.check_tokens(x, padding)
        return AttentionJacobian(self, x, padding, product_dtype)

    def head(self, index: int) -> SelfAttention:
        """Head `index` alone, with its slice of the output projection. All heads add up to f(X) − bo."""
        if not 0 <= index < self.heads:
            raise InputError(f"expected a head from 0 to {self.heads - 1}, got {index}")

        def rows(t: Tensor | None, i: int, heads: int) -> Tensor | None:
            return None if t is None else t.unflatten(0, (heads, -1))[i]

        shared = index * self.kv_heads // self.heads
        return SelfAttention(
            rows(self.wq, index, self.heads),
            rows(self.wk, shared, self.kv_heads),
            rows(self.wv, shared, self.kv_heads),
            None if self.wo is None else self.wo.unflatten(1, (self.heads, -1))[:, index],
            bq=rows(self.bq, index, self.heads),
            bk=rows(self.bk, shared, self.kv_heads),
            bv=rows(self.bv, shared, self.kv_heads),
            scale=self.scale,
            causal=self.causal,
            window=self.window,
            rotary=self.rotary,
            softcap=self.softcap,
            score_bias=_bias_of_head(self.score_bias, index),
        )

    def to(self, *args, **kwargs) -> SelfAttention:
        """The same layer in another dtype or on another device."""

        def move(t):
            return None if t is None else t.to(*args, **kwargs)

        bias = move(self.score_bias) if isinstance(self.score_bias, Tensor) else self.score_bias
        return SelfAttention(
            *(move(t) for t in (self.wq, self.wk, self.wv, self.wo)),
            bq=move(self.bq),
            bk=move(self.bk),
            bv=move(self.bv),
            bo=move(self.bo),
            heads=self.heads,
            kv_heads=self.kv_heads,
            scale=self.scale,
            causal=self.causal,
            window=self.window,
            rotary=move(self.rotary),
            softcap=self.softcap,
            score_bias=bias,
        )

    def __repr__(self) -> str:
        traits = [f"d={self.d}", f"heads={self.heads}"]
        traits += [f"kv_heads={self.kv_heads}"] * (self.kv_heads != self.heads) + ["causal"] * self.causal
        traits += [f"window={self.window}"] * (self.window is not None) + ["rotary"] * (self.rotary is not None)
        traits += [f"softcap={self.softcap}"] * (self.softcap is not None)
        traits += ["score_bias"] * (self.score_bias is not None)
        return f"SelfAttention({', '.join(traits)}, {self.dtype})"

    def check_tokens(self, x: Tensor, padding: Tensor | None) -> None:
        """Refuses tokens that this layer cannot take, by name."""
        if x.dim() not in (2, 3) or x.shape[-1] != self.d:
            raise InputError(f"expected tokens of shape (n, {self.d}) or (b, n, {self.d}), got {tuple(x.shape)}")
        if x.shape[-2] == 0:
            raise InputError(f"expected at least one token, got {tuple(x.shape)}")
        if x.dtype != self.dtype or x.device != self.device:
            raise InputError(
                f"expected tokens as the weights are ({self.dtype} on {self.device}), got {x.dtype} on "
                f"{x.device}; use .to() on one of them"
            )
        if padding is not None and (padding.dtype != torch.bool or padding.shape != x.shape[:-1]):
            raise InputError(
                f"expected padding of dtype bool and shape {tuple(x.shape[:-1])}, True where the token is "
                f"real, got {padding.dtype} of shape {tuple(padding.shape)}"
            )

    def _check_weights(self) -> None:
        wrong, h, hkv = [], self.heads, self.kv_heads
        given = {name: t for name in WEIGHTS if (t := getattr(self, name)) is not None}
        for name, t in given.items():
            axes = 1 if name.startswith("b") else 2
            if t.dim() != axes or not t.dtype.is_floating_point:
                wrong.append(f"{name} with {axes} axes of a floating dtype, got {t.dtype} of shape {tuple(t.shape)}")
        if h < 1 or hkv < 1 or h % hkv:
            wrong.append(f"heads to be a multiple of kv_heads, got {h} and {hkv}")
        if wrong:
            raise InputError("SelfAttention: expected " + "; ".join(wrong))
        if len({(t.dtype, t.device) for t in given.values()}) > 1:
            wrong.append(
                "all weights of one dtype on one device, got "
                + ", ".join(f"{name} {t.dtype} on {t.device}" for name, t in given.items())
            )
        d = self.wq.shape[1]
        for name, heads in (("wq", h), ("wk", hkv), ("wv", hkv)):
            shape = tuple(getattr(self, name).shape)
            if shape[1] != d or shape[0] % heads or 0 in shape:
                wrong.append(f"{name} of shape ({heads} · head width, {d or 'd > 0'}), got {shape}")
        if not wrong and self.wq.shape[0] // h != self.wk.shape[0] // hkv:
            wrong.append(f"wq and wk of one head width, got {self.wq.shape[0] // h} and {self.wk.shape[0] // hkv}")
        values = h * self.wv.shape[0] // hkv
        if self.wo is not None and self.wo.shape[1] != values:
            wrong.append(f"wo of shape (d_out, {values}), got {tuple(self.wo.shape)}")
        for bias, weight in (("bq", "wq"), ("bk", "wk"), ("bv", "wv"), ("bo", "wo")):
            b, w = getattr(self, bias), getattr(self, weight)
            if b is not None and (w is None or b.shape != w.shape[:1]):
                wrong.append(
                    f"{bias} of the height of {weight}, got {tuple(b.shape)} and "
                    f"{'no ' + weight if w is None else tuple(w.shape)}"
                )
        if wrong:
            raise InputError("SelfAttention: expected " + "; ".join(wrong))
        for name, t in given.items():
            if not torch.isfinite(t).all():
                raise InputError(f"SelfAttention: expected finite weights, got NaN or ∞ in {name}")


def _split(x: Tensor, heads: int) -> Tensor:
    """(…, n, h·k) → (…, h, n, k)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _bias_of_head(score_bias: ScoreBias | None, index: int) -> ScoreBias | None:
    def pick(bias: Tensor) -> Tensor:
        return bias if bias.dim() < 3 or bias.shape[-3] == 1 else bias[..., index : index + 1, :, :]

    if score_bias is None or isinstance(score_bias, Tensor):
        return None if score_bias is None else pick(score_bias)
    return lambda i, j: pick(score_bias(i, j))
