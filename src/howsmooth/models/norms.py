"""A normalisation module of any family as a `Normalisation`: read by what it does, not by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention import Normalisation
from howsmooth.errors import InputError


def read_norm(module: torch.nn.Module | None, x: Tensor, where: str) -> Normalisation:
    """Return the LayerNorm or RMSNorm that agrees with the module at x (b, n, d); refuse one that none agrees with."""
    if module is None:
        raise InputError(f"expected a normalisation whose output enters attention, got none at {where}")
    eps = next((e for name in ("eps", "variance_epsilon") if isinstance(e := getattr(module, name, None), float)), 0.0)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    want = module(x)
    for gain in (weight, 1 + weight):  # Gemma stores the gain less one
        for centred in (True, False):
            norm = Normalisation(gain.detach(), None if bias is None else bias.detach(), eps, centred)
            gap = (norm(x) - want).abs().max()
            # Some modules compute in float32 whatever they are given.
            if gap <= 1e3 * max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps / 10) * (1 + want.abs().max()):
                return norm
    raise InputError(
        f"expected a LayerNorm or an RMSNorm in front of attention, got a {type(module).__name__} that is neither, at "
        f"{where}"
    )
