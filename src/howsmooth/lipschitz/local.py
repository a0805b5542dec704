"""The local Lipschitz constant of a map at an input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import AttentionJacobian, SelfAttention
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian, norm
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.spectral import FunctionOperator, LinearOperator, SingularTriplets, restrict, singular_values

Tokens = Sequence[int] | Tensor | None


def local_lipschitz(f: SelfAttention | Callable[[Tensor], Tensor], x: Tensor, *, k: int = 1, tol: float = 1e-3,
                    confidence: float = 0.999, tokens: Tokens = None, output_tokens: Tokens = None,
                    padding: Tensor | None = None, stop: str = "interval", max_steps: int | None = None,
                    max_memory: int | None = None, seed: int = 0, strict: bool = True,
                    progress: Callable | None = None) -> Estimate | list[Estimate]:
    """The local Lipschitz constant ‖D_X f‖₂ of f at x, certified to relative width `tol` with this confidence.

    For a `SelfAttention`, x is (n, d), or (b, n, d) for b sequences at once, which gives a list of b estimates. Any
    other torch callable is differentiated automatically, at an x of any shape (tokens on the last axis but one).
    A layer in half precision is measured as its weights and tokens are, with products in float32.

    Args:
        tokens, output_tokens: restrict the perturbation, or the output, to these tokens (indices or a mask).
        padding: for a `SelfAttention`: (n) or (b, n), True where the token is real. The others are neither moved
            nor looked at.
        stop: "interval" (the default), or "residual" to stop earlier, when ‖Jᵀu − σv‖ ≤ tol·σ.
        strict: raise `NotConverged`, which holds the partial estimate, or return it with its status.

    >>> import torch
    >>> estimate = local_lipschitz(lambda x: 3 * x, torch.ones(2, 2, dtype=torch.float64))
    >>> round(estimate.value, 6), estimate.status
    (3.0, 'converged')
    """
    f, x = _single_at_least(f, x)
    operator = jacobian(f, x, padding)
    moved = _token_mask(tokens, x, "tokens")
    seen = _token_mask(output_tokens, x, "output_tokens")
    if padding is not None:
        moved, seen = (padding if mask is None else padding & mask for mask in (moved, seen))
    part = _restrict(operator, moved, seen, x)
    arguments = dict(k=k, tol=tol, confidence=confidence, stop=stop, max_steps=max_steps, max_memory=max_memory,
                     seed=seed, progress=progress)

    def estimates(triplets: SingularTriplets) -> Estimate | list[Estimate]:
        # From the chosen tokens back to all of them: v is zero elsewhere, u likewise.
        v, u = _spread(triplets.v, part.cols, operator.shape[1]), _spread(triplets.u, part.rows, operator.shape[0])
        if part.mask is not None:  # the random start has a trace left where nothing may move; it only lowers ‖Jv‖/‖v‖
            v = torch.nn.functional.normalize(v * part.mask.unsqueeze(-2), dim=-1)
        if not operator.batch:
            return _estimate(f, x, operator.image, padding, part, triplets, v, u, ())
        return [_estimate(f, x, operator.image, padding, part, triplets, v, u, (i,)) for i in range(operator.batch[0])]

    try:
        return estimates(singular_values(part.operator, strict=strict, **arguments))
    except NotConverged as error:
        raise NotConverged(str(error), estimates(error.partial)) from None


def jacobian(f: SelfAttention | Callable[[Tensor], Tensor], x: Tensor,
             padding: Tensor | None = None) -> AttentionJacobian | AutodiffJacobian:
    """D_X f as a matrix-free operator: by formula for a `SelfAttention`, by automatic differentiation otherwise."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point or x.numel() == 0:
        raise InputError("expected x as a non-empty tensor of a floating dtype, got "
                         + (f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__))
    if not torch.isfinite(x).all():
        raise InputError("expected finite tokens, got NaN or ∞ in x")
    if isinstance(f, SelfAttention):
        f, x = _single_at_least(f, x)
        return f.jacobian(x, padding)
    if padding is not None:
        raise InputError("expected padding only with a SelfAttention; use tokens= and output_tokens= with other maps")
    if not callable(f):
        raise InputError(f"expected a SelfAttention or a callable, got {type(f).__name__}")
    return AutodiffJacobian(f, x)


def _single_at_least(f, x: Tensor):
    if isinstance(f, SelfAttention) and f.dtype.itemsize < 4:
        f.check_tokens(x, None)
        return f.to(torch.float32), x.float()
    return f, x


@dataclass(frozen=True)
class _Part:
    """The operator seen at chosen tokens: flat indices of what was kept (None: all), or a flat mask of what moves."""

    operator: LinearOperator
    rows: Tensor | None = None
    cols: Tensor | None = None
    mask: Tensor | None = None


def _restrict(operator: LinearOperator, moved: Tensor | None, seen: Tensor | None, x: Tensor) -> _Part:
    if moved is None and seen is None:
        return _Part(operator)
    n, rows = x.shape[-2], operator.shape[0]
    if rows % n:
        raise InputError(f"expected an output with {n} tokens on its last axis but one, as x has, got {rows} numbers; "
                         "tokens cannot be told apart")
    if all(mask is None or mask.dim() == 1 for mask in (moved, seen)):
        def index(mask: Tensor | None, size: int) -> Tensor | None:
            if mask is None:
                return None
            across = math.prod(x.shape[:-2]) if not operator.batch else 1  # axes before the tokens, outside a batch
            return mask.repeat(across).repeat_interleave(size // (n * across)).nonzero().flatten()

        cols, rows = index(moved, operator.shape[1]), index(seen, rows)
        return _Part(restrict(operator, rows=rows, cols=cols), rows, cols)
    # Sequences with masks of their own keep one common shape.
    mask = None if moved is None else moved.repeat_interleave(operator.shape[1] // n, -1)
    return _Part(_masked(operator, moved, seen, n), mask=mask)


def _masked(operator: LinearOperator, moved: Tensor | None, seen: Tensor | None, n: int) -> LinearOperator:
    def flat(mask: Tensor | None, size: int, dtype: torch.dtype) -> Tensor | float:
        return 1.0 if mask is None else mask.repeat_interleave(size // n, -1).to(dtype)

    def wrap(whole: LinearOperator) -> FunctionOperator:
        into, out = flat(moved, whole.shape[1], whole.dtype), flat(seen, whole.shape[0], whole.dtype)

        def precise() -> LinearOperator | None:
            twin = whole.precise()
            return None if twin is None else wrap(twin)

        return FunctionOperator(lambda v: whole.matvec(v * into) * out, lambda u: whole.rmatvec(u * out) * into,
                                whole.shape, dtype=whole.dtype, device=whole.device, batch=whole.batch,
                                workspace=whole.workspace, held=whole.held, precise=precise)

    return wrap(operator)


def _spread(vectors: Tensor, index: Tensor | None, size: int) -> Tensor:
    if index is None:
        return vectors
    full = vectors.new_zeros(*vectors.shape[:-1], size)
    full[..., index] = vectors
    return full


def _token_mask(tokens: Tokens, x: Tensor, name: str) -> Tensor | None:
    """Indices or a mask of tokens as a mask (n) or (b, n)."""
    if tokens is None:
        return None
    if x.dim() < 2:
        raise InputError(f"expected x with tokens on its last axis but one to choose {name}, got {tuple(x.shape)}")
    n, chosen = x.shape[-2], torch.as_tensor(tokens, device=x.device)
    if chosen.dtype == torch.bool:
        if chosen.shape not in ((n,), x.shape[:-1]):
            raise InputError(f"expected {name} as a mask of shape ({n},), got {tuple(chosen.shape)}")
        mask = chosen
    elif chosen.is_floating_point() or chosen.dim() != 1 or not ((0 <= chosen) & (chosen < n)).all() or not len(chosen):
        raise InputError(f"expected {name} as indices from 0 to {n - 1} or a mask, got {tokens!r}")
    else:
        mask = torch.zeros(n, dtype=torch.bool, device=x.device)
        mask[chosen] = True
    if not mask.any():
        raise InputError(f"expected at least one token in {name}, got none")
    return mask


def _estimate(f, x: Tensor, y: Tensor, padding: Tensor | None, part: _Part, triplets: SingularTriplets, v: Tensor,
              u: Tensor, member: tuple[int, ...]) -> Estimate:
    top = (*member, 0)
    tokens = x[member] if member else x
    real = None if padding is None else padding[member] if member else padding
    direction = v[top].reshape(tokens.shape)
    image = y[member] if member else y
    response = u[top].reshape(image.shape)
    value = float(triplets.value[top])
    kept = tokens if real is None else tokens[real]
    radii = torch.linalg.vector_norm(kept.detach(), dim=-1, dtype=torch.float64) if kept.dim() else kept.abs().double()
    size = norm(image if real is None else image[real])
    status = triplets.status if isinstance(triplets.status, str) else triplets.status[member[0]]

    def finite_difference(eta: float) -> float:
        step = eta * direction.double()
        ahead, behind = (_evaluate_precisely(f, tokens.double() + sign * step, real, tokens.dtype) for sign in (1, -1))
        change = (ahead.double() - behind.double()).flatten()
        return norm(change if part.rows is None else change[part.rows]) / (2 * eta)

    return Estimate(
        value=value, lower=float(triplets.lower[top]), upper=float(triplets.upper[top]), confidence=triplets.confidence,
        residual=float(triplets.residual[top]), status=status, direction=direction, response=response,
        steps=triplets.steps, products=triplets.products, dtype=triplets.dtype, seed=triplets.seed,
        seconds=triplets.seconds, relative=value * norm(kept) / size if size > 0 else math.inf,
        radius=float(radii.max()), mean_radius=float(radii.square().mean().sqrt()), triplets=triplets,
        finite_difference=finite_difference)


@torch.no_grad()
def _evaluate_precisely(f, x: Tensor, padding: Tensor | None, dtype: torch.dtype) -> Tensor:
    """f(x) in float64 where f can be had there, else in its own dtype."""
    if isinstance(f, SelfAttention):
        return f.to(torch.float64)(x, padding)
    if isinstance(f, torch.nn.Module):
        return copy.deepcopy(f).double()(x)
    try:
        return f(x)
    except (RuntimeError, TypeError):
        return f(x.to(dtype))
