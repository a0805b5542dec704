"""The local Lipschitz constant of a map at an input: the largest singular value of its Jacobian there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import EllipsisType
from typing import Any, Literal, TypeVar, Unpack, cast, overload

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.jacobian import AttentionJacobian, jacobian_with_reference
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian, frobenius_norm, in_float64
from howsmooth.lipschitz.casts import warn_of_refusal
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.token_selection import TokenIndex, select_tokens
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import refuse_autocast
from howsmooth.spectral.result import SingularTriplets
from howsmooth.spectral.solver import Solver, SolverOptions
from howsmooth.threads import few_threads_if_short

Map = SelfAttention | Callable[[Tensor], Tensor]
F = TypeVar("F")


class _Options(SolverOptions, total=False):
    """The keyword arguments of `local_lipschitz` that do not affect the type of its result."""

    k: int
    tokens: TokenIndex
    output_tokens: TokenIndex
    padding: Tensor | None
    solver: Solver
    strict: bool
    progress: Callable[..., Any] | None


@overload
def local_lipschitz(f: Map, x: Tensor, *, batched: Literal[False], **options: Unpack[_Options]) -> Estimate: ...


@overload
def local_lipschitz(f: Map, x: Tensor, *, batched: Literal[True], **options: Unpack[_Options]) -> list[Estimate]: ...


@overload
def local_lipschitz(
    f: Map, x: Tensor, *, batched: bool | None = None, **options: Unpack[_Options]
) -> Estimate | list[Estimate]: ...


def local_lipschitz(
    f: Map,
    x: Tensor,
    *,
    k: int = 1,
    batched: bool | None = None,
    tokens: TokenIndex = None,
    output_tokens: TokenIndex = None,
    padding: Tensor | None = None,
    solver: Solver = Solver(),
    strict: bool = True,
    progress: Callable[..., Any] | None = None,
    **options: Unpack[SolverOptions],
) -> Estimate | list[Estimate]:
    """Compute the local Lipschitz constant `‖D_X f‖₂` of f at x, with a certified interval.

    The Jacobian of a `SelfAttention` is applied by its formula; any other torch callable is differentiated
    automatically. Its largest singular values are computed by Golub–Kahan–Lanczos bidiagonalisation.

    An x with three axes is a batch (b, n, d) of independent samples, for every f, and gives one estimate per sample.
    That the samples are independent is checked for maps other than `SelfAttention`, and InputError is raised if they
    are not. An x with any other number of axes is one input. `batched` overrides this rule.

    On a CPU, up to 256 tokens are computed with one thread, as by the commands, unless the caller chose the number.

    Args:
        f: A `SelfAttention`, an `nn.Module` or another torch callable from one tensor to one tensor. It must be
            deterministic (`.eval()` for modules with dropout).
        x: Tokens (n, d), or a batch (b, n, d); for a callable, an input of any shape. Float32 or float64; a
            `SelfAttention` may also be in half precision, and is then measured as it is stored, in float32 arithmetic.
        k: Number of singular values; all are in `Estimate.triplets`.
        batched: True: the first axis of x is a batch of independent samples. False: x is one input. None: True if x
            has three axes.
        tokens: Tokens that may be perturbed, as indices or a boolean mask over the second-to-last axis; all by default.
        output_tokens: Tokens of the output whose change counts, likewise.
        padding: Boolean mask (n,) or (b, n), True for real tokens; for a `SelfAttention` only. Padded tokens are
            neither perturbed nor counted in the output.
        solver: Tolerance, confidence (of each sample), and the other options of the solve.
        strict: True: raise NotConverged, with the result so far in `partial`, if `tol` is not reached. False: return
            that result, with its status.
        progress: Callback of the solver; see `howsmooth.spectral.singular_values`.
        **options: Fields of the solver to replace, such as tol=1e-4.

    Returns:
        An `Estimate`, or a list of b estimates for a batch.

    Raises:
        InputError: If f or x cannot be measured; the message contains the reason and what to do.
        NotConverged: If `strict` and the tolerance was not reached.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 2, dtype=torch.float64)
        >>> local_lipschitz(lambda x: 3 * x, x)
        Estimate(value=3, lower=3, upper=3, confidence=0.999, status='converged')
        >>> [round(float(estimate), 6) for estimate in local_lipschitz(torch.sin, torch.stack([0 * x, x]))]
        [1.0, 0.540302]
    """
    solver = replace(solver, **options)
    with few_threads_if_short(_tokens_on_cpu(x)):
        operator = jacobian(f, x, padding, solver.product_dtype, batched=batched, with_reference=True)
        x, y = operator.x, operator.image
        selection = select_tokens(operator, x, y, tokens, output_tokens, padding)

        def make_estimates(triplets: SingularTriplets) -> Estimate | list[Estimate]:
            triplets = replace(triplets, v=selection.embed_input(triplets.v), u=selection.embed_output(triplets.u))
            if not operator.batch:
                return _make_estimate(f, x, y, padding, selection.output_mask, triplets)
            return [
                _make_estimate(f, x, y, padding, selection.output_mask, _triplets_of_sample(triplets, i), i)
                for i in range(len(x))
            ]

        try:
            triplets = singular_values(
                selection.operator, k, solver=solver, product_dtype=None, strict=strict, progress=progress
            )
        except NotConverged as error:
            raise NotConverged(str(error), make_estimates(error.partial)) from None
        return make_estimates(triplets)


def _tokens_on_cpu(x: Tensor) -> int | None:
    """Return the number of tokens of x, (n, d) or (b, n, d); None on a GPU, and for any other input."""
    return x.shape[-2] if isinstance(x, Tensor) and x.dim() in (2, 3) and x.device.type == "cpu" else None


def jacobian(
    f: Map,
    x: Tensor,
    padding: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
    *,
    batched: bool | None = None,
    with_reference: bool = False,
) -> AttentionJacobian | AutodiffJacobian:
    """Return the Jacobian of f at x as a matrix-free operator.

    Args:
        f: A `SelfAttention`, whose Jacobian is applied by its formula, or a callable, which is differentiated
            automatically.
        x: Tokens (n, d), or a batch (b, n, d); for a callable, an input of any shape.
        padding: Boolean mask (n,) or (b, n), True for real tokens; for a `SelfAttention` only.
        product_dtype: Dtype of the products; for a `SelfAttention` only.
        batched: Whether the first axis of x is a batch of independent samples; by default, if x has three axes.
        with_reference: Whether the operator will be compared with its float64 reference, as `local_lipschitz` does.

    Returns:
        An operator of shape (outputs, inputs), or a batch of b such operators.

    Raises:
        InputError: If f or x cannot be differentiated; the message contains the reason and what to do.

    Example:
        >>> jacobian(lambda x: x.sum(0), torch.ones(4, 3)).shape
        (3, 12)
    """
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point or x.numel() == 0:
        raise InputError(
            "expected x as a non-empty tensor of a floating dtype, got "
            + (f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
        )
    if not torch.isfinite(x).all():
        raise InputError("expected finite tokens, got NaN or ∞ in x")
    refuse_autocast(x.device)
    f, x = promote_half(f, x)
    batched_by_default = x.dim() == 3
    if isinstance(f, SelfAttention) and batched in (None, batched_by_default):
        make = jacobian_with_reference if with_reference else SelfAttention.jacobian
        return make(f, x, padding, product_dtype)
    if product_dtype is not None:
        raise InputError("expected product_dtype only with a SelfAttention; other maps are differentiated as they are")
    if padding is not None:
        raise InputError("expected padding only with a SelfAttention; use tokens= and output_tokens= with other maps")
    if not callable(f):
        raise InputError(f"expected a SelfAttention or a callable, got {type(f).__name__}")
    return AutodiffJacobian(f, x, batched=batched_by_default if batched is None else batched)


def promote_half(f: F, x: Tensor) -> tuple[F, Tensor]:
    """Convert a layer in half precision and its tokens to float32; return anything else unchanged."""
    if isinstance(f, SelfAttention) and f.dtype.itemsize < 4:
        f.check_tokens(x, None)
        return cast(F, f.converted(dtype=torch.float32)), x.float()
    return f, x


def _triplets_of_sample(triplets: SingularTriplets, i: int) -> SingularTriplets:
    """Return the singular triplets of sample i of a batch."""
    names = ("value", "lower", "upper", "residual", "u", "v", "status")
    return replace(triplets, **{name: getattr(triplets, name)[i] for name in names})


def _make_estimate(
    f: Map,
    x: Tensor,
    y: Tensor,
    padding: Tensor | None,
    output_mask: Tensor | None,
    triplets: SingularTriplets,
    sample: int | EllipsisType = ...,
) -> Estimate:
    """Return the estimate of one sample of the batch x, or of x itself (`sample=...`), with y = f(x)."""
    assert isinstance(triplets.status, str)  # a list only for a batch
    direction = triplets.v[0].reshape(x[sample].shape)
    value = float(triplets.value[0])
    real_x, real_y = x[sample].detach(), y[sample]
    if padding is not None:
        real_x, real_y = real_x[padding[sample]], real_y[padding[sample]]
    token_norms = torch.linalg.vector_norm(torch.atleast_1d(real_x), dim=-1, dtype=torch.float64)
    output_norm = frobenius_norm(real_y)

    def finite_difference(eta: float) -> float:
        step = torch.zeros_like(x, dtype=torch.float64)
        step[sample] = eta * direction.double()
        forward, backward = (
            _evaluate_in_float64(f, x.double() + sign * step, padding, x.dtype)[sample].double() for sign in (1, -1)
        )
        change = (forward - backward).flatten()
        return frobenius_norm(change if output_mask is None else change[output_mask[sample]]) / (2 * eta)

    return Estimate(
        value=value,
        lower=float(triplets.lower[0]),
        upper=float(triplets.upper[0]) if torch.isfinite(triplets.upper[0]) else None,
        confidence=triplets.confidence,
        residual=float(triplets.residual[0]),
        status=triplets.status,
        direction=direction,
        response=triplets.u[0].reshape(y[sample].shape),
        steps=triplets.steps,
        products=triplets.products,
        dtype=triplets.dtype,
        seed=triplets.seed,
        seconds=triplets.seconds,
        relative=value * frobenius_norm(real_x) / output_norm if output_norm > 0 else math.inf,
        radius=float(token_norms.max()),
        mean_radius=float(token_norms.square().mean().sqrt()),
        triplets=triplets,
        finite_difference=finite_difference,
    )


@torch.no_grad()
def _evaluate_in_float64(f: Map, x: Tensor, padding: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return f(x) in float64, or in `dtype` if f does not run in float64."""
    if isinstance(f, SelfAttention):
        return f.converted(dtype=torch.float64)(x, padding)
    f_float64 = in_float64(f)
    try:
        return f_float64(x)
    except Exception as error:
        warn_of_refusal(error, f"it is evaluated in {str(dtype).removeprefix('torch.')}")
        return f(x.to(dtype))
