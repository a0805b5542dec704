"""Attention and its derivatives as operators of `torch.library`: what `torch.compile` and `torch.export` record.

    howsmooth::attention      (q, k, v)                  → o, normaliser
    howsmooth::attention_jvp  (q, k, v; dq, dk, dv)      → do, μ
    howsmooth::attention_vjp  (q, k, v; g)               → the gradients of ⟨g, o⟩ in q, k, v
    howsmooth::attention_hvp  (q, k, v; dq, dk, dv; h)   → the gradients of ⟨h, do⟩ in q, k, v

A compiler sees each operator as one node with known shapes. Backward passes are registered with the operators. Forward
mode cannot be registered with `torch.library`, so `recorded` unpacks dual tensors itself. In eager mode
`howsmooth.attention.op` serves instead: `torch.autograd.Function` composes with all of `torch.func`, and costs less.

Tensors have four axes, as in `howsmooth.attention.backend`; patterns are plain arguments.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.library import custom_op

from howsmooth import kernels
from howsmooth.attention import backend
from howsmooth.attention.pattern import Pattern

_PATTERN_ARGUMENTS = 7  # padding, bias, scale, causal, window, softcap, offset


@custom_op("howsmooth::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output and the normaliser of each row."""
    pattern = Pattern(scale, causal, window, softcap, bias, offset)
    o, normaliser = backend.forward(q, k, v, pattern, padding)
    return _laid_out(o, _output(q, v)), normaliser.contiguous()


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
    padding: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Compute the tangent of the output, and the row sums μ of P∘ds."""
    pattern = Pattern(scale, causal, window, softcap, bias, offset)
    do, mu = backend.linearise(q, k, v, o, normaliser, pattern, padding).jvp_with_means(dq, dk, dv)
    return _laid_out(do, _output(q, v)), mu.contiguous()


@custom_op("howsmooth::attention_vjp", mutates_args=())
def attention_vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    padding: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ⟨g, o⟩."""
    pattern = Pattern(scale, causal, window, softcap, bias, offset)
    gq, gk, gv = backend.linearise(q, k, v, o, normaliser, pattern, padding).vjp(g)
    return _laid_out(gq, _gradient(q)), _laid_out(gk, _gradient(k)), _laid_out(gv, _gradient(v))


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
    do: Tensor,
    mu: Tensor,
    h: Tensor,
    padding: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ⟨h, do⟩."""
    pattern = Pattern(scale, causal, window, softcap, bias, offset)
    linearised = backend.linearise(q, k, v, o, normaliser, pattern, padding)
    gq, gk, gv = linearised.hvp(dq, dk, dv, h, along=(do, mu))
    return _laid_out(gq, _gradient(q)), _laid_out(gk, _gradient(k)), _laid_out(gv, _gradient(v))


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *pattern: Any) -> tuple[Tensor, Tensor]:
    return _output(q, v), q.new_empty(*q.shape[:-1], 2, dtype=_of_sums(q))


@attention_jvp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _output(q, v), q.new_empty(q.shape[:-1], dtype=_of_sums(q))


@attention_vjp.register_fake
@attention_hvp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _gradient(q), _gradient(k), _gradient(v)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, padding, bias, *ctx.pattern = inputs
    ctx.save_for_backward(q, k, v, *output, padding, bias)
    ctx.mark_non_differentiable(output[1])


def _attention_backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *at, padding, bias = ctx.saved_tensors
    return *attention_vjp(*at, g, padding, bias, *ctx.pattern), *(None,) * _PATTERN_ARGUMENTS


def _save_jvp(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, padding, bias, scale, causal, window, softcap, offset = inputs
    ctx.pattern = (scale, causal, window, softcap, offset)
    ctx.save_for_backward(*tensors, *output, padding, bias)
    ctx.mark_non_differentiable(output[1])


def _jvp_backward(ctx: Any, h: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *at, dq, dk, dv, do, mu, padding, bias = ctx.saved_tensors
    pattern = (padding, bias, *ctx.pattern)
    primal = attention_hvp(*at, dq, dk, dv, do, mu, h, *pattern)
    tangent = attention_vjp(*at, h, *pattern)
    return *primal, None, None, *tangent, *(None,) * _PATTERN_ARGUMENTS


def _save_vjp(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, padding, bias, scale, causal, window, softcap, offset = inputs
    ctx.pattern = (scale, causal, window, softcap, offset)
    ctx.save_for_backward(*tensors, padding, bias)


def _vjp_backward(ctx: Any, hq: Tensor, hk: Tensor, hv: Tensor) -> tuple[Tensor | None, ...]:
    *at, g, padding, bias = ctx.saved_tensors
    pattern = (padding, bias, *ctx.pattern)
    dg, mu = attention_jvp(*at, hq, hk, hv, *pattern)
    return *attention_hvp(*at, hq, hk, hv, dg, mu, g, *pattern), None, None, dg, *(None,) * _PATTERN_ARGUMENTS


attention.register_autograd(_attention_backward, setup_context=_save_attention)
attention_jvp.register_autograd(_jvp_backward, setup_context=_save_jvp)
attention_vjp.register_autograd(_vjp_backward, setup_context=_save_vjp)


def recorded(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, pattern: Pattern) -> Tensor:
    """Compute attention while a graph is recorded, with its tangent if q, k or v is a dual tensor.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k).
        v: Values (b, hkv, m, w).
        padding: (b, m), True where the key is real; None if all are.
        pattern: The pattern of scores. A `score_bias` that is a function becomes a table here.

    Returns:
        The output (b, h, n, w), a dual tensor if an argument is one.
    """
    n, m = q.shape[2], k.shape[2]
    bias = pattern.score_bias
    if bias is not None and not isinstance(bias, Tensor):
        i, j = torch.arange(n, device=q.device).unsqueeze(1), torch.arange(m, device=q.device).unsqueeze(0)
        table = torch.as_tensor(bias(i, j))
        bias = table.expand(*table.shape[:-2], n, m)
    settings = (padding, bias, pattern.scale, pattern.causal, pattern.window, pattern.softcap, pattern.offset)
    if forward_ad._current_level >= 0:
        duals = [forward_ad.unpack_dual(t) for t in (q, k, v)]
        if any(dual.tangent is not None for dual in duals):
            at = [dual.primal for dual in duals]
            along = [torch.zeros_like(x) if t is None else t for x, t in duals]
            o, normaliser = attention(*at, *settings)
            do, _ = attention_jvp(*at, o, normaliser, *along, *settings)
            dual: Tensor = forward_ad.make_dual(o, do)
            return dual
    output: Tensor = attention(q, k, v, *settings)[0]
    return output


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
