"""Worst cases of a model's attention: found inside a set of tokens, and held against what is certified there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attack import Ascent, Ball, Ellipsoid, Near, Sphere, worst_case
from howsmooth.attack.constraints import Constraint
from howsmooth.attention import SelfAttention
from howsmooth.bounds import Bound, LayerForm, certify_ball, every, vacuous_eps
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.studies.bounding import ball_radius
from howsmooth.studies.measuring import Settings, Text, attention_maps, run_facts

if TYPE_CHECKING:
    from howsmooth.models import Model

WITHIN = ("norm", "ball", "sphere", "near")
Step = Callable[[int, int, int | None], None]


def worst_cases(
    model: Model,
    text: Text,
    settings: Settings,
    *,
    within: str = "norm",
    radius: str | float = "norm",
    eps: float | None = None,
    restarts: int = 16,
    steps: int = 100,
    step: Step | None = None,
    keep: Callable[[dict[str, Any], Ascent], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer (and head): the largest constant that ascent finds within a set of tokens.

    The set is what the normalisation in front of the layer can put out ("norm"), a ball or a sphere of a `radius`
    (as in `bound`), or all tokens within `eps` of the text's own ("near"). `keep(record, ascent)` is handed the
    tokens that were found.
    """
    if within not in WITHIN:
        raise InputError(f"expected within to be one of {', '.join(WITHIN)}, got {within!r}")
    if (eps is None) == (within == "near"):
        raise InputError(f"expected eps with within = 'near' and only there, got eps = {eps} with {within!r}")
    shared = run_facts(model, text, settings)
    for n, layer, head, f, x in _places(model, text, settings, step):
        norm = model.normalisation(layer).to(f.dtype)
        R = ball_radius(radius, radius_of(norm), x)
        constraint = _constraint(within, norm, R, x, eps)
        climb = dict(restarts=restarts, steps=steps, seed=settings.seed, tol=settings.tol)
        found = worst_case(f, n, constraint, **climb)
        on_text = local_lipschitz(f, x, tol=settings.tol, confidence=settings.confidence, seed=settings.seed,
                                  strict=False)
        outer = float(torch.linalg.vector_norm(found.x, dim=-1, dtype=torch.float64).max())
        ceiling = _smallest_upper(f, n, max(R, outer))
        record = {
            "model": model.name, "layer": layer, "head": head, "map": settings.map, "n": n, "within": within,
            "R": R if within in ("ball", "sphere") else None, "eps": eps, **found.estimate.as_record(),
            "value": found.value, "best_start": float(found.start.max()), "restarts": restarts,
            "ascent_steps": found.steps,
            "on_text": on_text.as_record(), "over_text": found.value / on_text.value if on_text.value > 0 else None,
            "upper_bound": ceiling.as_record(), "masses": masses_of(found.x), **shared,
        }
        if keep is not None:
            keep(record, found)
        yield record


def balls(
    model: Model,
    text: Text,
    settings: Settings,
    *,
    eps: tuple[float, ...],
    restarts: int = 4,
    steps: int = 50,
    step: Step | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer (and head) and ε: what is certified for all tokens within ε of the text's.

    Beside it the largest constant that ascent finds in there: the truth lies between the two.
    """
    shared = run_facts(model, text, settings)
    for n, layer, head, f, x in _places(model, text, settings, step):
        f, x = f.to(torch.float64), x.double()
        centre = local_lipschitz(f, x, tol=settings.tol, confidence=settings.confidence, seed=settings.seed)
        vacuous = vacuous_eps(f, x)
        for size in sorted(eps):
            certificate = certify_ball(f, x, size, at_center=centre.upper)
            found = worst_case(f, n, Near(x, size), restarts=restarts, steps=steps, seed=settings.seed,
                               tol=settings.tol)
            bound = certificate.bound
            yield {
                "model": model.name, "layer": layer, "head": head, "map": settings.map, "n": n, "eps": size,
                "certified": bound.value, "log_certified": bound.log_value, "method": certificate.method,
                "found": found.estimate.as_record(), "centre": centre.as_record(),
                "tightness": bound.value / found.value if bound.value is not None and found.value > 0 else None,
                "parts": certificate.parts, "vacuous_eps": vacuous, "status": found.estimate.status,
                "radius": centre.radius, **shared,
            }


def masses_of(x: torch.Tensor, apart: float = 1e-2) -> list[int]:
    """How many tokens sit at each distinct place, the most crowded first; closer than `apart` of the radius is one.

    >>> masses_of(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
    [2, 1]
    """
    rest, masses = x.double(), []
    reach = apart * float(torch.linalg.vector_norm(rest, dim=-1).max())
    while len(rest):
        here = torch.linalg.vector_norm(rest - rest[0], dim=-1) <= reach
        masses.append(int(here.sum()))
        rest = rest[~here]
    return sorted(masses, reverse=True)


def _places(model: Model, text: Text, settings: Settings, step: Step | None):
    """(n, layer, head, map, tokens of the text's first piece) for all that the settings ask."""
    for n in settings.lengths:
        chunk, *_ = model.chunks(text.content, n, 1, special_tokens=settings.special_tokens)
        activations = model.activations(chunk, settings.layers)
        for layer in settings.layers:
            for head, f in attention_maps(model, layer, n, settings.heads):
                if step is not None:
                    step(n, layer, head)
                yield n, layer, head, f, activations[layer]


def _constraint(within: str, norm, R: float, x: torch.Tensor, eps: float | None) -> Constraint:
    if within == "norm":
        return Ellipsoid(norm)
    return Near(x, eps) if within == "near" else Ball(R) if within == "ball" else Sphere(R)


def _smallest_upper(f: SelfAttention, n: int, R: float) -> Bound:
    """The smallest upper bound that holds on the whole ball."""
    bounds = [bound for bound in every(LayerForm(f), n, R) if isinstance(bound, Bound) and bound.side == "upper"]
    return min(bounds, key=lambda bound: bound.log_value)
