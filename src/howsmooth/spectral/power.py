"""The power method on JᵀJ with the published stopping rule: what the certified solver is compared with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import Products, scaled
from howsmooth.spectral.draws import gaussian, own_generator
from howsmooth.spectral.operator import LinearOperator, refuse_autocast
from howsmooth.spectral.result import LOOKS_ALIKE, STEP_LIMIT, SingularTriplets
from howsmooth.spectral.rounding import allowance

if TYPE_CHECKING:
    from torch import Tensor


def power_method(
    operator: LinearOperator,
    *,
    threshold: float = 1e-4,
    max_steps: int = 100,
    seed: int | torch.Generator = 0,
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
