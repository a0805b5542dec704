"""The quantities that a worker computes at a map and its tokens: the certified constant, and what the paper released.

A quantity is a function of an `At` that returns one dictionary of numbers per sequence. The name and the symbol of each
are in `howsmooth.studies.spec.QUANTITIES`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.lipschitz import jacobian, local_lipschitz
from howsmooth.models import Model
from howsmooth.models.released import dropped_out, drops_out, script_map
from howsmooth.studies.memory import solver_limit
from howsmooth.studies.spec import QUANTITIES

_NO_INTERVAL = dict.fromkeys(("lower", "upper", "confidence", "residual", "steps", "seed", "seconds", "relative"))
NAMED_TOKENS = 3  # how many of the direction's tokens a record names
MOST_SHARES = 8192  # tokens beyond which a record names the largest shares only


@dataclass(frozen=True, eq=False)
class At:
    """A map f at the tokens x, (n, d) or (b, n, d), of one or several sequences of a model.

    `ids` are their token numbers, (b, n), None for tokens that were drawn; `moved` says which tokens may move, (n,) or
    (b, n), None for all; `solver` holds the options of `local_lipschitz`.
    """

    f: Any
    x: Tensor
    model: Model
    layer: int | None
    ids: Tensor | None
    moved: Tensor | None
    solver: dict[str, Any]


def compute(quantity: str, at: At) -> list[dict[str, Any]]:
    """Return the numbers of one quantity, a dictionary per sequence."""
    module, _, name = QUANTITIES[quantity].function.partition(":")
    function: Callable[[At], list[dict[str, Any]]] = getattr(importlib.import_module(module), name)
    return function(at)


def lipschitz(at: At) -> list[dict[str, Any]]:
    """Return ‖D_X f‖₂ with its interval, and `direction_shares`, the share of each token in the worst direction."""
    options = dict(at.solver, max_memory=solver_limit(at.x.device, at.solver.get("max_memory")))
    found = local_lipschitz(at.f, at.x, tokens=at.moved, strict=False, **options)
    estimates = found if isinstance(found, list) else [found]
    return [
        {**e.as_record(), "seconds": e.seconds / len(estimates), "width": e.width, "direction_shares": e.shares}
        for e in estimates
    ]


def released(at: At) -> list[dict[str, Any]]:
    """Return √‖Jᵀ f(X)‖, which is what the published scripts compute: an estimate of nothing, so without interval."""
    return _released(at.f, at.x)


def scripts(at: At) -> list[dict[str, Any]]:
    """Return the same of the map that the published scripts differentiate.

    With dropout the two draws of Jᵀf differ, and the scripts return the root of their mean product.
    """
    x = at.x if at.x.ndim == 3 else at.x[None]
    assert at.layer is not None  # the spec asks for this quantity of attention alone
    if drops_out(at.model) and at.ids is not None:
        found = []
        for member in at.ids:
            tokens, first, second = dropped_out(at.model, member, at.layer, at.solver["seed"])
            mu = float((first.double() * second.double()).sum() / torch.linalg.vector_norm(first.double()))
            found.append(_record(math.sqrt(max(mu, 0.0)), tokens) | {"script_map": "attention with dropout on"})
        return found
    f, about = script_map(at.model, at.layer, x.shape[1])
    return [_released(f, tokens)[0] | {"script_map": about} for tokens in x]


def _released(f: Any, x: Tensor) -> list[dict[str, Any]]:
    J = jacobian(f, x)
    pulled = J.rmatvec(J.image.reshape(*J.batch, -1)).double()
    values = torch.linalg.vector_norm(pulled, dim=-1).sqrt().reshape(-1).tolist()
    return [
        _record(value, tokens) for value, tokens in zip(values, x.reshape(len(values), -1, x.shape[-1]), strict=True)
    ]


def _record(value: float, tokens: Tensor) -> dict[str, Any]:
    radii = torch.linalg.vector_norm(tokens.double(), dim=-1)
    return {
        "value": value,
        **_NO_INTERVAL,
        "status": "as released",
        "products": 1,
        "radius": float(radii.max()),
        "mean_radius": math.sqrt(float(radii.square().mean())),
        "dtype": str(tokens.dtype).removeprefix("torch."),
    }


def top_tokens(shares: Tensor, word: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return the tokens that carry most of the worst direction, with their share of its squared norm."""
    top = torch.topk(shares.flatten(), min(NAMED_TOKENS, shares.numel()))
    return [
        {"position": i, "token": word(i), "share": share}
        for i, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def all_shares(shares: Tensor) -> list[float] | None:
    """Return the share of every token, to three digits and zero below 10⁻⁶; None for texts too long for it.

    >>> all_shares(torch.tensor([0.123456, 1e-9]))
    [0.123, 0.0]
    """
    if shares.numel() > MOST_SHARES:
        return None
    return [float(f"{share:.3g}") if share >= 1e-6 else 0.0 for share in shares.flatten().tolist()]
