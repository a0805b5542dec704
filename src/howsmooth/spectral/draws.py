"""Random vectors, from a generator that is the solver's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from howsmooth.spectral.bidiagonal import Products


def own_generator(seed: int | torch.Generator) -> tuple[torch.Generator, int]:
    """A generator for the solver, and the seed to report.

    The certificate needs a start that is independent of J, and data drawn elsewhere from the same seed would otherwise
    be the start itself. A whole number is therefore mixed first. From a generator one number is drawn, and mixed, too.
    """
    if isinstance(seed, torch.Generator):
        drawn = int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
        return torch.Generator(seed.device).manual_seed(_mixed(drawn)), seed.initial_seed()
    return torch.Generator().manual_seed(_mixed(seed)), seed


def _mixed(seed: int) -> int:
    return (seed * 6364136223846793005 + 1442695040888963407) % 2**63


def gaussian(products: Products, generator: torch.Generator) -> Float[Tensor, "b cols"]:
    """Standard normal vectors, drawn where the generator lives."""
    operator = products.operator
    z = torch.randn(products.members, operator.shape[1], dtype=operator.dtype, device=generator.device,
                    generator=generator)
    return z.to(operator.device)
