"""A few Golub–Kahan steps from a start that is nearly right: what an ascent asks at every step.

No interval comes with it. σ = ‖J v‖ for a unit v is attained, so it is a lower bound on σ₁, however few the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import Bidiagonalisation, Products, scaled
from howsmooth.spectral.operator import LinearOperator

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def warm_triplet(
    operator: LinearOperator, start: Float[Tensor, "*batch cols"], steps: int = 3
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch rows"], Float[Tensor, "*batch cols"]]:
    """The best (σ, u, v) with J v = σ u in the Krylov space of JᵀJ and `start`, in 2·steps + 1 products.

    σ is in float64, never below ‖J start‖/‖start‖ but for rounding, and exact if `start` is a right singular vector of
    σ₁. A start without any part in v₁ never gains one: give it a small random part. Where J v = 0, u is zero.

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
        raise InputError(f"expected a start of {operator.dtype} and shape {expected}, got {start.dtype} of shape "
                         f"{tuple(start.shape)}")
    products = Products(operator)
    start = start.reshape(products.members, -1)
    if (products.norm(start, "the start") == 0).any():
        raise InputError("expected a start that is not zero, got zero; draw it at random")
    process = Bidiagonalisation(products, start, stored=steps)
    while process.steps < steps and not process.broken.all():
        process.step()
    v = process.vector(process.ritz().top_vector)
    image = products.forward(v)
    sigma = products.norm(image, "J v")
    u = scaled(image, sigma)
    return (torch.from_numpy(sigma * products.unit).reshape(operator.batch).to(operator.device),
            u.reshape(*operator.batch, -1), v.reshape(*operator.batch, -1))
