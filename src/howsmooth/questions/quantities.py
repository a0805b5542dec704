"""The quantities that a worker computes: the certified constant, and the number that the paper's scripts return.

A quantity is a function of an `EvaluationPoint` that returns one dictionary of numbers per sequence. Its name and its
symbol are in `howsmooth.questions.measure.QUANTITIES`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian, local_lipschitz
from howsmooth.models.memory import solver_memory_limit
from howsmooth.models.released_scripts import script_map, uses_dropout, vjps_under_dropout
from howsmooth.questions.measure import QUANTITIES, parse_quantity

if TYPE_CHECKING:
    from howsmooth.lipschitz.estimate import Estimate
    from howsmooth.models.model import Model
    from howsmooth.spectral.solver import Solver


if TYPE_CHECKING:
    from howsmooth.models.model import Model

_NO_INTERVAL = dict.fromkeys(("lower", "upper", "confidence", "residual", "steps", "seed", "seconds", "relative"))
NUM_TOP_TOKENS = 3  # how many tokens of the direction a record names
MAX_RECORDED_SHARES = 8192  # for longer texts a record contains the largest shares only


@dataclass(frozen=True, eq=False)
class EvaluationPoint:
    """A map f and the tokens x at which a quantity is computed.

    Attributes:
        f: The map.
        x: Tokens, (n, d), or (b, n, d) for b sequences.
        model: The model that f belongs to; None for a map without one.
        layer: Layer of the map; None for the whole model.
        token_ids: Token ids of the sequences, (b, n); None if the tokens are random.
        perturbed: Mask of the tokens that a perturbation may move, (n,) or (b, n); None for all.
        solver: The options of a solve.
        count: The number after the name of the quantity.
    """

    f: Any
    x: Tensor
    model: Model | None
    layer: int | None
    token_ids: Tensor | None
    perturbed: Tensor | None
    solver: Solver
    count: int | None = None


def compute_quantity(name: str, point: EvaluationPoint) -> list[dict[str, Any]]:
    """Return the numbers of one quantity, one dictionary per sequence."""
    kind, count = parse_quantity(name)
    module, _, function_name = QUANTITIES[kind].function.partition(":")
    function: Callable[[EvaluationPoint], list[dict[str, Any]]] = getattr(
        importlib.import_module(module), function_name
    )
    return function(replace(point, count=count))


def estimate_at(f: Any, x: Tensor, **options: Any) -> Estimate:
    """Return the estimate of `local_lipschitz` at a single sequence x, (n, d)."""
    estimate = local_lipschitz(f, x, **options)
    if isinstance(estimate, list):
        raise InputError(f"expected tokens of one sequence, (n, d), got {tuple(x.shape)}; pass one after the other")
    return estimate


def lipschitz(point: EvaluationPoint) -> list[dict[str, Any]]:
    """Return ‖D_X f‖₂ with its interval, and `direction_shares`, the share of each token in the worst direction."""
    limit = solver_memory_limit(point.x.device, point.solver.max_memory)
    found = local_lipschitz(
        point.f, point.x, tokens=point.perturbed, solver=point.solver, max_memory=limit, strict=False
    )
    estimates = found if isinstance(found, list) else [found]
    return [
        {**e.as_record(), "seconds": e.seconds / len(estimates), "width": e.width, "direction_shares": e.shares}
        for e in estimates
    ]


def released(point: EvaluationPoint) -> list[dict[str, Any]]:
    """Return √‖Jᵀ f(X)‖, the number that the published scripts return; it estimates no norm and has no interval."""
    return _released(point.f, point.x)


def released_map(point: EvaluationPoint) -> list[dict[str, Any]]:
    """Return √‖Jᵀ f(X)‖ of the map that the published scripts differentiate.

    With dropout the two draws of Jᵀf differ, and the scripts return the square root of their mean product.
    """
    if point.model is None or point.layer is None:
        raise InputError("expected a layer of a model for the quantity released-map, got none; measure attention")
    if uses_dropout(point.model) and point.token_ids is not None:
        found, seed = [], point.solver.seed
        assert isinstance(seed, int)  # a generator has no place in a spec
        for ids in point.token_ids:
            tokens, first, second = vjps_under_dropout(point.model, ids, point.layer, seed)
            mu = float((first.double() * second.double()).sum() / torch.linalg.vector_norm(first.double()))
            found.append(_record(math.sqrt(max(mu, 0.0)), tokens) | {"script_map": "attention with dropout on"})
        return found
    sequences = point.x if point.x.ndim == 3 else point.x[None]
    f, description = script_map(point.model, point.layer, sequences.shape[1])
    return [_released(f, x)[0] | {"script_map": description} for x in sequences]


def _released(f: Any, x: Tensor) -> list[dict[str, Any]]:
    J = jacobian(f, x)
    gradient = J.rmatvec(J.image.reshape(*J.batch, -1)).double()  # Jᵀ f(X), of ‖f‖²/2
    values = torch.linalg.vector_norm(gradient, dim=-1).sqrt().reshape(-1).tolist()
    return [
        _record(value, tokens) for value, tokens in zip(values, x.reshape(len(values), -1, x.shape[-1]), strict=True)
    ]


def _record(value: float, tokens: Tensor) -> dict[str, Any]:
    return {"value": value, **_NO_INTERVAL, "status": "as released", "products": 1, **described(tokens)}


def described(tokens: Tensor) -> dict[str, Any]:
    """Return the fields of a record that describe its tokens: their norms and dtype."""
    radii = torch.linalg.vector_norm(tokens.double(), dim=-1)
    return {
        "radius": float(radii.max()),
        "mean_radius": math.sqrt(float(radii.square().mean())),
        "dtype": str(tokens.dtype).removeprefix("torch."),
    }


def top_tokens(shares: Tensor, word_at: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return the tokens with the largest shares of the direction's squared norm.

    Args:
        shares: Share of each token, (n,).
        word_at: Returns the word at a position.
    """
    top = torch.topk(shares.flatten(), min(NUM_TOP_TOKENS, shares.numel()))
    return [
        {"position": position, "token": word_at(position), "share": share}
        for position, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def all_shares(shares: Tensor) -> list[float] | None:
    """Return the share of every token with three digits, zero below 10⁻⁶; None for texts that are too long.

    Example:
        >>> all_shares(torch.tensor([0.123456, 1e-9]))
        [0.123, 0.0]
    """
    if shares.numel() > MAX_RECORDED_SHARES:
        return None
    return [float(f"{share:.3g}") if share >= 1e-6 else 0.0 for share in shares.flatten().tolist()]
