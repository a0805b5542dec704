"""L2 attention (Kim, Papamakarios and Mnih 2021): scores by distance, queries and keys tied, Lipschitz everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.op import attend
from howsmooth.attention.weights import GivenWeights
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


class L2Attention(GivenWeights):
    """L2 multi-head self-attention with W^K = W^Q, a map (n, d) → (n, d_out) or (b, n, d) → (b, n, d_out).

    For head h, with y = W^{Qᵀ}x and k = d/h:

        P_ij ∝ exp(−|y_i − y_j|²/√k),    o_i = Σ_j P_ij W^{Vᵀ} W^Q y_j / √k

    Weights have the layout of `torch.nn.Linear`, (out, in). They are converted to the dtype of the tokens in each call.
    `howsmooth.local_lipschitz` measures this map by automatic differentiation.

    Args:
        wq: W^{Qᵀ} of all heads, stacked, (d, d).
        wv: W^{Vᵀ} of all heads, stacked, (d, d).
        wo: W^{Oᵀ}, (d_out, d).
        heads: number of heads, a divisor of d.

    Raises:
        InputError: if shapes, dtypes or devices do not fit each other, or if a weight is not finite.

    Reference:
        kim2021lipschitz

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> L2Attention(eye, eye, eye)(torch.zeros(3, 2, dtype=torch.float64)).shape
        torch.Size([3, 2])
    """

    wq: Tensor
    wv: Tensor
    wo: Tensor

    def __init__(
        self, wq: Float[Tensor, "d d"], wv: Float[Tensor, "d d"], wo: Float[Tensor, "d_out d"], *, heads: int = 1
    ) -> None:
        """Check and register the weights."""
        super().__init__()
        for name, t in (("wq", wq), ("wv", wv), ("wo", wo)):
            if not isinstance(t, Tensor) or t.dim() != 2:
                got = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise InputError(f"L2Attention: expected {name} as a matrix (out, in), a tensor, got {got}")
        if isinstance(heads, bool) or not isinstance(heads, int):
            raise InputError(f"L2Attention: expected heads as a whole number, got {heads!r}")
        d = wq.shape[-1]
        if d < 1 or wq.shape != (d, d) or wv.shape != (d, d) or wo.shape[1] != d or heads < 1 or d % heads:
            raise InputError(
                "L2Attention: expected wq and wv of shape (d, d), wo of shape (d_out, d) and heads that "
                "divide d, got "
                f"{tuple(wq.shape)}, {tuple(wv.shape)}, {tuple(wo.shape)} and {heads}"
            )
        if len({(t.dtype, t.device) for t in (wq, wv, wo)}) > 1 or not wq.dtype.is_floating_point:
            raise InputError(
                "L2Attention: expected weights of one floating dtype on one device, got "
                + ", ".join(f"{t.dtype} on {t.device}" for t in (wq, wv, wo))
            )
        if not all(bool(torch.isfinite(t).all()) for t in (wq, wv, wo)):
            raise InputError("L2Attention: expected finite weights, got NaN or ∞")
        for name, t in (("wq", wq), ("wv", wv), ("wo", wo)):
            self.register_weight(name, t)
        self.heads, self.d, self.k = heads, d, d // heads

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor:
            """See `forward`."""

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d_out"]:
        """Compute the output (…, n, d_out) at tokens x (n, d) or (b, n, d)."""
        if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"L2Attention: expected tokens as a tensor of a floating dtype, got {got}")
        if x.dim() not in (2, 3) or x.shape[-1] != self.d or x.shape[-2] == 0:
            raise InputError(
                f"L2Attention: expected tokens of shape (n, {self.d}) or (b, n, {self.d}), got {tuple(x.shape)}"
            )
        wq, wv, wo = (t.to(x.dtype) for t in (self.wq, self.wv, self.wo))  # so that float64 tokens give a reference
        y = F.linear(x, wq).unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (…, h, n, k)
        # −|y_i − y_j|² = 2 y_i·y_j − |y_j|² − |y_i|²: the second term is one more channel of the key, and softmax
        # cancels the last. The mean is subtracted first, since squares of large entries would lose the differences.
        z = y - y.mean(-2, keepdim=True).detach()
        queries = torch.cat([2 * z, torch.ones_like(z[..., :1])], -1)
        keys = torch.cat([z, -z.square().sum(-1, keepdim=True)], -1)
        back = wv.unflatten(0, (self.heads, -1)) @ wq.unflatten(0, (self.heads, -1)).mT  # W^{Vᵀ} W^Q (h, k, k)
        o = attend(queries, keys, y @ back.mT * self.k**-0.5, scale=self.k**-0.5)
        return F.linear(o.transpose(-3, -2).flatten(-2), wo)

    def extra_repr(self) -> str:
        """Describe the map."""
        return f"d={self.d}, heads={self.heads}, {self.wq.dtype}"
