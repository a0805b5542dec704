"""One self-attention layer by its weights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from howsmooth.attention.arguments import check_tensor
from howsmooth.attention.jacobian import AttentionJacobian
from howsmooth.attention.op import attend
from howsmooth.attention.pattern import ScoreBias, ScoreFunction, ScoreOptions
from howsmooth.attention.rotary import Rotary
from howsmooth.attention.weights import GivenWeights, converted_weight, is_finite
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

WEIGHTS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
OPTIONS = ("heads", "kv_heads", "scale", "causal", "window", "rotary", "softcap", "score_bias")


class SelfAttention(GivenWeights):
    """Multi-head self-attention f(X) of one layer, with its exact derivative.

    A `torch.nn.Module`. Weights have the layout of `torch.nn.Linear`, (out, in). Neither the residual connection nor
    the normalisation is part of the map. The weights are the given tensors, not copies: a `torch.nn.Parameter` is
    registered as it is, and a tensor computed from parameters (a slice of a fused projection, say) keeps its graph, so
    that gradients reach the original.

    Args:
        wq: projection to queries, (h·k, d).
        wk: projection to keys, (hkv·k, d).
        wv: projection to values, (hkv·w, d).
        wo: output projection, (d_out, h·w); without it the heads are concatenated.
        bq: bias of the queries, (h·k,).
        bk: bias of the keys, (hkv·k,).
        bv: bias of the values, (hkv·w,).
        bo: bias of the output, (d_out,).
        heads: number h of query heads.
        kv_heads: number hkv of key and value heads, each shared by h/hkv query heads; h by default.
        scale: factor of q·k; 1/√k by default.
        causal: whether a token sees only itself and those before it.
        window: a token sees only those less than `window` positions away.
        rotary: a `Rotary`, or a pair (cos, sin) of tables (positions, r).
        softcap: scores become softcap·tanh(score/softcap).
        score_bias: offsets of the scores, as a function or a table; see `howsmooth.attend`.

    Raises:
        InputError: if shapes, dtypes or devices do not fit each other, or if a weight is not finite.

    Example:
        >>> import torch
        >>> f = SelfAttention(*(torch.eye(2, dtype=torch.float64) for _ in range(3)))
        >>> f(torch.zeros(3, 2, dtype=torch.float64)).shape
        torch.Size([3, 2])
        >>> f.jacobian(torch.zeros(3, 2, dtype=torch.float64)).shape
        (6, 6)
        >>> f
        SelfAttention(d=2, heads=1, torch.float64)
    """

    wq: Tensor
    wk: Tensor
    wv: Tensor
    wo: Tensor | None
    bq: Tensor | None
    bk: Tensor | None
    bv: Tensor | None
    bo: Tensor | None
    rotary: Rotary | None
    score_bias: ScoreBias | None

    def __init__(
        self,
        wq: Float[Tensor, "hk d"],
        wk: Float[Tensor, "gk d"],
        wv: Float[Tensor, "gw d"],
        wo: Float[Tensor, "d_out hw"] | None = None,
        *,
        bq: Float[Tensor, " hk"] | None = None,
        bk: Float[Tensor, " gk"] | None = None,
        bv: Float[Tensor, " gw"] | None = None,
        bo: Float[Tensor, " d_out"] | None = None,
        heads: int = 1,
        kv_heads: int | None = None,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        rotary: Rotary | tuple[Tensor, Tensor] | None = None,
        softcap: float | None = None,
        score_bias: ScoreBias | None = None,
    ) -> None:
        """Check and register the weights."""
        super().__init__()
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        given = dict(zip(WEIGHTS, (wq, wk, wv, wo, bq, bk, bv, bo), strict=True))
        _check_weights(given, self.heads, self.kv_heads)
        for name, weight in given.items():
            self.register_weight(name, weight)
        self.scale = (wq.shape[0] // heads) ** -0.5 if scale is None else float(scale)
        self.causal, self.window, self.softcap = causal, window, softcap
        if isinstance(score_bias, Tensor):
            check_tensor("score_bias", score_bias)
            self.register_buffer("score_bias", score_bias, persistent=False)
        else:
            self.score_bias = score_bias
        if rotary is not None:  # a module of its own, since layers that share tables are converted one at a time
            rotary = rotary.shallow_copy() if isinstance(rotary, Rotary) else Rotary(*rotary)
        self.rotary = rotary
        if self.rotary is not None and (self.rotary.cos.dtype, self.rotary.cos.device) != (self.dtype, self.device):
            raise InputError(
                f"SelfAttention: expected rotary tables as the weights are ({self.dtype} on "
                f"{self.device}), got {self.rotary.cos.dtype} on {self.rotary.cos.device}; use .to()"
            )

    @classmethod
    def from_torch(cls, mha: nn.MultiheadAttention, *, causal: bool = False) -> SelfAttention:
        """Return the self-attention x ↦ mha(x, x, x) of a PyTorch layer.

        The weights are those of `mha`, not copies: gradients reach its parameters, and training it changes this layer.
        The three parts of its fused projection are slices with a history, and so buffers here; all eight weights of
        `copy.deepcopy(SelfAttention.from_torch(mha))` are parameters of its own. Tokens have the shape (n, d) or
        (b, n, d), whatever `batch_first` is, and `padding` is True where a token is real, the opposite of PyTorch's
        `key_padding_mask`.

        Args:
            mha: the layer, with keys and values of the width of its queries.
            causal: whether a token sees only itself and those before it; PyTorch has this in the mask of each call.

        Returns:
            The layer, which shares its weights with `mha`.

        Raises:
            InputError: if `mha` is not self-attention (add_bias_kv, add_zero_attn, other widths of keys or values), or
                draws dropout.

        Example:
            >>> mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
            >>> f, x = SelfAttention.from_torch(mha), torch.ones(1, 3, 8)
            >>> torch.allclose(f(x), mha(x, x, x)[0], atol=1e-6)
            True
        """
        if not isinstance(mha, nn.MultiheadAttention):
            raise InputError(
                f"SelfAttention.from_torch: expected a torch.nn.MultiheadAttention, got {type(mha).__name__}; give "
                "the weights of other layers to SelfAttention itself"
            )
        d = mha.embed_dim
        if mha.bias_k is not None or mha.bias_v is not None:
            raise InputError(
                "SelfAttention.from_torch: expected add_bias_kv=False, got True; keys and values that belong to no "
                "token are not supported here: measure the module itself, as a function of x"
            )
        if mha.add_zero_attn:
            raise InputError(
                "SelfAttention.from_torch: expected add_zero_attn=False, got True; measure the module itself, as a "
                "function of x"
            )
        if (mha.kdim, mha.vdim) != (d, d):
            raise InputError(
                f"SelfAttention.from_torch: expected kdim and vdim equal to embed_dim={d}, got kdim={mha.kdim} and "
                f"vdim={mha.vdim}; this is cross-attention, give the layer's weights to `howsmooth.attend`"
            )
        if mha.training and mha.dropout > 0:
            raise InputError(
                f"SelfAttention.from_torch: expected no dropout, got dropout={mha.dropout:g} in training mode; call "
                ".eval() on it"
            )
        # Slices rather than chunk, since these may be written into (by load_state_dict, or an optimiser of mha).
        parts = [slice(i * d, (i + 1) * d) for i in range(3)]
        if mha.in_proj_weight is None:
            weights = [mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight]
        else:
            weights = [mha.in_proj_weight[part] for part in parts]
        biases = [None if mha.in_proj_bias is None else mha.in_proj_bias[part] for part in parts]
        wq, wk, wv = weights
        return cls(
            wq,
            wk,
            wv,
            mha.out_proj.weight,
            bq=biases[0],
            bk=biases[1],
            bv=biases[2],
            bo=mha.out_proj.bias,
            heads=mha.num_heads,
            causal=causal,
        )

    @property
    def d(self) -> int:
        """Width of the tokens that come in."""
        return self.wq.shape[1]

    @property
    def d_out(self) -> int:
        """Width of the tokens that go out."""
        wo = self.wo
        return wo.shape[0] if wo is not None else self.heads * self.wv.shape[0] // self.kv_heads

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.wq.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.wq.device

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
            """See `forward`."""

    def forward(self, x: Float[Tensor, "*b n d"], padding: Bool[Tensor, "*b n"] | None = None) -> Tensor:
        """Compute f(X).

        Args:
            x: tokens (n, d) or (b, n, d).
            padding: True where the token is real, (n) or (b, n); all are by default.

        Returns:
            The output (n, d_out) or (b, n, d_out).

        Raises:
            InputError: if tokens or padding do not fit the layer.
        """
        self.check_tokens(x, padding)
        o = attend(*self.project(x), padding=padding, **self.pattern())
        o = o.transpose(-3, -2).flatten(-2)
        wo = self.wo
        return o if wo is None else F.linear(o, wo, self.bo)

    def project(self, x: Float[Tensor, "*b n d"], centred: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (…, h, n, k), k (…, hkv, n, k) and v (…, hkv, n, w), rotated where positions are rotary.

        Args:
            x: tokens.
            centred: whether the values are those of x minus its mean token, without their bias. Rows of P sum to 1, so
                that a shift of all values shifts the output and leaves the derivative as it is. A large shift would
                cancel in v − o, and take digits with it.
        """
        q = split_heads(F.linear(x, self.wq, self.bq), self.heads)
        k = split_heads(F.linear(x, self.wk, self.bk), self.kv_heads)
        v = F.linear(x - x.mean(-2, keepdim=True), self.wv) if centred else F.linear(x, self.wv, self.bv)
        v = split_heads(v, self.kv_heads)
        rotary = self.rotary
        return (q, k, v) if rotary is None else (rotary(q), rotary(k), v)

    def pattern(self) -> ScoreOptions:
        """Return the arguments of `attend` that belong to the layer."""
        return {
            "scale": self.scale,
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "score_bias": self.score_bias,
        }

    def jacobian(
        self,
        x: Float[Tensor, "*b n d"],
        padding: Bool[Tensor, "*b n"] | None = None,
        product_dtype: torch.dtype | None = None,
    ) -> AttentionJacobian:
        """Return D_X f as a matrix-free operator (n·d_out, n·d).

        Args:
            x: tokens (n, d), or (b, n, d) for a batch of operators, one for each sequence.
            padding: True where the token is real, (n) or (b, n).
            product_dtype: torch.bfloat16 or float16 rounds the factors of products, for speed on a GPU; the dtype of x
                declares its products precise enough to need no reference in float64.

        Returns:
            The operator; `.dense()` is its matrix, if small.

        Raises:
            InputError: if tokens or padding do not fit the layer, or scores are too large for the dtype.
        """
        self.check_tokens(x, padding)
        return AttentionJacobian(self, x, padding, product_dtype)

    def head(self, index: int) -> SelfAttention:
        """Return one head, with its slice of the output projection. All heads add up to f(X) − bo."""
        if not 0 <= index < self.heads:
            raise InputError(f"expected a head from 0 to {self.heads - 1}, got {index}; choose one of these")
        shared = index * self.kv_heads // self.heads
        wo = self.wo
        return self.replaced(
            wq=_rows(self.wq, index, self.heads),
            wk=_rows(self.wk, shared, self.kv_heads),
            wv=_rows(self.wv, shared, self.kv_heads),
            wo=None if wo is None else wo.unflatten(1, (self.heads, -1))[:, index],
            bq=None if self.bq is None else _rows(self.bq, index, self.heads),
            bk=None if self.bk is None else _rows(self.bk, shared, self.kv_heads),
            bv=None if self.bv is None else _rows(self.bv, shared, self.kv_heads),
            bo=None,
            heads=1,
            kv_heads=1,
            score_bias=_bias_of_head(self.score_bias, index),
        )

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> SelfAttention:
        """Return a copy in another dtype or on another device; `.to()` changes the layer itself, as in PyTorch.

        Gradients flow through the copy to the weights of the original where these require them, unless gradients are
        switched off (`torch.no_grad`). Weights that need no conversion share their memory with the original.

        Args:
            dtype: dtype of the copy, that of the layer by default.
            device: device of the copy, that of the layer by default.

        Returns:
            The copy.

        Example:
            >>> f = SelfAttention(*(torch.eye(2) for _ in range(3)))
            >>> f.converted(dtype=torch.float64).dtype, f.dtype
            (torch.float64, torch.float32)
        """
        changes: dict[str, Any] = {name: converted_weight(getattr(self, name), dtype, device) for name in WEIGHTS}
        if isinstance(self.score_bias, Tensor):
            # A boolean table says which pairs count, and is no number.
            of_table = None if self.score_bias.dtype == torch.bool else dtype
            changes["score_bias"] = self.score_bias.to(dtype=of_table, device=device)
        if self.rotary is not None:
            changes["rotary"] = self.rotary.converted(dtype=dtype, device=device)
        return self.replaced(**changes)

    def replaced(self, **changes: Any) -> SelfAttention:
        """Return a layer in which some arguments of the constructor are replaced; the others are shared with this one.

        Example:
            >>> f = SelfAttention(*(torch.eye(2) for _ in range(3)))
            >>> f.replaced(causal=True)
            SelfAttention(d=2, heads=1, causal, torch.float32)
        """
        return SelfAttention(**({name: getattr(self, name) for name in (*WEIGHTS, *OPTIONS)} | changes))

    def __repr__(self) -> str:
        """Describe the layer in one line, as error messages quote it."""
        traits = [f"d={self.d}", f"heads={self.heads}"]
        traits += [f"kv_heads={self.kv_heads}"] * (self.kv_heads != self.heads) + ["causal"] * self.causal
        traits += [f"window={self.window}"] * (self.window is not None) + ["rotary"] * (self.rotary is not None)
        traits += [f"softcap={self.softcap}"] * (self.softcap is not None)
        traits += ["score_bias"] * (self.score_bias is not None)
        return f"SelfAttention({', '.join(traits)}, {self.dtype})"

    def check_tokens(self, x: Tensor, padding: Tensor | None) -> None:
        """Refuse tokens and padding that do not fit this layer."""
        wq = self.wq
        d, dtype, device = wq.shape[1], wq.dtype, wq.device
        if x.dim() not in (2, 3) or x.shape[-1] != d:
            raise InputError(
                f"expected tokens of shape (n, {d}) or (b, n, {d}), got {tuple(x.shape)}; give tokens of this width"
            )
        if x.shape[-2] == 0:
            raise InputError(f"expected at least one token, got {tuple(x.shape)}; give some")
        if x.dtype != dtype or x.device != device:
            raise InputError(
                f"expected tokens as the weights are ({dtype} on {device}), got {x.dtype} on "
                f"{x.device}; use .to() on one of them"
            )
        if padding is not None and (padding.dtype != torch.bool or padding.shape != x.shape[:-1]):
            raise InputError(
                f"expected padding of dtype bool and shape {tuple(x.shape[:-1])}, True where the token is "
                f"real, got {padding.dtype} of shape {tuple(padding.shape)}"
            )


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (…, n, h·k) to (…, h, n, k)."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)


def _rows(t: Tensor, index: int, heads: int) -> Tensor:
    """Return the rows of one head."""
    return torch.unflatten(t, 0, (heads, -1))[index]


def _bias_of_head(score_bias: ScoreBias | None, index: int) -> ScoreBias | None:
    if score_bias is None:
        return None
    if isinstance(score_bias, Tensor):
        return _pick_head(score_bias, index)
    return partial(_evaluate_for_head, score_bias, index)  # not a closure, which pickle refuses


def _evaluate_for_head(score_bias: ScoreFunction, index: int, i: Tensor, j: Tensor) -> Tensor:
    return _pick_head(score_bias(i, j), index)


def _pick_head(bias: Tensor, index: int) -> Tensor:
    return bias if bias.dim() < 3 or bias.shape[-3] == 1 else bias[..., index : index + 1, :, :]


def _check_weights(weights: dict[str, Tensor | None], h: int, hkv: int) -> None:
    """Refuse weights by their names."""
    wrong = []
    given = {name: t for name, t in weights.items() if t is not None}
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
    d = given["wq"].shape[1]
    for name, heads in (("wq", h), ("wk", hkv), ("wv", hkv)):
        shape = tuple(given[name].shape)
        if shape[1] != d or shape[0] % heads or 0 in shape:
            wrong.append(f"{name} of shape ({heads} · head width, {d or 'd > 0'}), got {shape}")
    if not wrong and given["wq"].shape[0] // h != given["wk"].shape[0] // hkv:
        wrong.append(f"wq and wk of one head width, got {given['wq'].shape[0] // h} and {given['wk'].shape[0] // hkv}")
    values = h * given["wv"].shape[0] // hkv
    if "wo" in given and given["wo"].shape[1] != values:
        wrong.append(f"wo of shape (d_out, {values}), got {tuple(given['wo'].shape)}")
    for bias, weight in (("bq", "wq"), ("bk", "wk"), ("bv", "wv"), ("bo", "wo")):
        b, w = given.get(bias), given.get(weight)
        if b is not None and (w is None or b.shape != w.shape[:1]):
            wrong.append(
                f"{bias} of the height of {weight}, got {tuple(b.shape)} and "
                f"{'no ' + weight if w is None else tuple(w.shape)}"
            )
    if wrong:
        raise InputError("SelfAttention: expected " + "; ".join(wrong))
    for name, t in given.items():
        if not is_finite(t):
            raise InputError(f"SelfAttention: expected finite weights, got NaN or ∞ in {name}")
