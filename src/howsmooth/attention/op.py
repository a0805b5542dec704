"""`attend`: softmax attention by the fastest implementation that supports the call, differentiable to second order."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import TransformType, _unwrap_for_grad, _wrap_for_grad, peek_interpreter_stack
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from howsmooth.attention import library
from howsmooth.attention.autograd import Attend, Pushforward, needs_means, records, transforms
from howsmooth.attention.pattern import Pattern, ScoreBias, ScoreFunction
from howsmooth.attention.sparse import SparseMask
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    Mask = SparseMask | BlockMask | Tensor

LARGEST_SINK = 60.0  # beyond the log-sum-exp of the other keys; more than that leaves nothing of the output

_CONVERTED: WeakKeyDictionary[Any, SparseMask] = WeakKeyDictionary()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    score_bias: ScoreBias | None = None,
    mask: Mask | None = None,
    padding: Tensor | None = None,
    sinks: Tensor | None = None,
    offset: int | None = None,
) -> Tensor:
    """Compute softmax attention in memory that is linear in the number of tokens.

    Differentiable by backward, forward mode, double backward, `torch.func` transforms and `vmap`. Arguments have the
    names of `torch.nn.functional.scaled_dot_product_attention` where it has them.

    Args:
        q: queries (…, h, n, k).
        k: keys (…, hkv, m, k), where h is a multiple of hkv.
        v: values (…, hkv, m, w).
        scale: factor of q·k; 1/√k by default.
        causal: whether a query sees only the keys up to its own position, i + `offset`.
        window: a query sees only keys less than `window` positions away.
        softcap: scores become softcap·tanh(score/softcap), before offsets and masks.
        score_bias: offsets of the scores: a table that broadcasts to (…, h, n, m), with a gradient if it requires one,
            or a function of the indices i (n, 1) and j (1, m), constant, whose result broadcasts to (h, n, m). Entries
            may be −∞.
        mask: which pairs count: a `SparseMask`, a `BlockMask` of flex attention, or a boolean table that broadcasts to
            (…, h, n, m). Blocks of a sparse mask that no pair needs are not computed.
        padding: True where the key is real, (…, m). A query that sees no key has the output 0.
        sinks: scores (h,) of one more key for each head, whose value is 0: it takes weight from the others, as in
            gpt-oss.
        offset: position of query 0 among the keys; m − n by default, so that the last query meets the last key.

    Returns:
        The output (…, h, n, w).

    Raises:
        InputError: if shapes, dtypes or options do not fit each other.

    Example:
        >>> q = k = v = torch.eye(3, dtype=torch.float64).unsqueeze(0)
        >>> attend(q, k, v, causal=True)[0, 0]
        tensor([1., 0., 0.], dtype=torch.float64)
    """
    found = _evaluate(
        q, k, v, scale, causal, window, softcap, score_bias, mask, padding, offset, with_lse=sinks is not None
    )
    if sinks is None:
        return found[0]
    o, lse = found
    if sinks.shape not in ((1,), lse.shape[-2:-1]) or not sinks.is_floating_point():
        raise InputError(f"attend: expected sinks of shape ({lse.shape[-2]},), got {sinks.dtype} {tuple(sinks.shape)}")
    # exp(sink) in the denominator of the softmax multiplies the output by 1 / (1 + exp(sink − lse)).
    # Not by sigmoid, whose derivatives w (1 − w) … lose the digits of 1 − w, the weight of the sink.
    ratio = (sinks.to(lse.dtype).unsqueeze(-1) - lse).clamp(max=LARGEST_SINK).exp()
    kept = (1 + ratio).reciprocal().unsqueeze(-1)
    return (o * kept).to(o.dtype)


def attend_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    score_bias: ScoreBias | None = None,
    mask: Mask | None = None,
    padding: Tensor | None = None,
    offset: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention and the log-sum-exp of the scores of each query, both with all derivatives.

    Attention over several sets of keys can be merged from these two.

    Args:
        q: queries, as in `attend`.
        k: keys, as in `attend`.
        v: values, as in `attend`.
        scale: as in `attend`.
        causal: as in `attend`.
        window: as in `attend`.
        softcap: as in `attend`.
        score_bias: as in `attend`.
        mask: as in `attend`.
        padding: as in `attend`.
        offset: as in `attend`.

    Returns:
        The output (…, h, n, w) and the log-sum-exp (…, h, n), in float32 for half precision; −∞ for a query that sees
        no key.

    Example:
        >>> x = torch.zeros(1, 4, 2)
        >>> attend_with_lse(x, x, x)[1].exp()
        tensor([[4., 4., 4., 4.]])
    """
    o, lse = _evaluate(q, k, v, scale, causal, window, softcap, score_bias, mask, padding, offset, with_lse=True)
    return o, lse


def _evaluate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    score_bias: ScoreBias | None,
    mask: Mask | None,
    padding: Tensor | None,
    offset: int | None,
    with_lse: bool,
) -> tuple[Tensor, ...]:
    """Return (o,), or (o, lse) if asked for; see `attend`."""
    q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if isinstance(mask, Tensor):
        if score_bias is not None or mask.dtype != torch.bool:
            raise InputError(
                f"attend: expected a boolean mask and no score_bias beside it, got {mask.dtype}; put −∞ into the table"
            )
        score_bias, mask = mask, None
    pattern = pattern_of(q, k, v, scale, causal, window, softcap, score_bias, offset, _sparse(mask))
    lead = q.shape[:-3]
    if not lead == k.shape[:-3] == v.shape[:-3]:  # torch.broadcast_shapes alone takes as long as a small kernel
        lead = torch.broadcast_shapes(lead, k.shape[:-3], v.shape[:-3])
        q, k, v = (t.expand(*lead, *t.shape[-3:]) for t in (q, k, v))
    if padding is not None:
        if padding.dtype != torch.bool or padding.shape[-1:] != k.shape[-2:-1]:
            raise InputError(
                f"expected padding of dtype bool and shape (…, {k.shape[-2]}), True where the key is "
                f"real, got {padding.dtype} of shape {tuple(padding.shape)}"
            )
        padding = padding.expand(*lead, k.shape[-2])
    table = None
    if isinstance(pattern.score_bias, Tensor):
        table = pattern.score_bias
        table = table.reshape(*(1,) * (len(lead) + 3 - table.dim()), *table.shape)
        pattern = dataclasses.replace(pattern, score_bias=None)
    if torch.compiler.is_compiling():
        return library.recorded(q, k, v, padding, table, pattern, with_lse)
    if forward_ad._current_level >= 0:
        around = transforms()
        if around == [TransformType.Jvp]:
            return _evaluate_dual(peek_interpreter_stack().level(), q, k, v, padding, table, pattern, with_lse)
        if not around and not records(q, k, v, table):
            return _evaluate_dual(None, q, k, v, padding, table, pattern, with_lse)
    elif not records(q, k, v, table) and peek_interpreter_stack() is None:
        return _without_normaliser(Attend.forward(q, k, v, padding, table, pattern, with_lse))
    return _without_normaliser(Attend.apply(q, k, v, padding, table, pattern, with_lse))


def _without_normaliser(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (found[0], *found[2:])


def _evaluate_dual(
    level: int | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Tensor | None,
    table: Tensor | None,
    pattern: Pattern,
    with_lse: bool,
) -> tuple[Tensor, ...]:
    """Compute the output and its tangent below `torch.func.jvp` of that level, or in a plain dual level.

    The result is that of `Attend` there, whose bookkeeping in Python takes longer than small kernels.
    """
    at, along = [], []
    for t in (q, k, v, padding, table):
        primal, tangent = (None, None) if t is None else forward_ad.unpack_dual(t)
        if level is not None:
            primal = None if primal is None else _unwrap_for_grad(primal, level)
            tangent = None if tangent is None else _unwrap_for_grad(tangent, level)
        at.append(primal)
        along.append(tangent)
    if level is None:
        outputs = _value_and_tangent(at, along, pattern, with_lse)
    else:
        with temporarily_pop_interpreter_stack():
            outputs = _value_and_tangent(at, along, pattern, with_lse)
    found = []
    for value, tangent in outputs:
        if level is not None:
            value = _wrap_for_grad(value, level)
            tangent = None if tangent is None else _wrap_for_grad(tangent, level)
        found.append(value if tangent is None else forward_ad.make_dual(value, tangent))
    return tuple(found)


def _value_and_tangent(
    at: list[Any], along: list[Any], pattern: Pattern, with_lse: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """Return the output, and the log-sum-exp if asked for, each with its tangent."""
    dq, dk, dv, _, d_table = along
    is_recorded = records(*at[:3], at[4], dq, dk, dv, d_table)
    compute, push = (Attend.apply, Pushforward.apply) if is_recorded else (Attend.forward, Pushforward.forward)
    o, normaliser, *lse = compute(*at, pattern, with_lse)
    values = [o, *lse]
    if dq is None and dk is None and dv is None and d_table is None:
        return [(value, None) for value in values]
    tangents = [torch.zeros_like(x) if t is None else t for x, t in zip(at[:3], (dq, dk, dv), strict=True)]
    with_means = with_lse or needs_means(*at[:3], at[4], *tangents)
    pushed = push(*at, o, normaliser, *tangents, d_table, pattern, with_means)
    return list(zip(values, pushed, strict=False))


def _sparse(mask: SparseMask | BlockMask | None) -> SparseMask | None:
    """Return the mask as a `SparseMask`; that of a `BlockMask` is made once."""
    if mask is None or isinstance(mask, SparseMask):
        return mask
    if not hasattr(mask, "kv_num_blocks"):
        raise InputError(
            "attend: expected a SparseMask, a BlockMask of torch.nn.attention.flex_attention or a boolean table as "
            f"mask, got {type(mask).__name__}"
        )
    if mask not in _CONVERTED:
        _CONVERTED[mask] = SparseMask.from_block_mask(mask)
    return _CONVERTED[mask]


def pattern_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    score_bias: ScoreBias | None,
    offset: int | None = None,
    mask: SparseMask | None = None,
) -> Pattern:
    """Return the pattern for these q, k and v; refuse arguments that do not fit each other. See `attend`."""
    wrong = []
    if min(q.dim(), k.dim(), v.dim()) < 3:
        raise InputError(
            "expected q, k, v with at least three axes (heads, tokens, width), got shapes "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; use unsqueeze for one head"
        )
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.dtype.is_floating_point:
        wrong.append(f"q, k, v of one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if q.shape[-1] != k.shape[-1]:
        wrong.append(f"q and k of one width, got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-3:-1] != v.shape[-3:-1]:
        wrong.append(f"k and v of the same heads and length, got {tuple(k.shape[-3:-1])} and {tuple(v.shape[-3:-1])}")
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        wrong.append(f"query heads that are a multiple of the key heads, got {q.shape[-3]} and {k.shape[-3]}")
    if 0 in (q.shape[-1], q.shape[-2], k.shape[-2]):
        wrong.append(f"at least one token and one channel, got q {tuple(q.shape)}, k {tuple(k.shape)}")
    if window is not None and window < 1:
        wrong.append(f"window ≥ 1, got {window}")
    if softcap is not None and not softcap > 0:
        wrong.append(f"softcap > 0, got {softcap}")
    if isinstance(score_bias, Tensor):
        n, m, heads = q.shape[-2], k.shape[-2], q.shape[-3]
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        full = torch.Size((*lead, heads, n, m))
        fits = score_bias.shape[-2:] == (n, m) and score_bias.dim() <= len(full)
        last = full[len(full) - score_bias.dim() :]  # Dynamo of torch 2.7 takes every zip for a strict one
        if not fits or any(a not in (1, b) for a, b in zip(score_bias.shape, last, strict=True)):
            wrong.append(
                f"a score_bias table of shape ({n}, {m}) or, broadcast, {tuple(full)}, got {tuple(score_bias.shape)}"
            )
        if score_bias.device != q.device:
            wrong.append(f"a score_bias on {q.device}, got one on {score_bias.device}")
    elif score_bias is not None and _requires_gradient(score_bias, q.device):
        wrong.append(
            "a constant function as score_bias, got one that requires a gradient, which would be lost; pass a table, "
            "or detach it"
        )
    if not q.device == k.device == v.device:
        wrong.append(f"q, k, v on one device, got {q.device}, {k.device}, {v.device}")
    if mask is not None:
        sequences, heads = mask.blocks.shape[:2]
        b = math.prod(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
        if (mask.n, mask.m) != (q.shape[-2], k.shape[-2]) or heads not in (1, q.shape[-3]) or sequences not in (1, b):
            wrong.append(
                f"a mask of {q.shape[-2]} × {k.shape[-2]} pairs for 1 or {b} sequences and 1 or {q.shape[-3]} heads, "
                f"got {mask.n} × {mask.m} for {sequences} and {heads}"
            )
        if mask.device != q.device:
            wrong.append(f"a mask on {q.device}, got one on {mask.device}; move it by mask.to(…)")
    if wrong:
        raise InputError("attend: expected " + "; ".join(wrong))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise InputError(f"attend: expected a finite scale, got {scale}")
    offset = k.shape[-2] - q.shape[-2] if offset is None else offset
    return Pattern(scale, bool(causal), window, softcap, score_bias, offset, mask)


def _requires_gradient(score_bias: ScoreFunction, device: torch.device) -> bool:
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return torch.as_tensor(score_bias(first, first)).requires_grad


def _autocast(t: Tensor) -> Tensor:
    """Return t in the dtype of `torch.autocast`, where that is enabled, as PyTorch's own attention takes it."""
    device = t.device.type
    if not torch.is_autocast_enabled(device) or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(device))
