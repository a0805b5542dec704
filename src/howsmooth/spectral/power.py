"""Iterations that attain a norm from below and certify nothing from above.

power_method      on JᵀJ with the published stopping rule: what the certified solver is compared with
warm_triplet      a few Golub–Kahan steps from a start that is nearly right: what an ascent asks at every step
attained_p_norm   norms of a matrix between L^p spaces of tokens, for which there is no eigenvalue problem
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
from howsmooth.spectral.products import Products, gaussian, own_generator, scaled
from howsmooth.spectral.result import LOOKS_ALIKE, STEP_LIMIT, SingularTriplets
from howsmooth.spectral.rounding import allowance

if TYPE_CHECKING:
    from jaxtyping import Float


def power_method(
    operator: LinearOperator, *, threshold: float = 1e-4, max_steps: int = 100, seed: int | torch.Generator = 0
) -> SingularTriplets:
    """The largest singular value by power iteration, until successive μ = ⟨v, JᵀJv⟩ differ by threshold.

    The threshold is absolute and on σ², as published, so its meaning depends on the scale of J. Nothing is
    known from above: `upper` is infinite and `confidence` 0. In a batch each member stays where it stopped.

    Reference: Castin, Ablin and Peyré 2024; the rule is that of their released scripts.
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
    generator, seed_used = own_generator(seed)
    v = gaussian(products, generator)
    v = scaled(v, products.norm(v, "the start"))
    before = np.full(products.members, np.inf)
    stopped = np.zeros(products.members, dtype=bool)
    for step in range(1, max_steps + 1):
        w = products.forward(v)
        value = products.norm(w, "J v")
        u = scaled(w, value)
        image = products.adjoint(u)  # JᵀJv / σ: taking the norm out first keeps float32 from overflowing
        with np.errstate(over="ignore"):  # a difference of squares beyond float64 is no small one
            stopped |= np.abs(value - before) * (value + before) <= threshold
        before = value
        if stopped.all() or step == max_steps:
            break
        further = scaled(image, products.norm(image, "Jᵀ u"))
        v = torch.where(torch.from_numpy(stopped).to(v.device)[:, None], v, further)
    residual = products.norm(image - torch.from_numpy(value).to(v)[:, None] * v, "Jᵀ u")

    def shaped(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).reshape(*operator.batch, 1)

    names = np.where(stopped, LOOKS_ALIKE, STEP_LIMIT)
    return SingularTriplets(
        value=shaped(value),
        lower=shaped(value * max(0.0, 1 - allowance(operator))),
        upper=shaped(np.full_like(value, np.inf)),
        residual=shaped(residual),
        u=u.reshape(*operator.batch, 1, -1),
        v=v.reshape(*operator.batch, 1, -1),
        confidence=0.0,
        status=[str(name) for name in names] if operator.batch else str(names[0]),
        steps=step,
        products=products.count,
        dtype=operator.dtype,
        seed=seed_used,
        seconds=time.perf_counter() - began,
    )


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
        raise InputError(
            f"expected a start of {operator.dtype} and shape {expected}, got {start.dtype} of shape "
            f"{tuple(start.shape)}"
        )
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
    return (
        torch.from_numpy(sigma * products.unit).reshape(operator.batch).to(operator.device),
        u.reshape(*operator.batch, -1),
        v.reshape(*operator.batch, -1),
    )


def attained_p_norm(
    J: Tensor, p: float, *, widths: tuple[int, int] = (1, 1), steps: int = 100, starts: int = 4, seed: int = 0
) -> float:
    """The largest ‖J v‖_p / ‖v‖_p found, ‖v‖_p = (Σ_i |v_i|₂^p)^{1/p} over tokens v_i; widths (out, in) of a token.

    >>> round(attained_p_norm(torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64), 2.0), 4)
    1.1441

    Reference: Boyd, The power method for l^p norms, 1974.
    """
    if not isinstance(J, Tensor) or J.dim() != 2 or J.shape[0] % widths[0] or J.shape[1] % widths[1]:
        got = tuple(J.shape) if isinstance(J, Tensor) else type(J).__name__
        raise InputError(f"expected a matrix whose sides are multiples of {widths}, got {got}")
    if not torch.isfinite(J).all():
        raise InputError("expected a finite matrix, got NaN or ∞")
    if not p >= 1:
        raise InputError(f"expected an exponent 1 ≤ p ≤ ∞, got {p!r}")
    conjugate = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    generator, best = torch.Generator().manual_seed(seed), 0.0
    for start in range(starts):
        # A positive start first: it is where matrices without negative entries end up.
        v = (
            torch.rand(J.shape[1], generator=generator, dtype=torch.float64)
            if start == 0
            else torch.randn(J.shape[1], generator=generator, dtype=torch.float64)
        )
        v = v.to(J)
        for _ in range(steps):
            u = J @ v
            gain = float(_length(u, p, widths[0]) / _length(v, p, widths[1]).clamp(min=1e-300))
            best = max(best, gain)
            v = _dual(J.mT @ _dual(u, p, widths[0]), conjugate, widths[1])
    return best


def _sizes(u: Tensor, width: int) -> Tensor:
    return torch.linalg.vector_norm(u.unflatten(-1, (-1, width)), dim=-1)


def _length(u: Tensor, p: float, width: int) -> Tensor:
    return torch.linalg.vector_norm(_sizes(u, width), p)


def _dual(u: Tensor, p: float, width: int) -> Tensor:
    """u* with ⟨u, u*⟩ = ‖u‖_p, of unit norm in the dual space."""
    sizes = _sizes(u, width)
    if p == math.inf:
        weight = torch.zeros_like(sizes)
        weight[sizes.argmax()] = 1
    else:
        weight = (sizes / sizes.max().clamp(min=1e-300)) ** (p - 1)
    directions = torch.nn.functional.normalize(u.unflatten(-1, (-1, width)), dim=-1, eps=1e-300)
    dual = (weight.unsqueeze(-1) * directions).flatten()
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    return dual / _length(dual, q, width).clamp(min=1e-300)
