"""The local Lipschitz constant of a map at an input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from howsmooth.attention import AttentionJacobian, SelfAttention
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian, in_float64, norm
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.tokens import Tokens, choose
from howsmooth.spectral import SingularTriplets, singular_values
from howsmooth.spectral.operator import refuse_autocast


def local_lipschitz(
    f: SelfAttention | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    k: int = 1,
    tol: float = 1e-3,
    confidence: float = 0.999,
    tokens: Tokens = None,
    output_tokens: Tokens = None,
    padding: Tensor | None = None,
    stop: str = "interval",
    max_steps: int | None = None,
    max_memory: int | None = None,
    product_dtype: torch.dtype | None = None,
    seed: int = 0,
    strict: bool = True,
    progress: Callable | None = None,
) -> Estimate | list[Estimate]:
    """The local Lipschitz constant ‖D_X f‖₂ of f at x, certified to relative width `tol` with this confidence.

    For a `SelfAttention`, x is (n, d), or (b, n, d) for b sequences at once, which gives a list of b estimates. Any
    other torch callable is differentiated automatically, at an x of any shape (tokens on the last axis but one).
    A layer in half precision is measured as its weights and tokens are, with products in float32.

    Args:
        tokens, output_tokens: restrict the perturbation, or the output, to these tokens (indices or a mask).
        padding: for a `SelfAttention`: (n) or (b, n), True where the token is real. The others are neither moved
            nor looked at.
        stop: "interval" (the default), or "residual" to stop earlier, when ‖Jᵀu − σv‖ ≤ tol·σ.
        product_dtype: for a `SelfAttention`. torch.bfloat16, on a GPU: search with rounded products; the value is attained
            in float32, and what rounding may hide is measured against float32 and added to the interval (with
            stop="residual" it is not, and `upper` is None). torch.float32: no float64 twin, for lengths at which
            it would take longer than the solve; rounding is allowed for, and not measured.
        strict: raise `NotConverged`, which holds the partial estimate, or return it with its status.

    >>> import torch
    >>> estimate = local_lipschitz(lambda x: 3 * x, torch.ones(2, 2, dtype=torch.float64))
    >>> round(estimate.value, 6), estimate.status
    (3.0, 'converged')
    """
    f, x = single_at_least(f, x)
    operator = jacobian(f, x, padding, product_dtype)
    y = operator.image
    chosen = choose(operator, x, y, tokens, output_tokens, padding)

    def estimates(found: SingularTriplets) -> Estimate | list[Estimate]:
        found = replace(found, v=chosen.whole_input(found.v), u=chosen.whole_output(found.u))
        if not operator.batch:
            return _estimate(f, x, y, padding, chosen.seen, found)
        return [
            _estimate(
                f,
                x[i],
                y[i],
                None if padding is None else padding[i],
                None if chosen.seen is None else chosen.seen[i],
                _member(found, i),
            )
            for i in range(operator.batch[0])
        ]

    try:
        return estimates(
            singular_values(
                chosen.operator,
                k=k,
                tol=tol,
                confidence=confidence,
                stop=stop,
                max_steps=max_steps,
                max_memory=max_memory,
                seed=seed,
                strict=strict,
                progress=progress,
            )
        )
    except NotConverged as error:
        raise NotConverged(str(error), estimates(error.partial)) from None


def jacobian(
    f: SelfAttention | Callable[[Tensor], Tensor],
    x: Tensor,
    padding: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> AttentionJacobian | AutodiffJacobian:
    """D_X f as a matrix-free operator: by formula for a `SelfAttention`, by automatic differentiation otherwise."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point or x.numel() == 0:
        raise InputError(
            "expected x as a non-empty tensor of a floating dtype, got "
            + (f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
        )
    if not torch.isfinite(x).all():
        raise InputError("expected finite tokens, got NaN or ∞ in x")
    refuse_autocast(x.device)
    if isinstance(f, SelfAttention):
        f, x = single_at_least(f, x)
        return f.jacobian(x, padding, product_dtype)
    if product_dtype is not None:
        raise InputError("expected product_dtype only with a SelfAttention; other maps are differentiated as they are")
    if padding is not None:
        raise InputError("expected padding only with a SelfAttention; use tokens= and output_tokens= with other maps")
    if not callable(f):
        raise InputError(f"expected a SelfAttention or a callable, got {type(f).__name__}")
    return AutodiffJacobian(f, x)


def single_at_least(f, x: Tensor):
    """A layer and its tokens in float32, if they are stored in half precision."""
    if isinstance(f, SelfAttention) and f.dtype.itemsize < 4:
        f.check_tokens(x, None)
        return f.converted(dtype=torch.float32), x.float()
    return f, x


def _member(found: SingularTriplets, i: int) -> SingularTriplets:
    """What a batch found for its member i."""
    names = ("value", "lower", "upper", "residual", "u", "v", "status")
    return replace(found, **{name: getattr(found, name)[i] for name in names})


def _estimate(
    f, x: Tensor, y: Tensor, padding: Tensor | None, seen: Tensor | None, found: SingularTriplets
) -> Estimate:
    direction = found.v[0].reshape(x.shape)
    value = float(found.value[0])
    real, image = (x, y) if padding is None else (x[padding], y[padding])
    radii = torch.linalg.vector_norm(torch.atleast_1d(real.detach()), dim=-1, dtype=torch.float64)
    size = norm(image)

    def finite_difference(eta: float) -> float:
        step = eta * direction.double()
        ahead, behind = (_evaluate_precisely(f, x.double() + sign * step, padding, x.dtype) for sign in (1, -1))
        change = (ahead.double() - behind.double()).flatten()
        return norm(change if seen is None else change[seen]) / (2 * eta)

    return Estimate(
        value=value,
        lower=float(found.lower[0]),
        upper=_end(found.upper[0]),
        confidence=found.confidence,
        residual=float(found.residual[0]),
        status=found.status,
        direction=direction,
        response=found.u[0].reshape(y.shape),
        steps=found.steps,
        products=found.products,
        dtype=found.dtype,
        seed=found.seed,
        seconds=found.seconds,
        relative=value * norm(real) / size if size > 0 else math.inf,
        radius=float(radii.max()),
        mean_radius=float(radii.square().mean().sqrt()),
        triplets=found,
        finite_difference=finite_difference,
    )


def _end(upper: Tensor) -> float | None:
    """An upper end, if there is one."""
    return float(upper) if torch.isfinite(upper) else None


@torch.no_grad()
def _evaluate_precisely(f, x: Tensor, padding: Tensor | None, dtype: torch.dtype) -> Tensor:
    """f(x) in float64 where f can be had there, else in its own dtype."""
    if isinstance(f, SelfAttention):
        return f.converted(dtype=torch.float64)(x, padding)
    twin = in_float64(f)
    try:
        return twin(x)
    except Exception:  # whatever a map says to float64 that it does not take
        return f(x.to(dtype))
