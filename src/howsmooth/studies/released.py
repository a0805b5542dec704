"""What the released scripts of the paper return in place of ‖J‖₂, at the described map and at their own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from howsmooth.lipschitz import jacobian
from howsmooth.models import Model
from howsmooth.models.released import dropped_out, drops_out, script_map

_NOTHING = dict.fromkeys(("lower", "upper", "confidence", "residual", "steps", "seed", "seconds", "relative"))


def as_released(f, x: Tensor) -> list[dict[str, Any]]:
    """√‖Jᵀ f(X)‖ for each sequence of x: an estimate of nothing, so without interval."""
    J = jacobian(f, x)
    pulled = J.rmatvec(J.image.reshape(*J.batch, -1)).double()
    values = torch.linalg.vector_norm(pulled, dim=-1).sqrt().reshape(-1).tolist()
    return [_record(value, tokens) for value, tokens in zip(values, x.reshape(len(values), -1, x.shape[-1]),
                                                            strict=True)]


def by_scripts(model: Model, ids: Tensor, layer: int, x: Tensor, seed: int) -> list[dict[str, Any]]:
    """The same of the map that the scripts differentiate, for token numbers (b, n) and what they become, x (b, n, d).

    With dropout the two draws of Jᵀf differ, and the scripts return the root of their mean product.
    """
    if drops_out(model):
        found = []
        for member in ids:
            tokens, first, second = dropped_out(model, member, layer, seed)
            mu = float((first.double() * second.double()).sum() / torch.linalg.vector_norm(first.double()))
            found.append(_record(math.sqrt(max(mu, 0.0)), tokens) | {"script_map": "attention with dropout on"})
        return found
    f, about = script_map(model, layer, x.shape[1])
    return [as_released(f, tokens)[0] | {"script_map": about} for tokens in x]


def _record(value: float, tokens: Tensor) -> dict[str, Any]:
    radii = torch.linalg.vector_norm(tokens.double(), dim=-1)
    return {"value": value, **_NOTHING, "status": "as released", "products": 1, "radius": float(radii.max()),
            "mean_radius": math.sqrt(float(radii.square().mean())), "dtype": str(tokens.dtype).removeprefix("torch.")}
