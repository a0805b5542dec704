"""`attend`: softmax attention by the fastest implementation that supports the call, differentiable to second order.

Four maps, each the derivative of another. Two orders are exact, and a third raises an error:

    Attend       (q, k, v)            → o
    Pushforward  (q, k, v; dq, dk, dv) → do, μ       forward mode of Attend
    Pullback     (q, k, v; g)          → dq, dk, dv  reverse mode of Attend; the transpose of Pushforward
    Curvature    (q, k, v; dq, dk, dv; g)            the derivative of Pullback along (dq, dk, dv)

The Hessian of ⟨g, o⟩ is symmetric, so that Curvature is the reverse mode of Pushforward and both modes of Pullback.
The output o and the normalisers of the rows are passed as arguments so that they are not recomputed. The derivatives in
q, k and v below are total derivatives, which is why those in o and the normalisers are None.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import TransformType, _unwrap_for_grad, _wrap_for_grad
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_pop_interpreter_stack
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from howsmooth.attention import backend, blockwise, library
from howsmooth.attention.pattern import Pattern, ScoreBias
from howsmooth.errors import InputError

T = TypeVar("T")


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
    padding: Tensor | None = None,
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
        score_bias: constant offsets of the scores: a function of the indices i (n, 1) and j (1, m) whose result
            broadcasts to (h, n, m), or a table of that shape. Entries may be −∞.
        padding: True where the key is real, (…, m). A query that sees no key has the output 0.
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
    q, k, v = _autocast(q), _autocast(k), _autocast(v)
    pattern = pattern_of(q, k, v, scale, causal, window, softcap, score_bias, offset)
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
    pattern = _flatten_table(pattern, lead)
    if torch.compiler.is_compiling():
        recorded = library.recorded(_four(q), _four(k), _four(v), _two(padding), pattern)
        return recorded.view(*q.shape[:-1], v.shape[-1])
    if forward_ad._current_level >= 0 and (level := _only_jvp_level()) is not None:
        return _attend_below(level, q, k, v, padding, pattern)
    output: Tensor = Attend.apply(q, k, v, padding, pattern)[0]
    return output


def _only_jvp_level() -> int | None:
    """Return the level of `torch.func.jvp` if that is the only transform of `torch.func` around this call."""
    transforms = retrieve_all_functorch_interpreters()
    if len(transforms) != 1 or transforms[0].key() != TransformType.Jvp:
        return None
    level: int = transforms[0].level()
    return level


def _attend_below(level: int, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, pattern: Pattern) -> Tensor:
    """Compute the output and its tangent below `torch.func.jvp`, where functorch does not intercept the functions.

    The result is that of `Attend` under the transform, whose bookkeeping in Python takes longer than small kernels.
    """
    duals = [forward_ad.unpack_dual(t) for t in (q, k, v)]
    primals: list[Tensor] = [_unwrap_for_grad(dual.primal, level) for dual in duals]
    tangents = [None if dual.tangent is None else _unwrap_for_grad(dual.tangent, level) for dual in duals]
    padding, do = None if padding is None else _unwrap_for_grad(padding, level), None
    with temporarily_pop_interpreter_stack():
        o, normaliser = Attend.apply(*primals, padding, pattern)
        if any(t is not None for t in tangents):
            along = [torch.zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]
            do = Pushforward.apply(*primals, padding, o, normaliser, *along, pattern)[0]
    output: Tensor = _wrap_for_grad(o, level)
    if do is not None:
        output = forward_ad.make_dual(output, _wrap_for_grad(do, level))
    return output


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
        if not fits or any(a not in (1, b) for a, b in zip(score_bias.shape[::-1], full[::-1], strict=False)):
            wrong.append(
                f"a score_bias table of shape ({n}, {m}) or, broadcast, {tuple(full)}, got {tuple(score_bias.shape)}"
            )
    if score_bias is not None and _requires_gradient(score_bias, q.device):
        wrong.append("a constant score_bias, got one that requires a gradient, which would be lost; detach it")
    if wrong:
        raise InputError("attend: expected " + "; ".join(wrong))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise InputError(f"attend: expected a finite scale, got {scale}")
    offset = k.shape[-2] - q.shape[-2] if offset is None else offset
    return Pattern(scale, bool(causal), window, softcap, score_bias, offset)


def _requires_gradient(score_bias: ScoreBias, device: torch.device) -> bool:
    if isinstance(score_bias, Tensor):
        return score_bias.requires_grad
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return torch.as_tensor(score_bias(first, first)).requires_grad


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

    if TYPE_CHECKING:  # torch leaves it untyped

        @classmethod
        def apply(cls, *args: Any) -> Any:
            """Apply the map."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Apply the map to tensors with the mapped axis in front."""

        def lead(arg: Any, dim: int | None) -> Any:
            if not isinstance(arg, Tensor):
                return arg
            return arg.expand(info.batch_size, *arg.shape) if dim is None else arg.movedim(dim, 0)

        out = cls.apply(*(lead(arg, dim) for arg, dim in zip(args, in_dims, strict=True)))
        return out, (0,) * len(out) if isinstance(out, tuple) else 0


class Attend(Batchable):
    """(q, k, v) → o, with the normalisers of the rows."""

    @staticmethod
    @_traceable
    def forward(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, pattern: Pattern) -> tuple[Tensor, Tensor]:
        """Compute the output and the normalisers."""
        pattern = _repeat_table(pattern, math.prod(q.shape[:-3]))
        o, normaliser = backend.forward(_four(q), _four(k), _four(v), pattern, _two(padding))
        return o.view(*q.shape[:-1], v.shape[-1]).to(q.dtype), normaliser.view(*q.shape[:-1], 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern = inputs
        _save(ctx, *tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        return *Pullback.apply(*ctx.saved_tensors, g, ctx.pattern), None, None

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, *_: Any) -> tuple[Any, None]:
        """Compute the forward mode."""
        _refuse_nested_forward_mode()
        q, k, v, *rest = ctx.saved_tensors
        tangents = (torch.zeros_like(x) if t is None else t for x, t in ((q, dq), (k, dk), (v, dv)))
        return Pushforward.apply(q, k, v, *rest, *tangents, ctx.pattern)[0], None


class Pushforward(Batchable):
    """The forward mode of `Attend`: (dq, dk, dv) → do, and the row sums of P∘ds, which `Curvature` needs."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        pattern: Pattern,
    ) -> tuple[Tensor, Tensor]:
        """Compute the tangent of the output."""
        linearised = _linearise(q, k, v, padding, o, normaliser, pattern)
        do, means = linearised.jvp_with_means(*(_four(t) for t in (dq, dk, dv)))
        return do.view(o.shape).to(o.dtype), means.view(o.shape[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern = inputs
        _save(ctx, *tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        *at, dq, dk, dv, do, means = ctx.saved_tensors
        curvature = Curvature.apply(*at, dq, dk, dv, do, means, g, ctx.pattern)
        pullback = Pullback.apply(*at, g, ctx.pattern)
        return *curvature, None, None, None, *pullback, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        """Refuse a third derivative."""
        _refuse("third derivative")


class Pullback(Batchable):
    """The reverse mode of `Attend`: g → (dq, dk, dv)."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        g: Tensor,
        pattern: Pattern,
    ) -> tuple[Tensor, ...]:
        """Compute the cotangents of q, k and v."""
        grads = _linearise(q, k, v, padding, o, normaliser, pattern).vjp(_four(g))
        return tuple(t.view(x.shape).to(x.dtype) for t, x in zip(grads, (q, k, v), strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that derivatives need."""
        *tensors, ctx.pattern = inputs
        _save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, hq: Tensor, hk: Tensor, hv: Tensor) -> tuple[Any, ...]:
        """Compute the reverse mode."""
        *at, g = ctx.saved_tensors
        dg, means = Pushforward.apply(*at, hq, hk, hv, ctx.pattern)
        curvature = (None, None, None)
        if any(ctx.needs_input_grad[:3]):
            curvature = Curvature.apply(*at, hq, hk, hv, dg, means, g, ctx.pattern)
        return *curvature, None, None, None, dg, None

    @staticmethod
    def jvp(
        ctx: Any,
        dq: Tensor | None,
        dk: Tensor | None,
        dv: Tensor | None,
        _padding: Any,
        _o: Any,
        _normaliser: Any,
        dg: Tensor | None,
        _pattern: Any,
    ) -> tuple[Any, ...]:
        """Compute the forward mode."""
        _refuse_nested_forward_mode()
        *at, g = ctx.saved_tensors
        tangents = [torch.zeros_like(x) if t is None else t for x, t in zip(at[:3], (dq, dk, dv), strict=True)]
        along = Pushforward.apply(*at, *tangents, ctx.pattern)
        out: tuple[Tensor, ...] = Curvature.apply(*at, *tangents, *along, g, ctx.pattern)
        if dg is not None:
            out = tuple(a + b for a, b in zip(out, Pullback.apply(*at, dg, ctx.pattern), strict=True))
        return out


class Curvature(Batchable):
    """The derivative of `Pullback` along (dq, dk, dv)."""

    @staticmethod
    @_traceable
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        o: Tensor,
        normaliser: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        do: Tensor,
        means: Tensor,
        g: Tensor,
        pattern: Pattern,
    ) -> tuple[Tensor, ...]:
        """Compute the derivative of the cotangents."""
        linearised = _linearise(q, k, v, padding, o, normaliser, pattern)
        along = _four(do), means.reshape(-1, *means.shape[-2:])
        grads = linearised.hvp(_four(dq), _four(dk), _four(dv), _four(g), along)
        return tuple(t.view(x.shape).to(x.dtype) for t, x in zip(grads, (q, k, v), strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the outputs, whose shapes `jvp` needs."""
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        """Refuse a third derivative."""
        _refuse("third derivative")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> tuple[Tensor, ...]:
        """Return NaN inside a dual level, and refuse a third derivative of `torch.func`."""
        # A backward pass inside `forward_ad.dual_level()` also computes tangents of the gradients, which are third
        # derivatives. Its caller wants the gradients, and anyone who reads their tangents finds NaN.
        if retrieve_all_functorch_interpreters():
            _refuse("third derivative")
        return tuple(torch.full_like(x, torch.nan) for x in ctx.saved_tensors)


def _linearise(
    q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, o: Tensor, normaliser: Tensor, pattern: Pattern
) -> backend.FusedLinearisation | blockwise.Linearisation:
    pattern = _repeat_table(pattern, math.prod(q.shape[:-3]))
    return backend.linearise(_four(q), _four(k), _four(v), _four(o), _four(normaliser), pattern, _two(padding))


def _autocast(t: Tensor) -> Tensor:
    """Return t in the dtype of `torch.autocast`, where that is enabled, as PyTorch's own attention takes it."""
    device = t.device.type
    if not torch.is_autocast_enabled(device) or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(device))


def _flatten_table(pattern: Pattern, lead: tuple[int, ...]) -> Pattern:
    """Return the pattern with a table that has leading axes flattened to (b or 1, h or 1, n, m)."""
    table = pattern.score_bias
    if not isinstance(table, Tensor) or table.dim() <= 3:
        return pattern
    if math.prod(table.shape[:-3]) > 1:
        table = table.expand(*lead, *table.shape[-3:])
    return dataclasses.replace(pattern, score_bias=table.reshape(-1, *table.shape[-3:]))


def _repeat_table(pattern: Pattern, b: int) -> Pattern:
    """Return the pattern with a table for b sequences, where `vmap` has added a leading axis."""
    table = pattern.score_bias
    if not isinstance(table, Tensor) or table.dim() < 4 or table.shape[0] in (1, b):
        return pattern
    return dataclasses.replace(pattern, score_bias=table.repeat(b // table.shape[0], 1, 1, 1))


def _four(t: Tensor) -> Tensor:
    """Reshape (…, h, n, c) to (b, h, n, c)."""
    return t.reshape(-1, *t.shape[-3:])


def _two(padding: Tensor | None) -> Tensor | None:
    """Reshape (…, m) to (b, m)."""
    return None if padding is None else padding.reshape(-1, padding.shape[-1])


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"attend has no {what}, which would silently be wrong. Two orders are exact, in reverse over reverse, forward "
        "over reverse and reverse over forward; use one of these"
    )


def _refuse_nested_forward_mode() -> None:
    # PyTorch runs the jvp of a custom function with forward mode switched off, so that an outer forward mode would
    # silently lose its tangent.
    modes = [level.key() for level in retrieve_all_functorch_interpreters()]
    if modes.count(TransformType.Jvp) > 1:
        _refuse("forward mode of forward mode")
