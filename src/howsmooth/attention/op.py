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
from howsmooth.attention.arguments import (
    check_flag,
    check_number,
    check_tensor,
    check_whole,
    is_causal_bias,
    offset_of,
    shape_of,
)
from howsmooth.attention.autograd import Attend, Pushforward, batched_by_autograd, needs_means, records, transforms
from howsmooth.attention.pattern import Pattern, ScoreBias, ScoreFunction
from howsmooth.attention.sparse import SparseMask
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias
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
        v: values (…, hkv, m, w); if shared by another number of queries than the keys, the fewer heads are repeated.
        scale: factor of q·k; 1/√k by default.
        causal: whether a query sees only the keys up to its own position, i + `offset`.
        window: a query sees only keys less than `window` positions away.
        softcap: scores become softcap·tanh(score/softcap), before offsets and masks.
        score_bias: offsets of the scores: a table that broadcasts to (…, h, n, m), with a gradient if it requires one,
            or a function of the indices i (n, 1) and j (1, m), constant, whose result broadcasts to (h, n, m). Entries
            may be −∞. A `CausalBias` of `torch.nn.attention.bias` is a causal mask.
        mask: which pairs count: a `SparseMask`, a `BlockMask` of flex attention, or a boolean table that broadcasts to
            (…, h, n, m). Blocks of a sparse mask that no pair needs are not computed.
        padding: True where the key is real, (…, m). A query that sees no key has the output 0, as without any keys.
        sinks: scores (h,) of one more key for each head, whose value is 0: it takes weight from the others, as in
            gpt-oss.
        offset: position of query 0 among the keys; m − n by default, so that the last query meets the last key.

    Returns:
        The output (…, h, n, w).

    Raises:
        InputError: if shapes, dtypes or options do not fit each other, or a tensor does not contain its values: one
            that is nested, sparse, distributed, or of a subclass that computes by rules of its own.

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
    check_tensor("sinks", sinks)
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
    check_tensor("q", q)
    check_tensor("k", k)
    check_tensor("v", v)
    q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if is_causal_bias(mask):
        if score_bias is None:
            score_bias, mask = mask, None
        else:
            causal, offset, mask = True, _causal_offset(mask, q, k, causal, window, offset), None
    if isinstance(mask, Tensor):
        check_tensor("mask", mask)
        if score_bias is not None or mask.dtype != torch.bool:
            raise InputError(
                f"attend: expected a boolean mask and no score_bias beside it, got {mask.dtype}; put −∞ into the table"
            )
        score_bias, mask = mask, None
    if is_causal_bias(score_bias):
        causal, offset, score_bias = True, _causal_offset(score_bias, q, k, causal, window, offset), None
    k, v = _with_equal_heads(q, k, v)
    pattern = pattern_of(q, k, v, scale, causal, window, softcap, score_bias, offset, _sparse(mask))
    lead, of_k, of_v = shape_of(q)[:-3], shape_of(k)[:-3], shape_of(v)[:-3]
    if not lead == of_k == of_v:  # torch.broadcast_shapes alone takes as long as a small kernel
        lead = torch.broadcast_shapes(lead, of_k, of_v)
        q, k, v = (t.expand(*lead, *t.shape[-3:]) for t in (q, k, v))
    if padding is not None:
        padding = _expanded_padding(padding, lead, k)
    table = None
    if isinstance(pattern.score_bias, Tensor):
        table = pattern.score_bias
        table = table.reshape(*(1,) * (len(lead) + 3 - table.dim()), *table.shape)
        pattern = dataclasses.replace(pattern, score_bias=None)
    if torch.compiler.is_compiling() or q.device.type == "meta" or torch.jit.is_tracing():
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


def _causal_offset(bias: CausalBias, q: Tensor, k: Tensor, causal: bool, window: int | None, offset: int | None) -> int:
    """Return the offset of a causal mask that hides what a `CausalBias` hides, and the causal mask beside it if any."""
    if window is not None:
        raise InputError("attend: expected a CausalBias or a window, got both; use causal=True, window= and offset=")
    n, m = shape_of(q)[-2], shape_of(k)[-2]
    found = offset_of(bias, n, m)
    if not causal:
        return found
    return min(found, m - n if offset is None else check_whole("offset", offset))


def _with_equal_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return k and v with the same heads, repeated where the heads of one of them are shared by more queries."""
    if min(q.dim(), k.dim(), v.dim()) < 3:
        return k, v
    h, of_k, of_v = shape_of(q)[-3], shape_of(k)[-3], shape_of(v)[-3]
    if of_k == of_v or 0 in (of_k, of_v) or h % of_k or h % of_v:
        return k, v
    shared = math.lcm(of_k, of_v)
    return _with_heads(k, shared), _with_heads(v, shared)


def _with_heads(t: Tensor, heads: int) -> Tensor:
    """Return t (…, hkv, m, c) with each head repeated: (…, heads, m, c)."""
    found = shape_of(t)[-3]
    if found == 1:
        return t.expand(*t.shape[:-3], heads, *t.shape[-2:])
    return t if found == heads else t.repeat_interleave(heads // found, -3)


def _expanded_padding(padding: Tensor, lead: tuple[int, ...], k: Tensor) -> Tensor:
    """Return the padding for each sequence, (*lead, m)."""
    check_tensor("padding", padding)
    m, found = shape_of(k)[-2], shape_of(padding)
    if padding.dtype != torch.bool or found[-1:] != (m,) or not _broadcasts(found[:-1], lead):
        raise InputError(
            f"expected padding of dtype bool and shape (…, {m}), True where the key is real, that broadcasts to "
            f"{(*lead, m)}, got {padding.dtype} of shape {tuple(found)}"
        )
    if padding.device != k.device:
        raise InputError(f"attend: expected padding on {k.device}, got one on {padding.device}")
    return padding.expand(*k.shape[:-3], k.shape[-2])


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether a tensor of a shape can be expanded to another one."""
    if len(shape) > len(full):
        return False
    last = full[len(full) - len(shape) :]  # Dynamo of torch 2.7 takes every zip for a strict one
    # The equal size first: one that is only known when a graph runs cannot be compared with 1.
    return all(a in (b, 1) for a, b in zip(shape, last, strict=True))


def _lead_of(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the leading axes that those of q, k and v broadcast to, or None if they do not fit."""
    leads = [shape[:-3] for shape in shapes]
    if all(lead == leads[0] for lead in leads):
        return leads[0]
    try:
        return tuple(torch.broadcast_shapes(*leads))
    except RuntimeError:
        return None


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
    by_autograd = records(*at[:3], at[4], dq, dk, dv, d_table) or batched_by_autograd(dq, dk, dv, d_table) is not None
    compute, push = (Attend.apply, Pushforward.apply) if by_autograd else (Attend.forward, Pushforward.forward)
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
    at_q, at_k, at_v = shape_of(q), shape_of(k), shape_of(v)
    if min(len(at_q), len(at_k), len(at_v)) < 3:
        raise InputError(
            "expected q, k, v with at least three axes (heads, tokens, width), got shapes "
            f"{tuple(at_q)}, {tuple(at_k)}, {tuple(at_v)}; use unsqueeze for one head"
        )
    heads, n, m = at_q[-3], at_q[-2], at_k[-2]
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.dtype.is_floating_point:
        wrong.append(f"q, k, v of one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if at_q[-1] != at_k[-1]:
        wrong.append(f"q and k of one width, got {at_q[-1]} and {at_k[-1]}")
    if at_k[-3:-1] != at_v[-3:-1]:
        wrong.append(f"k and v of the same heads and length, got {tuple(at_k[-3:-1])} and {tuple(at_v[-3:-1])}")
    if heads != at_k[-3] and (0 in (heads, at_k[-3]) or heads % at_k[-3]):
        wrong.append(f"query heads that are a multiple of the key heads, got {heads} and {at_k[-3]}")
    lead = _lead_of(at_q, at_k, at_v)
    if lead is None:
        wrong.append(f"q, k, v of sequences that broadcast, got {tuple(at_q)}, {tuple(at_k)}, {tuple(at_v)}")
    if isinstance(score_bias, Tensor):
        check_tensor("score_bias", score_bias)
        found = shape_of(score_bias)
        full = (*(lead or ()), heads, n, m)
        if lead is not None and (found[-2:] != (n, m) or not _broadcasts(found, full)):
            wrong.append(f"a score_bias table of shape ({n}, {m}) or, broadcast, {full}, got {tuple(found)}")
        if score_bias.dtype.is_complex:
            wrong.append(f"a real score_bias, got {score_bias.dtype}")
        if score_bias.device != q.device:
            wrong.append(f"a score_bias on {q.device}, got one on {score_bias.device}")
    elif score_bias is not None and not callable(score_bias):
        wrong.append(
            "score_bias as a table, a torch.Tensor, or a function of positions (see `ScoreFunction`), got "
            f"{type(score_bias).__name__}"
        )
    elif score_bias is not None and _requires_gradient(score_bias, q.device):
        wrong.append(
            "a constant function as score_bias, got one that requires a gradient, which would be lost; pass a table, "
            "or detach it"
        )
    if not q.device == k.device == v.device:
        wrong.append(f"q, k, v on one device, got {q.device}, {k.device}, {v.device}")
    if mask is not None:
        sequences, of_mask = mask.blocks.shape[:2]
        b = math.prod(lead or ())
        if (mask.n, mask.m) != (n, m) or of_mask not in (1, heads) or sequences not in (1, b):
            wrong.append(
                f"a mask of {n} × {m} pairs for 1 or {b} sequences and 1 or {heads} heads, "
                f"got {mask.n} × {mask.m} for {sequences} and {of_mask}"
            )
        if mask.device != q.device:
            wrong.append(f"a mask on {q.device}, got one on {mask.device}; move it by mask.to(…)")
    if wrong:
        raise InputError("attend: expected " + "; ".join(wrong))
    # Without channels all scores are 0, whatever their factor.
    scale = max(at_q[-1], 1) ** -0.5 if scale is None else check_number("scale", scale)
    window = None if window is None else check_whole("window", window, 1)
    softcap = None if softcap is None else check_number("softcap", softcap, positive=True)
    offset = m - n if offset is None else check_whole("offset", offset)
    return Pattern(scale, check_flag("causal", causal), window, softcap, score_bias, offset, mask)


def _requires_gradient(score_bias: ScoreFunction, device: torch.device) -> bool:
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return torch.as_tensor(score_bias(first, first)).requires_grad


def _autocast(t: Tensor) -> Tensor:
    """Return t in the dtype of `torch.autocast`, where that is enabled, as PyTorch's own attention takes it."""
    device = t.device.type
    if device == "meta":  # which autocast does not know
        return t
    if not torch.is_autocast_enabled(device) or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(device))
