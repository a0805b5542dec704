"""The derivatives of attention as functions of autograd. Two orders are exact, and a third raises an error.

    Attend       (q, k, v, β)                    → o, normaliser, log-sum-exp ℓ if it is asked for
    Pushforward  (q, k, v, β; dq, dk, dv, dβ)    → do, μ = dℓ          forward mode of Attend
    Pullback     (q, k, v, β; g, g_ℓ)            → gradients           reverse mode of Attend, transpose of Pushforward
    Curvature    (q, k, v, β; dq, dk, dv, dβ; g, g_ℓ)                  the derivative of Pullback along (dq, dk, dv, dβ)

β is a table that is added to the scores, or None. The Hessian of ⟨g, o⟩ + ⟨g_ℓ, ℓ⟩ is symmetric, so that Curvature is
the reverse mode of Pushforward and both modes of Pullback. The output o and the normalisers of the rows are passed as
arguments so that they are not recomputed. The derivatives in q, k, v and β are total derivatives, which is why those in
o and the normalisers are None.

Every function begins with the arguments (q, k, v, padding, β), those of derivatives with (…, o, normaliser), and ends
with the pattern and a flag.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsmooth.attention import backend, blockwise

if TYPE_CHECKING:
    from howsmooth.attention.pattern import Pattern


T = TypeVar("T")
_LEVEL = 1  # of the `vmap` in autograd, which PyTorch does not nest


def _traceable(compute: Callable[..., T]) -> Callable[..., T]:
    """Replace in-place writes while a graph is recorded, whose targets `torch.func.linearize` would fold."""

    @functools.wraps(compute)
    def forward(*args: Any) -> T:
        result: T = (torch.func.functionalize(compute) if get_proxy_mode() is not None else compute)(*args)
        return result

    # PyTorch inspects the signature at every call, which takes longer than a small kernel unless it is stored.
    forward.__signature__ = inspect.signature(compute)  # type: ignore[attr-defined]  # functions may have it
    return forward


class Batchable(torch.autograd.Function):
    """A differentiable map of tensors with any leading axes, so that `vmap` is one more leading axis."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Apply the map."""
        if _are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if (batched := batched_by_autograd(*args)) is not None:
            return cls._apply_below_autograd(batched, *args)
        # As in torch.autograd.Function, without binding arguments to names, which takes longer than a small kernel.
        base: Any = super(torch.autograd.Function, cls)
        return base.apply(*unwrap_dead_wrappers(args))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Apply the map to tensors with the mapped axis in front."""

        def lead(arg: Any, dim: int | None) -> Any:
            if not isinstance(arg, Tensor):
                return arg
            return arg.expand(info.batch_size, *arg.shape) if dim is None else arg.movedim(dim, 0)

        out = cls.apply(*(lead(arg, dim) for arg, dim in zip(args, in_dims, strict=True)))
        return out, (0,) * len(out) if isinstance(out, tuple) else 0

    @classmethod
    def _apply_below_autograd(cls, batched: Tensor, *args: Any) -> Any:
        """Apply the map to tensors that `batched_by_autograd` finds, with that axis in front."""
        size = len(torch._remove_batch_dim(batched, _LEVEL, 1, 0))
        out = cls.apply(*(torch._remove_batch_dim(t, _LEVEL, size, 0) if isinstance(t, Tensor) else t for t in args))
        if isinstance(out, tuple):
            return tuple(torch._add_batch_dim(t, 0, _LEVEL) for t in out)
        return torch._add_batch_dim(out, 0, _LEVEL)


class Attend(Batchable):
    """(q, k, v, β) → o, with the normalisers of the rows, and the log-sum-exp if `with_lse`."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, table: Tensor | None, pattern: Pattern, with_lse: bool
    ) -> tuple[Tensor, ...]:
        """Compute the output and the normalisers."""
        o, normaliser = backend.forward(
            _four(q), _four(k), _four(v), _with_table(pattern, table, q.shape[:-3]), _two(padding)
        )
        o, normaliser = o.view(*q.shape[:-1], v.shape[-1]).to(q.dtype), normaliser.view(*q.shape[:-1], 2)
        return (o, normaliser, log_sum_exp(normaliser)) if with_lse else (o, normaliser)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern, ctx.with_lse = inputs
        _save(ctx, *tensors, *output[:2])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: Any, g_lse: Tensor | None = None) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        at = ctx.saved_tensors
        if g is None and g_lse is None:
            return (None,) * 7
        g = torch.zeros_like(at[5]) if g is None else g
        dq, dk, dv, *d_table = Pullback.apply(*at, g, g_lse, ctx.pattern, ctx.needs_input_grad[4])
        return dq, dk, dv, None, d_table[0] if d_table else None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Compute the forward mode."""
        _refuse_nested_forward_mode()
        at = ctx.saved_tensors
        dq, dk, dv, _, d_table, *_ = tangents
        tangents = _without_none(at, (dq, dk, dv))
        do, *means = Pushforward.apply(
            *at, *tangents, d_table, ctx.pattern, ctx.with_lse or needs_means(*at, *tangents)
        )
        return (do, None, *means) if ctx.with_lse else (do, None)


class Pushforward(Batchable):
    """The forward mode of `Attend`: (dq, dk, dv, dβ) → do, and if `with_means` the row sums of P∘ds, that of ℓ."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        table: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        d_table: Tensor | None,
        pattern: Pattern,
        with_means: bool,
    ) -> tuple[Tensor, ...]:
        """Compute the tangent of the output."""
        linearised = _linearise(q, k, v, padding, table, o, normaliser, pattern)
        tangents = _four(dq), _four(dk), _four(dv)
        if not with_means and d_table is None:
            return (linearised.jvp(*tangents).view(o.shape).to(o.dtype),)
        do, means = linearised.jvp_with_means(*tangents, _flat_table(d_table, q.shape[:-3]))
        do = do.view(o.shape).to(o.dtype)
        return (do, means.view(o.shape[:-1])) if with_means else (do,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern, ctx.with_means = inputs
        _save(ctx, *tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, h: Tensor | None, h_lse: Tensor | None = None) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        if h is None and h_lse is None:
            return (None,) * 13
        saved = ctx.saved_tensors  # read once: activation checkpointing allows no more
        *at, dq, dk, dv, d_table, do = saved[:12]
        if ctx.with_means:
            means = saved[12]
        else:
            _, means = Pushforward.apply(*at, dq, dk, dv, d_table, ctx.pattern, True)
        h = torch.zeros_like(do) if h is None else h
        needed = ctx.needs_input_grad
        gq, gk, gv, *g_table = Curvature.apply(*at, dq, dk, dv, d_table, do, means, h, h_lse, ctx.pattern, needed[4])
        pulled: tuple[Tensor | None, ...] = (None,) * 4
        if any(needed[7:11]):
            pulled = _padded(Pullback.apply(*at, h, h_lse, ctx.pattern, needed[10]))
        return gq, gk, gv, None, g_table[0] if g_table else None, None, None, *pulled, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        """Refuse a third derivative."""
        refuse("third derivative")


class Pullback(Batchable):
    """The reverse mode of `Attend`: (g, g_ℓ) → (dq, dk, dv), and dβ if `needs_table`."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        table: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        g: Tensor,
        g_lse: Tensor | None,
        pattern: Pattern,
        needs_table: bool,
    ) -> tuple[Tensor, ...]:
        """Compute the cotangents of q, k, v and β."""
        linearised = _linearise(q, k, v, padding, table, o, normaliser, pattern)
        flat_lse = _three(g_lse)
        grads = linearised.vjp(_four(g), flat_lse)
        found = tuple(t.view(x.shape).to(x.dtype) for t, x in zip(grads, (q, k, v), strict=True))
        if not needs_table or table is None:
            return found
        shape = _table_shape(table, q.shape[:-3])
        return *found, _like_table(linearised.table_gradient(_four(g), shape, flat_lse), table, q.shape[:-3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern, ctx.needs_table = inputs
        _save(ctx, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        *at, g, g_lse = ctx.saved_tensors
        hq, hk, hv, h_table = _padded(cotangents)
        if hq is None and hk is None and hv is None and h_table is None:
            return (None,) * 11
        tangents = *_without_none(at, (hq, hk, hv)), h_table
        dg, means = Pushforward.apply(*at, *tangents, ctx.pattern, True)
        found: tuple[Tensor | None, ...] = (None,) * 4
        needed = ctx.needs_input_grad
        if any(needed[:5]):
            found = _padded(Curvature.apply(*at, *tangents, dg, means, g, g_lse, ctx.pattern, needed[4]))
        return *found[:3], None, found[3], None, None, dg, None if g_lse is None else means, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Compute the forward mode."""
        _refuse_nested_forward_mode()
        *at, g, g_lse = ctx.saved_tensors
        dq, dk, dv, _, d_table, _, _, dg, dg_lse, *_ = tangents
        along = *_without_none(at, (dq, dk, dv)), d_table
        pushed = Pushforward.apply(*at, *along, ctx.pattern, True)
        out: tuple[Tensor, ...] = Curvature.apply(*at, *along, *pushed, g, g_lse, ctx.pattern, ctx.needs_table)
        if dg is not None or dg_lse is not None:
            dg = torch.zeros_like(g) if dg is None else dg
            changed = Pullback.apply(*at, dg, dg_lse, ctx.pattern, ctx.needs_table)
            out = tuple(a + b for a, b in zip(out, changed, strict=True))
        return out


class Curvature(Batchable):
    """The derivative of `Pullback` along (dq, dk, dv, dβ)."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        table: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        d_table: Tensor | None,
        do: Tensor,
        means: Tensor,
        g: Tensor,
        g_lse: Tensor | None,
        pattern: Pattern,
        needs_table: bool,
    ) -> tuple[Tensor, ...]:
        """Compute the derivative of the cotangents."""
        linearised = _linearise(q, k, v, padding, table, o, normaliser, pattern)
        lead = q.shape[:-3]
        along = _four(do), means.reshape(math.prod(lead), *means.shape[-2:])
        tangents = _four(dq), _four(dk), _four(dv)
        flat_lse, flat_table = _three(g_lse), _flat_table(d_table, lead)
        grads = linearised.hvp(*tangents, _four(g), along, flat_lse, flat_table)
        found = tuple(t.view(x.shape).to(x.dtype) for t, x in zip(grads, (q, k, v), strict=True))
        if not needs_table or table is None:
            return found
        shape = _table_shape(table, lead)
        gradient = linearised.table_gradient(_four(g), shape, flat_lse, (*tangents, flat_table))
        return *found, _like_table(gradient, table, lead)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that derivatives need."""
        g, g_lse, ctx.pattern, ctx.needs_table = inputs[13:]
        ctx.is_tensor = [isinstance(t, Tensor) for t in inputs]
        _save(ctx, *inputs[:7], g, g_lse)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Compute the reverse mode in the tangents, in which this is linear, and refuse a third derivative.

        `torch.autograd.functional.hvp` transposes a product with the Hessian so: it differentiates it in its vector.
        """
        *at, g, g_lse = ctx.saved_tensors
        # Not `needs_input_grad`: q, k, v and g require gradients here, but the caller may want those of dq, dk, dv.
        wanted = _wanted(ctx)
        if transforms() or any(wanted[:5]) or any(wanted[13:15]):
            refuse("third derivative")
        hq, hk, hv, h_table = _padded(cotangents)
        if hq is None and hk is None and hv is None and h_table is None:
            return (None,) * 17
        along = *_without_none(at, (hq, hk, hv)), h_table
        pushed = Pushforward.apply(*at, *along, ctx.pattern, True)
        found = _padded(Curvature.apply(*at, *along, *pushed, g, g_lse, ctx.pattern, wanted[10]))
        return *(None,) * 7, *found, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> tuple[Tensor, ...]:
        """Return NaN inside a dual level, and refuse a third derivative of `torch.func`."""
        # A backward pass inside `forward_ad.dual_level()` also computes tangents of the gradients, which are third
        # derivatives. Its caller wants the gradients, and anyone who reads their tangents finds NaN.
        if transforms():
            refuse("third derivative")
        q, k, v, _padding, table = ctx.saved_tensors[:5]
        outputs = (q, k, v, table) if ctx.needs_table and table is not None else (q, k, v)
        return tuple(torch.full_like(x, torch.nan) for x in outputs)


def _wanted(ctx: Any) -> list[bool]:
    """Return for each argument whether this backward pass computes a gradient from the one returned for it."""
    edges = iter(ctx.next_functions)
    return [_is_executed(next(edges)[0]) if is_tensor else False for is_tensor in ctx.is_tensor]


def _is_executed(node: Any) -> bool:
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf among the inputs of torch.autograd.grad
        return True


def log_sum_exp(normaliser: Tensor) -> Tensor:
    """Return the log-sum-exp of the rows, −∞ for a row that sees no key, from normalisers (…, 2)."""
    largest, logarithm = normaliser.unbind(-1)
    return torch.where(torch.isposinf(logarithm), -torch.inf, largest + logarithm)


def records(*tensors: Tensor | None) -> bool:
    """Return whether autograd records operations on these tensors for a backward pass."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def batched_by_autograd(*args: Any) -> Tensor | None:
    """Return a tensor with a hidden axis, if there is one.

    `torch.autograd.grad(…, is_grads_batched=True)`, and `vectorize=True` of `torch.autograd.functional` with it, has a
    `vmap` of its own, which asks no function for a rule and lacks rules for views.
    """
    return next((t for t in args if isinstance(t, Tensor) and is_legacy_batchedtensor(t)), None)


def needs_means(*tensors: Tensor | None) -> bool:
    """Return whether a backward pass through the tangent may follow, which needs the row sums of P∘ds."""
    # Transforms of torch.func hide who asks. A sum too many costs less than the tangent again.
    return bool(transforms()) or records(*tensors)


def transforms() -> list[TransformType]:
    """Return the transforms of `torch.func` around this call, outermost first."""
    return [interpreter.key() for interpreter in get_interpreter_stack() or ()]


def refuse(what: str) -> NoReturn:
    """Raise the error for a derivative that does not exist."""
    raise NotImplementedError(
        f"attend has no {what}, which would silently be wrong. Two orders are exact, in reverse over reverse, forward "
        "over reverse and reverse over forward; use one of these"
    )


def _refuse_nested_forward_mode() -> None:
    # PyTorch runs the jvp of a custom function with forward mode switched off, so that an outer forward mode would
    # silently lose its tangent.
    if transforms().count(TransformType.Jvp) > 1:
        refuse("forward mode of forward mode")


def _linearise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Tensor | None,
    table: Tensor | None,
    o: Tensor,
    normaliser: Tensor,
    pattern: Pattern,
) -> backend.FusedLinearisation | blockwise.Linearisation:
    pattern = _with_table(pattern, table, q.shape[:-3])
    return backend.linearise(_four(q), _four(k), _four(v), _four(o), _four(normaliser), pattern, _two(padding))


def _with_table(pattern: Pattern, table: Tensor | None, lead: tuple[int, ...]) -> Pattern:
    """Return the pattern with the table, and with a mask for all sequences where `vmap` has added an axis."""
    if table is not None:
        pattern = dataclasses.replace(pattern, score_bias=_flat_table(table, lead))
    if pattern.mask is not None and len(pattern.mask.blocks) not in (1, b := math.prod(lead)):
        pattern = dataclasses.replace(pattern, mask=pattern.mask.repeated(b // len(pattern.mask.blocks)))
    return pattern


def _table_shape(table: Tensor, lead: tuple[int, ...]) -> tuple[int, int]:
    """Return the sequences and heads for which the table's gradient is computed: 1 sequence if all share the table."""
    return 1 if math.prod(table.shape[:-3]) == 1 else math.prod(lead), table.shape[-3]


def _flat_table(table: Tensor | None, lead: tuple[int, ...]) -> Tensor | None:
    """Reshape (…, h or 1, n, m), whose leading axes broadcast to `lead`, to (b or 1, h or 1, n, m)."""
    if table is None:
        return None
    if all(size == 1 or stride == 0 for size, stride in zip(table.shape[:-3], table.stride(), strict=False)):
        return table[(0,) * (table.dim() - 3)].unsqueeze(0)
    return table.expand(*lead, *table.shape[-3:]).reshape(math.prod(lead), *table.shape[-3:])


def _like_table(gradient: Tensor, table: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Sum a gradient (b or 1, h or 1, n, m) to the shape of the table."""
    if len(gradient) != 1 or math.prod(lead) == 1:
        gradient = gradient.view(*lead, *gradient.shape[1:])
    else:
        gradient = gradient.view(*(1,) * (table.dim() - 3), *gradient.shape[1:])
    return gradient.sum_to_size(table.shape).to(table.dtype)


def _padded(found: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return (dq, dk, dv, dβ), where dβ may be missing."""
    return found if len(found) == 4 else (*found, None)


def _without_none(at: Any, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Return the tangents of q, k and v, with zeros in place of None."""
    return tuple(torch.zeros_like(x) if t is None else t for x, t in zip(at, tangents, strict=False))


def _four(t: Tensor) -> Tensor:
    """Reshape (…, h, n, c) to (b, h, n, c)."""
    return t if t.dim() == 4 else t.reshape(math.prod(t.shape[:-3]), *t.shape[-3:])


def _three(t: Tensor | None) -> Tensor | None:
    """Reshape (…, h, n) to (b, h, n)."""
    return None if t is None else t.reshape(math.prod(t.shape[:-2]), *t.shape[-2:])


def _two(padding: Tensor | None) -> Tensor | None:
    """Reshape (…, m) to (b, m)."""
    return None if padding is None else padding.reshape(math.prod(padding.shape[:-1]), padding.shape[-1])


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
