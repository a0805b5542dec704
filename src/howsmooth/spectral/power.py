"""Iterations that attain a norm from below and certify nothing from above.

`power_method` is power iteration on JᵀJ with the published stopping rule, to compare the certified solver with.
`warm_triplet` takes a few Golub–Kahan steps from a good start, as an ascent needs them at every step.
`attained_p_norm` is for norms of a matrix between Lᵖ spaces of tokens, which are no eigenvalue problem.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import Bidiagonalisation
from howsmooth.spectral.operator import LinearOperator, refuse_autocast
from howsmooth.spectral.products import Products, gaussian_vectors, safe_divide, solver_generator
from howsmooth.spectral.result import ITERATES_AGREE, STEP_LIMIT, SingularTriplets
from howsmooth.spectral.rounding import allowance

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray

TINY = 1e-300  # keeps divisions by a norm finite


def power_method(
    operator: LinearOperator, *, threshold: float = 1e-4, max_steps: int = 100, seed: int | torch.Generator = 0
) -> SingularTriplets:
    """Estimate the largest singular value by power iteration, until successive μ = ⟨v, JᵀJv⟩ differ by `threshold`.

    The threshold is absolute and on σ², as published, so its meaning depends on the scale of J. Nothing is certified
    from above: `upper` is infinite and `confidence` 0. In a batch each member stays at the step where it stopped.

    Args:
        operator: The operator, or a batch of them.
        threshold: Largest absolute change of μ at which the iteration stops.
        max_steps: Largest number of steps, of two products each.
        seed: Seed of the random start, or a generator to draw it from.

    Returns:
        One triplet for each batch member. Its status is "looks alike" if the threshold was reached, else "step limit".

    Raises:
        InputError: If an argument is invalid, a product is not finite, or autocast is on.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> found = power_method(MatrixOperator(torch.diag(torch.tensor([3.0, 1.0, 2.0]))), threshold=1e-8)
        >>> round(float(found.value), 3), float(found.upper)
        (3.0, inf)

    Reference:
        Castin, Ablin and Peyré 2024; the rule is that of their released scripts.
    """
    began = time.perf_counter()
    wrong = []
    if not isinstance(operator, LinearOperator):
        wrong.append(f"a LinearOperator, got {type(operator).__name__}")
    if not isinstance(max_steps, int) or max_steps < 1:
        wrong.append(f"max_steps as a positive whole number, got {max_steps!r}")
    if not threshold >= 0:
        wrong.append(f"threshold as a number from 0, got {threshold!r}")
    if wrong:
        raise InputError("expected " + "; expected ".join(wrong))
    refuse_autocast(operator.device)

    products = Products(operator, unit=1.0)  # the threshold is absolute
    generator, seed_used = solver_generator(seed)
    v = gaussian_vectors(products, generator)
    v = safe_divide(v, products.norm(v, "the start"))
    previous = np.full(products.members, np.inf)
    stopped = np.zeros(products.members, dtype=bool)
    for step in range(1, max_steps + 1):
        w = products.forward(v)
        value = products.norm(w, "J v")
        u = safe_divide(w, value)
        image = products.adjoint(u)  # JᵀJv / σ: dividing by the norm first avoids an overflow in float32
        with np.errstate(over="ignore"):  # a difference of squares that overflows is not small
            stopped |= np.abs(value - previous) * (value + previous) <= threshold
        previous = value
        if stopped.all() or step == max_steps:
            break
        following = safe_divide(image, products.norm(image, "Jᵀ u"))
        v = torch.where(torch.from_numpy(stopped).to(v.device)[:, None], v, following)
    residual = products.norm(image - torch.from_numpy(value).to(v)[:, None] * v, "Jᵀ u")

    def batched(numbers: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(numbers).reshape(*operator.batch, 1)

    statuses = [ITERATES_AGREE if agrees else STEP_LIMIT for agrees in stopped]
    return SingularTriplets(
        value=batched(value),
        lower=batched(value * max(0.0, 1 - allowance(operator))),
        upper=batched(np.full_like(value, np.inf)),
        residual=batched(residual),
        u=u.reshape(*operator.batch, 1, -1),
        v=v.reshape(*operator.batch, 1, -1),
        confidence=0.0,
        status=statuses if operator.batch else statuses[0],
        steps=step,
        products=products.count,
        dtype=operator.dtype,
        seed=seed_used,
        seconds=time.perf_counter() - began,
    )


def warm_triplet(
    operator: LinearOperator, start: Float[Tensor, "*batch cols"], steps: int = 3
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch rows"], Float[Tensor, "*batch cols"]]:
    """Compute the best (σ, u, v) with J v = σ u in the Krylov space of JᵀJ and `start`.

    σ is never below ‖J start‖/‖start‖ except for rounding, and exact if `start` is a right singular vector of σ₁. A
    start that is orthogonal to v₁ stays so: add a small random vector to it.

    Args:
        operator: The operator, or a batch of them.
        start: A nonzero vector (*batch, cols) in the operator's dtype.
        steps: Golub–Kahan steps; the call takes 2·steps + 1 products.

    Returns:
        σ `(*batch,)` in float64, u `(*batch, rows)` and v `(*batch, cols)`. Where J v = 0, u is zero.

    Raises:
        InputError: If `steps` or `start` is invalid, or a product is not finite.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> J = MatrixOperator(torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)))
        >>> sigma, u, v = warm_triplet(J, torch.tensor([1.0, 0.1, 0.1], dtype=torch.float64))
        >>> round(float(sigma), 6)
        3.0
    """
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"expected steps as a positive whole number, got {steps!r}")
    expected = (*operator.batch, operator.shape[1])
    if tuple(start.shape) != expected or start.dtype != operator.dtype:
        raise InputError(
            f"expected a start of {operator.dtype} and shape {expected}, got {start.dtype} of shape "
            f"{tuple(start.shape)}"
        )
    products = Products(operator)
    start = start.reshape(products.members, -1)
    if (products.norm(start, "the start") == 0).any():
        raise InputError("expected a start that is not zero, got zero; draw it at random")
    process = Bidiagonalisation(products, start, stored=steps)
    while process.steps < steps and not process.terminated.all():
        process.step()
    v = process.vector(process.ritz().largest_vectors(1)[0])
    image = products.forward(v)
    sigma = products.norm(image, "J v")
    u = safe_divide(image, sigma)
    return (
        torch.from_numpy(sigma * products.unit).reshape(operator.batch).to(operator.device),
        u.reshape(*operator.batch, -1),
        v.reshape(*operator.batch, -1),
    )


def attained_p_norm(
    J: Tensor | LinearOperator,
    p: float,
    *,
    widths: tuple[int, int] = (1, 1),
    steps: int = 100,
    starts: int = 4,
    seed: int = 0,
) -> float:
    """Compute a lower bound on the norm of J for ‖v‖_p = (Σ_i |v_i|₂^p)^{1/p} over tokens v_i, by Boyd's iteration.

    Args:
        J: A matrix, or an operator, whose sides are multiples of `widths`.
        p: Exponent, 1 ≤ p ≤ ∞.
        widths: Widths (out, in) of a token.
        steps: Steps of the iteration from each start.
        starts: Number of random starts.
        seed: Seed of the starts.

    Returns:
        The largest ‖J v‖_p / ‖v‖_p that was found.

    Raises:
        InputError: If the matrix, its sides or p are invalid.

    Example:
        >>> round(attained_p_norm(torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64), 2.0), 4)
        1.1441

    Reference:
        Boyd, The power method for lᵖ norms, 1974.
    """
    is_matrix = J.dim() == 2 if isinstance(J, Tensor) else isinstance(J, LinearOperator) and not J.batch
    if not is_matrix or J.shape[0] % widths[0] or J.shape[1] % widths[1]:
        got = tuple(J.shape) if isinstance(J, (Tensor, LinearOperator)) else type(J).__name__
        raise InputError(f"expected a matrix whose sides are multiples of {widths}, got {got}")
    if isinstance(J, Tensor) and not torch.isfinite(J).all():
        raise InputError("expected a finite matrix, got NaN or ∞")
    forward, backward = (J.__matmul__, J.mT.__matmul__) if isinstance(J, Tensor) else (J.matvec, J.rmatvec)
    if not p >= 1:
        raise InputError(f"expected an exponent 1 ≤ p ≤ ∞, got {p!r}")
    generator, best = torch.Generator().manual_seed(seed), 0.0
    for start in range(starts):
        # The first start is positive, as the maximiser of a matrix without negative entries is.
        draw = torch.rand if start == 0 else torch.randn
        v = draw(J.shape[1], generator=generator, dtype=torch.float64).to(J.device, J.dtype)
        for _ in range(steps):
            u = forward(v)
            gain = float(_p_norm(u, p, widths[0]) / _p_norm(v, p, widths[1]).clamp(min=TINY))
            best = max(best, gain)
            v = _dual(backward(_dual(u, p, widths[0])), _conjugate(p), widths[1])
    return best


def _conjugate(p: float) -> float:
    """Return the exponent q with 1/p + 1/q = 1."""
    if p == 1:
        return math.inf
    return 1.0 if p == math.inf else p / (p - 1)


def _token_norms(u: Tensor, width: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(u.reshape(-1, width), dim=-1)
    return norms


def _p_norm(u: Tensor, p: float, width: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(_token_norms(u, width), p)
    return norm


def _dual(u: Tensor, p: float, width: int) -> Tensor:
    """Return u* with ⟨u, u*⟩ = ‖u‖_p, of unit norm in the dual space."""
    sizes = _token_norms(u, width)
    if p == math.inf:
        weight = torch.zeros_like(sizes)
        weight[sizes.argmax()] = 1
    else:
        weight = (sizes / sizes.max().clamp(min=TINY)) ** (p - 1)
    directions = torch.nn.functional.normalize(u.reshape(-1, width), dim=-1, eps=TINY)
    dual = (weight.unsqueeze(-1) * directions).flatten()
    return dual / _p_norm(dual, _conjugate(p), width).clamp(min=TINY)
