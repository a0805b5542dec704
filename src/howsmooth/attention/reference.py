"""Attention and its derivative written out densely, as in the theory: slow, readable, float64.

All functions form n × n matrices. They are the reference that the fast implementations are tested against, and share no
code with them: masks, softmax and derivatives are implemented again. `**pattern` are the keyword arguments of `scores`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from howsmooth.attention.heads import SelfAttention
    from howsmooth.attention.pattern import ScoreBias


def scores(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    score_bias: ScoreBias | None = None,
    padding: Tensor | None = None,
    offset: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the scores (…, h, n, m), with −∞ where masked, and the slope of the soft cap at each; see `attend`."""
    n, m = q.shape[-2], k.shape[-2]
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    raw = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.mT
    slope = torch.ones_like(raw)
    if softcap is not None:
        slope = 1 - torch.tanh(raw / softcap) ** 2
        raw = softcap * torch.tanh(raw / softcap)
    i = torch.arange(n).unsqueeze(1)
    j = torch.arange(m).unsqueeze(0)
    if score_bias is not None:
        raw = raw + (score_bias if isinstance(score_bias, Tensor) else score_bias(i, j)).to(raw.dtype)
    position = i + (m - n if offset is None else offset)
    hidden = torch.zeros(n, m, dtype=torch.bool)
    if causal:
        hidden |= j > position
    if window is not None:
        hidden |= (j <= position - window) | (j >= position + window)
    raw = raw.masked_fill(hidden, -torch.inf)
    if padding is not None:
        raw = raw.masked_fill(~padding[..., None, None, :], -torch.inf)
    return raw, slope


def probabilities(s: Tensor) -> Tensor:
    """Compute the softmax over the last axis; a row that sees no key is zero."""
    return torch.softmax(s, -1).masked_fill(torch.isneginf(s).all(-1, keepdim=True), 0.0)


def forward(q: Tensor, k: Tensor, v: Tensor, **pattern: Any) -> Tensor:
    """Compute o = softmax(s) v, with q (…, h, n, k), k (…, hkv, m, k), v (…, hkv, m, w)."""
    s, _ = scores(q, k, **pattern)
    return probabilities(s) @ v.repeat_interleave(q.shape[-3] // v.shape[-3], dim=-3)


def partials(q: Tensor, k: Tensor, v: Tensor, **pattern: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ∂o_i/∂q_i (h, n, w, k), ∂o_i/∂k_j (h, n, m, w, k) and P_ij = ∂o_i/∂v_j (h, n, m) of one sequence."""
    groups = q.shape[-3] // k.shape[-3]
    scale = pattern.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s, slope = scores(q, k, **pattern)
    p = probabilities(s)
    kk, vv = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
    o = p @ vv
    weight = scale * p * slope
    spread = vv.unsqueeze(-3) - o.unsqueeze(-2)  # v_j − o_i
    do_dq = torch.einsum("hij,hijw,hjk->hiwk", weight, spread, kk)
    do_dk = torch.einsum("hij,hijw,hik->hijwk", weight, spread, q)
    return do_dq, do_dk, p


def jvp(q: Tensor, k: Tensor, v: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, **pattern: Any) -> Tensor:
    """Compute the derivative of `forward` in the direction (dq, dk, dv)."""
    groups = q.shape[-3] // k.shape[-3]
    do_dq, do_dk, p = partials(q, k, v, **pattern)
    dk, dv = (t.repeat_interleave(groups, dim=-3) for t in (dk, dv))
    return (
        torch.einsum("hiwk,hik->hiw", do_dq, dq)
        + torch.einsum("hijwk,hjk->hiw", do_dk, dk)
        + torch.einsum("hij,hjw->hiw", p, dv)
    )


def vjp(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **pattern: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the transpose of `jvp`: the cotangents of q, k and v for the cotangent g of o."""
    kv_heads, groups = k.shape[-3], q.shape[-3] // k.shape[-3]
    do_dq, do_dk, p = partials(q, k, v, **pattern)

    def gather(t: Tensor) -> Tensor:  # heads of one group share their key and value
        return torch.unflatten(t, 0, (kv_heads, groups)).sum(1)

    return (
        torch.einsum("hiwk,hiw->hik", do_dq, g),
        gather(torch.einsum("hijwk,hiw->hjk", do_dk, g)),
        gather(torch.einsum("hij,hiw->hjw", p, g)),
    )


def jacobian(attention: SelfAttention, x: Tensor, padding: Tensor | None = None) -> Tensor:
    """Compute the dense Jacobian (n·d_out, n·d) of a layer at x (n, d), in float64.

    By the chain rule: the partial derivatives above, times the (rotated) projections, times the output projection.
    """
    a, x = attention.converted(dtype=torch.float64), x.double()
    n, d = x.shape
    pattern = dict(
        scale=a.scale, causal=a.causal, window=a.window, softcap=a.softcap, score_bias=a.score_bias, padding=padding
    )

    def project(weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        y = x @ weight.T if bias is None else x @ weight.T + bias
        return torch.unflatten(y, -1, (heads, -1)).transpose(0, 1)

    def rotate(y: Tensor) -> Tensor:
        return y if a.rotary is None else a.rotary(y)

    def weights(
        weight: Tensor, heads: int, rotated: bool
    ) -> Tensor:  # (h, n, width, d): applied to a change of token i
        w = torch.unflatten(weight, 0, (heads, -1)).unsqueeze(1).expand(-1, n, -1, -1)
        return rotate(w.movedim(-1, 0)).movedim(0, -1) if rotated else w

    q, k = rotate(project(a.wq, a.bq, a.heads)), rotate(project(a.wk, a.bk, a.kv_heads))
    v = project(a.wv, a.bv, a.kv_heads)
    do_dq, do_dk, p = partials(q, k, v, **pattern)
    groups = a.heads // a.kv_heads
    wq = weights(a.wq, a.heads, True)
    wk = weights(a.wk, a.kv_heads, True).repeat_interleave(groups, dim=0)
    wv = weights(a.wv, a.kv_heads, False).repeat_interleave(groups, dim=0)

    through_keys = torch.einsum("hijwk,hjkd->hijwd", do_dk, wk) + torch.einsum("hij,hjwd->hijwd", p, wv)
    through_query = torch.einsum("hiwk,hikd->hiwd", do_dq, wq)
    heads = through_keys + torch.einsum("hiwd,ij->hijwd", through_query, torch.eye(n, dtype=x.dtype))
    heads = heads.permute(1, 0, 3, 2, 4).reshape(n, -1, n * d)  # (i, h·w, j·d): heads concatenated
    return (heads if a.wo is None else a.wo @ heads).reshape(-1, n * d)
