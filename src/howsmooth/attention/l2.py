"""L2 attention (Kim, Papamakarios and Mnih 2021): scores by distance, queries and keys tied, Lipschitz everywhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.op import attend
from howsmooth.errors import InputError


class L2Attention:
    """L2 multi-head self-attention with W^K = W^Q, as a callable (n, d) → (n, d_out) or (b, n, d) → (b, n, d_out).

    Of head h, with y = W^{Qᵀ}x and k = d/h:

        P_ij ∝ exp(−|y_i − y_j|²/√k),    o_i = Σ_j P_ij W^{Vᵀ} W^Q y_j / √k

    Weights have the layout of `torch.nn.Linear`, (out, in): wq (d, d) holds W^{Qᵀ} of all heads one above the other,
    wv (d, d) likewise W^{Vᵀ}, wo (d_out, d) is W^{Oᵀ}. `howsmooth.local_lipschitz` measures it by differentiation.

    Reference: kim2021lipschitz.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> L2Attention(eye, eye, eye)(torch.zeros(3, 2, dtype=torch.float64)).shape
    torch.Size([3, 2])
    """

    def __init__(self, wq: Tensor, wv: Tensor, wo: Tensor, *, heads: int = 1):
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
        self.wq, self.wv, self.wo, self.heads, self.d, self.k = wq, wv, wo, heads, d, d // heads

    def __call__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"L2Attention: expected tokens as a tensor of a floating dtype, got {got}")
        if x.dim() not in (2, 3) or x.shape[-1] != self.d or x.shape[-2] == 0:
            raise InputError(
                f"L2Attention: expected tokens of shape (n, {self.d}) or (b, n, {self.d}), got {tuple(x.shape)}"
            )
        wq, wv, wo = (t.to(x.dtype) for t in (self.wq, self.wv, self.wo))  # a float64 twin of x asks for float64
        y = F.linear(x, wq).unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (…, h, n, k)
        # −|y_i − y_j|² = 2 y_i·y_j − |y_j|² − |y_i|²: one more channel of the key, and what softmax drops. Seen from
        # the middle, wherever that is, or squares would swallow the differences.
        z = y - y.mean(-2, keepdim=True).detach()
        queries = torch.cat([2 * z, torch.ones_like(z[..., :1])], -1)
        keys = torch.cat([z, -z.square().sum(-1, keepdim=True)], -1)
        back = wv.unflatten(0, (self.heads, -1)) @ wq.unflatten(0, (self.heads, -1)).mT  # W^{Vᵀ} W^Q (h, k, k)
        o = attend(queries, keys, y @ back.mT * self.k**-0.5, scale=self.k**-0.5)
        return F.linear(o.transpose(-3, -2).flatten(-2), wo)

    def __repr__(self) -> str:
        return f"L2Attention(d={self.d}, heads={self.heads}, {self.wq.dtype})"
