"""Attention and its derivatives as operators of `torch.library`: what `torch.compile` and `torch.export` record.

    howsmooth::attention      (q, k, v, β)                       → o, normaliser, log-sum-exp ℓ
    howsmooth::attention_jvp  (q, k, v, β; dq, dk, dv, dβ)       → do, μ
    howsmooth::attention_vjp  (q, k, v, β; g, g_ℓ)               → the gradients of ⟨g, o⟩ + ⟨g_ℓ, ℓ⟩ in q, k, v, β
    howsmooth::attention_hvp  (q, k, v, β; dq, dk, dv, dβ; h, h_ℓ) → the gradients of ⟨h, do⟩ + ⟨h_ℓ, μ⟩ in q, k, v, β

A compiler sees each operator as one node with known shapes. Backward passes, `vmap` and autocast are registered with
the operators. Forward mode cannot be registered with `torch.library`, so `recorded` unpacks dual tensors itself. In
eager mode `howsmooth.attention.autograd` serves instead: `torch.autograd.Function` composes with all of `torch.func`,
and costs less.

Tensors have four axes, as in `howsmooth.attention.backend`; patterns are plain arguments. β is a table (b or 1, h or 1,
n, m) that is added to the scores, and a sparse mask is the list of its tensors. ℓ and the gradient of β are empty where
a flag does not ask for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import TransformType
from torch.library import CustomOpDef, custom_op

from howsmooth import kernels
from howsmooth.attention import backend, blockwise
from howsmooth.attention.arguments import shape_of
from howsmooth.attention.autograd import log_sum_exp, transforms
from howsmooth.attention.pattern import Pattern
from howsmooth.attention.sparse import SparseMask

# The arguments after the tensors: padding, table, sparse, scale, causal, window, softcap, offset, and a flag.
_SETTINGS = 9


@custom_op("howsmooth::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Tensor | None,
    table: Tensor | None,
    sparse: Sequence[Tensor],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    with_lse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the output, the normaliser of each row and its log-sum-exp."""
    pattern = _pattern(q, k, table, sparse, scale, causal, window, softcap, offset)
    o, normaliser = backend.forward(q, k, v, pattern, padding)
    lse = log_sum_exp(normaliser) if with_lse else normaliser.new_empty(0)
    return _laid_out(o, _output(q, v)), normaliser.contiguous(), lse


@custom_op("howsmooth::attention_jvp", mutates_args=())
def attention_jvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_table: Tensor | None,
    padding: Tensor | None,
    table: Tensor | None,
    sparse: Sequence[Tensor],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    unused: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the tangent of the output, and the row sums μ of P∘ds."""
    pattern = _pattern(q, k, table, sparse, scale, causal, window, softcap, offset)
    linearised = backend.linearise(q, k, v, o, normaliser, pattern, padding)
    do, mu = linearised.jvp_with_means(dq, dk, dv, d_table)
    return _laid_out(do, _output(q, v)), mu.contiguous()


@custom_op("howsmooth::attention_vjp", mutates_args=())
def attention_vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    g_lse: Tensor | None,
    padding: Tensor | None,
    table: Tensor | None,
    sparse: Sequence[Tensor],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    needs_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of ⟨g, o⟩ + ⟨g_ℓ, ℓ⟩."""
    pattern = _pattern(q, k, table, sparse, scale, causal, window, softcap, offset)
    linearised = backend.linearise(q, k, v, o, normaliser, pattern, padding)
    gq, gk, gv = (_laid_out(t, _gradient(x)) for t, x in zip(linearised.vjp(g, g_lse), (q, k, v), strict=True))
    return gq, gk, gv, _table_gradient(linearised, q, g, g_lse, None, table, needs_table)


@custom_op("howsmooth::attention_hvp", mutates_args=())
def attention_hvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_table: Tensor | None,
    do: Tensor,
    mu: Tensor,
    h: Tensor,
    h_lse: Tensor | None,
    padding: Tensor | None,
    table: Tensor | None,
    sparse: Sequence[Tensor],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
    needs_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of ⟨h, do⟩ + ⟨h_ℓ, μ⟩."""
    pattern = _pattern(q, k, table, sparse, scale, causal, window, softcap, offset)
    linearised = backend.linearise(q, k, v, o, normaliser, pattern, padding)
    grads = linearised.hvp(dq, dk, dv, h, (do, mu), h_lse, d_table)
    gq, gk, gv = (_laid_out(t, _gradient(x)) for t, x in zip(grads, (q, k, v), strict=True))
    return gq, gk, gv, _table_gradient(linearised, q, h, h_lse, (dq, dk, dv, d_table), table, needs_table)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _of_sums(q)
    lse = q.new_empty(q.shape[:-1] if settings[-1] else (0,), dtype=dtype)
    return _output(q, v), q.new_empty(*q.shape[:-1], 2, dtype=dtype), lse


@attention_jvp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _output(q, v), q.new_empty(q.shape[:-1], dtype=_of_sums(q))


@attention_vjp.register_fake
@attention_hvp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    table, needs_table = rest[-_SETTINGS + 1], rest[-1]
    gradient = torch.empty_like(table) if needs_table else q.new_empty(0)
    return _gradient(q), _gradient(k), _gradient(v), gradient


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, padding, table, sparse, scale, causal, window, softcap, offset, ctx.flag = inputs
    ctx.pattern = (scale, causal, window, softcap, offset)
    ctx.tensors, ctx.outputs = len(tensors), len(output)
    ctx.save_for_backward(*tensors, *output, padding, table, *sparse)
    ctx.set_materialize_grads(False)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _restored(ctx: Any) -> tuple[list[Any], list[Tensor], tuple[Any, ...]]:
    """Return the tensors before the settings, the outputs, and the settings without their flag."""
    saved = ctx.saved_tensors
    end = ctx.tensors + ctx.outputs
    padding, table, *sparse = saved[end:]
    return list(saved[: ctx.tensors]), list(saved[ctx.tensors : end]), (padding, table, sparse, *ctx.pattern)


def _gradients(found: tuple[Tensor, ...], settings: tuple[Any, ...], needs_table: bool) -> tuple[Any, ...]:
    """Return the gradients of q, k and v, and of the settings."""
    *three, table = found
    sparse = [None] * len(settings[2])
    return (*three, (None, table if needs_table else None, sparse, *(None,) * (_SETTINGS - 3)))


def _needs_table(ctx: Any, settings: tuple[Any, ...]) -> bool:
    return settings[1] is not None and bool(ctx.needs_input_grad[ctx.tensors + 1])


def _attention_backward(ctx: Any, g: Tensor | None, _: Any, g_lse: Tensor | None) -> tuple[Any, ...]:
    (q, k, v), (o, normaliser, _lse), settings = _restored(ctx)
    needs_table = _needs_table(ctx, settings)
    g = torch.zeros_like(o) if g is None else g
    g_lse = g_lse if ctx.flag else None
    found = attention_vjp(q, k, v, o, normaliser, g, g_lse, *settings, needs_table)
    *three, rest = _gradients(found, settings, needs_table)
    return *three, *rest


def _jvp_backward(ctx: Any, h: Tensor | None, h_lse: Tensor | None) -> tuple[Any, ...]:
    (*at, dq, dk, dv, d_table), (do, mu), settings = _restored(ctx)
    needs_table = _needs_table(ctx, settings)
    h = torch.zeros_like(do) if h is None else h
    found = attention_hvp(*at, dq, dk, dv, d_table, do, mu, h, h_lse, *settings, needs_table)
    *primal, rest = _gradients(found, settings, needs_table)
    moves_table = d_table is not None and bool(ctx.needs_input_grad[8])
    *tangent, moved = attention_vjp(*at, h, h_lse, *settings, moves_table)
    return *primal, None, None, *tangent, moved if moves_table else None, *rest


def _vjp_backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    (*at, g, g_lse), _outputs, settings = _restored(ctx)
    needs_table = _needs_table(ctx, settings)
    along = [torch.zeros_like(x) if t is None else t for x, t in zip(at[:3], cotangents[:3], strict=True)]
    h_table = cotangents[3] if ctx.flag else None
    dg, mu = attention_jvp(*at, *along, h_table, *settings, False)
    found = attention_hvp(*at, *along, h_table, dg, mu, g, g_lse, *settings, needs_table)
    *three, rest = _gradients(found, settings, needs_table)
    return *three, None, None, dg, None if g_lse is None else mu, *rest


attention.register_autograd(_attention_backward, setup_context=_save_attention)
attention_jvp.register_autograd(_jvp_backward, setup_context=_save)
attention_vjp.register_autograd(_vjp_backward, setup_context=_save)


def _vmapped(operator: CustomOpDef) -> Callable[..., tuple[Any, Any]]:
    """Return the rule of `vmap` for an operator: the mapped axis becomes part of the axis of sequences."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        b = _front(args[0], in_dims[0], size).shape[1]
        *tensors, padding, table, sparse, scale, causal, window, softcap, offset, flag = args
        *dims, padding_dim, table_dim, sparse_dims = in_dims[: len(tensors) + 3]
        if any(dim is not None for dim in sparse_dims or ()):
            raise NotImplementedError("attention under vmap: expected one sparse mask for all, got a mapped one")
        flat: list[Any] = []
        for t, dim in zip((*tensors, padding), (*dims, padding_dim), strict=True):
            flat.append(None if t is None else _front(t, dim, size).flatten(0, 1))
        *tensors, padding = flat
        shares_table = False
        if table is not None:
            # A gradient for each sample needs a table for each sample.
            mapped = _front(table, table_dim, size)
            shares_table = mapped.shape[1] < b
            table = mapped.expand(size, b, *mapped.shape[2:]).flatten(0, 1)
        if sparse and len(sparse[0]) > 1:
            blocks, tiles, *lists = sparse
            q, k = tensors[:2]
            mask = SparseMask(blocks, tiles, q.shape[2], k.shape[2], tuple(lists))
            sparse = mask.repeated(size).tensors()
        out = operator(*tensors, padding, table, sparse, scale, causal, window, softcap, offset, flag)
        # An output that was not asked for is empty and has one axis.
        found = [t.unflatten(0, (size, b)) if t.dim() > 1 else t.expand(size, *t.shape) for t in out]
        if shares_table and len(found) == 4 and found[3].dim() > 2:
            found[3] = found[3].sum(1, keepdim=True)
        return tuple(found), (0,) * len(found)

    return rule


def _front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """Return t with the mapped axis in front."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


for _operator in (attention, attention_jvp, attention_vjp, attention_hvp):
    _operator.register_vmap(_vmapped(_operator))


def _autocast_rule(device: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the rule of autocast: q, k and v take its dtype, as in PyTorch's own attention."""
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "AutocastCUDA" if device == "cuda" else "AutocastCPU"))

    def rule(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(key):
            q, k, v = (t if t.dtype == torch.float64 else t.to(dtype) for t in (q, k, v))
            found: tuple[Tensor, Tensor, Tensor] = attention(q, k, v, *settings)
            return found

    return rule


# `register_autocast` of torch.library casts to one dtype, fixed beforehand; these follow that of the context.
_RULES = torch.library.Library("howsmooth", "FRAGMENT")
for _device, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    _RULES.impl("attention", _autocast_rule(_device), _key)


def recorded(
    q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, table: Tensor | None, pattern: Pattern, with_lse: bool
) -> tuple[Tensor, ...]:
    """Compute attention while a graph is recorded, with its tangent if q, k, v or the table is a dual tensor.

    Args:
        q: Queries (…, h, n, k).
        k: Keys (…, hkv, m, k).
        v: Values (…, hkv, m, w).
        padding: (…, m), True where the key is real; None if all are.
        table: (…, h or 1, n, m), added to the scores, or None.
        pattern: The pattern of scores. A `score_bias` that is a function becomes a table here.
        with_lse: Whether to return the log-sum-exp.

    Returns:
        The output (…, h, n, w), and the log-sum-exp (…, h, n) if asked for; dual tensors if an argument is one.
    """
    n, m, lead = q.shape[-2], k.shape[-2], q.shape[:-3]
    if pattern.score_bias is not None and not isinstance(pattern.score_bias, Tensor):
        i, j = torch.arange(n, device=q.device).unsqueeze(1), torch.arange(m, device=q.device).unsqueeze(0)
        table = torch.as_tensor(pattern.score_bias(i, j))
        table = table.expand(*table.shape[:-2], n, m)
    if table is not None:
        table = table.reshape(*(1,) * (4 - table.dim()), *table.shape)
        if table.dim() > 4:
            shared = math.prod(shape_of(table)[:-3]) == 1
            table = table.expand(*(table.shape[:-3] if shared else lead), *table.shape[-3:]).flatten(0, -4)
    sparse = [] if pattern.mask is None else pattern.mask.tensors()
    b = math.prod(lead)
    if len(lead) != 1:
        q, k, v = (t.reshape(b, *t.shape[-3:]) for t in (q, k, v))
        padding = None if padding is None else padding.reshape(b, m)
    tangents: list[Tensor | None]
    if _is_differentiated_in_the_graph():
        values = _composed(q, k, v, padding, table, pattern, with_lse)
        tangents = [None] * len(values)
    else:
        values, tangents = _recorded(q, k, v, padding, table, sparse, pattern, with_lse)
    found = []
    for value, tangent in zip(values, tangents, strict=True):
        if len(lead) != 1:
            value = value.view(*lead, *value.shape[1:])
            tangent = None if tangent is None else tangent.view(value.shape)
        found.append(value if tangent is None else forward_ad.make_dual(value, tangent))
    return tuple(found)


def _is_differentiated_in_the_graph() -> bool:
    """Return whether `torch.func.grad`, `vjp` or `jacrev` is called inside the function that is recorded."""
    return TransformType.Grad in transforms()


# Dynamo calls it and takes its result as a constant, as `torch.compiler.assume_constant_result`, which imports Dynamo.
_is_differentiated_in_the_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions may have it


def _composed(
    q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, table: Tensor | None, pattern: Pattern, with_lse: bool
) -> list[Tensor]:
    """Compute attention by PyTorch's own operations on n × m scores, which PyTorch differentiates itself.

    The operators of `torch.library` have no reverse mode inside transforms of `torch.func`.
    """
    n, m, dtype = q.shape[2], k.shape[2], q.dtype
    q, k, v = (backend.upcast_half(t) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) if t.shape[1] != q.shape[1] else t for t in (k, v))
    s = pattern.scale * q @ k.mT
    if pattern.softcap is not None:
        s = pattern.softcap * torch.tanh(s / pattern.softcap)
    if table is not None:
        s = s.masked_fill(~table, -torch.inf) if table.dtype == torch.bool else s + table.to(s.dtype)
    i, j = torch.arange(n, device=s.device).unsqueeze(1), torch.arange(m, device=s.device).unsqueeze(0)
    if pattern.mask is not None:
        s = s.masked_fill(~pattern.mask.dense(), -torch.inf)
    near = dataclasses.replace(pattern, mask=None).visible(i, j)
    if near is not None:
        s = s.masked_fill(~near, -torch.inf)
    if padding is not None:
        s = s.masked_fill(~padding[:, None, None, :], -torch.inf)
    # A row that sees no key is computed with scores 0 and erased: the derivative of a softmax of −∞ is not defined.
    empty = torch.isneginf(s).all(-1, keepdim=True)
    s = s.masked_fill(empty, 0.0)
    o = (torch.softmax(s, -1).masked_fill(empty, 0.0) @ v).to(dtype)
    return [o, torch.logsumexp(s, -1).masked_fill(empty.squeeze(-1), -torch.inf)] if with_lse else [o]


def _recorded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Tensor | None,
    table: Tensor | None,
    sparse: list[Tensor],
    pattern: Pattern,
    with_lse: bool,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the output, and the log-sum-exp if asked for, and the tangents of both."""
    numbers = (pattern.scale, pattern.causal, pattern.window, pattern.softcap, pattern.offset)
    if forward_ad._current_level >= 0:
        duals = [forward_ad.unpack_dual(t) for t in (q, k, v)]
        d_table = None
        if table is not None and table.is_floating_point():
            table, d_table = forward_ad.unpack_dual(table)
        if d_table is not None or any(dual.tangent is not None for dual in duals):
            at = [dual.primal for dual in duals]
            along = [torch.zeros_like(x) if t is None else t for x, t in duals]
            o, normaliser, lse = attention(*at, padding, table, sparse, *numbers, with_lse)
            do, mu = attention_jvp(*at, o, normaliser, *along, d_table, padding, table, sparse, *numbers, False)
            return ([o, lse], [do, mu]) if with_lse else ([o], [do])
    o, _, lse = attention(q, k, v, padding, table, sparse, *numbers, with_lse)
    return ([o, lse], [None, None]) if with_lse else ([o], [None])


def _pattern(
    q: Tensor,
    k: Tensor,
    table: Tensor | None,
    sparse: Sequence[Tensor],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> Pattern:
    mask = None
    if sparse:
        blocks, tiles, *lists = sparse
        mask = SparseMask(blocks, tiles, q.shape[2], k.shape[2], tuple(lists))
    return Pattern(scale, causal, window, softcap, table, offset, mask)


def _table_gradient(
    linearised: backend.FusedLinearisation | blockwise.Linearisation,
    q: Tensor,
    g: Tensor,
    g_lse: Tensor | None,
    along: tuple[Tensor, Tensor, Tensor, Tensor | None] | None,
    table: Tensor | None,
    needs_table: bool,
) -> Tensor:
    if not needs_table or table is None:
        return q.new_empty(0)
    b, h = table.shape[:2]
    return linearised.table_gradient(g, (b, h), g_lse, along).to(table.dtype).contiguous()


def _output(q: Tensor, v: Tensor) -> Tensor:
    return kernels.empty_like(q, q.shape[1], q.shape[2], v.shape[3], q.dtype)


def _gradient(x: Tensor) -> Tensor:
    _, heads, n, width = x.shape
    return kernels.empty_like(x, heads, n, width, x.dtype)


def _of_sums(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _laid_out(found: Tensor, expected: Tensor) -> Tensor:
    """Return `found` with the strides and the dtype that the compiler was promised."""
    if found.stride() == expected.stride() and found.dtype == expected.dtype:
        return found
    return expected.copy_(found)
