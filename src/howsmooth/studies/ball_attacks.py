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
from howsmooth.records import stamped
from howsmooth.studies.inputs import Step, run_facts, sites
from howsmooth.studies.layer_bounds import ball_radius
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

WITHIN = ("norm", "ball", "sphere", "near")


def worst_cases(
    model: Model,
    corpus: Corpus | None,
    spec: Spec,
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
    shared = run_facts(model, corpus, spec)
    for site in sites(model, corpus, spec, samples=1, step=step):
        n, layer, head, f, x = site.n, site.layer, site.head, site.f, site.x
        norm = model.normalisation(layer).converted(dtype=f.dtype)
        R = ball_radius(radius, radius_of(norm), x)
        constraint = _constraint(within, norm, R, x, eps)
        climb = dict(restarts=restarts, steps=steps, seed=spec.seed, tol=spec.tol)
        found = worst_case(f, n, constraint, **climb)
        on_text = local_lipschitz(f, x, **spec.accuracy, strict=False)
        outer = float(torch.linalg.vector_norm(found.x, dim=-1, dtype=torch.float64).max())
        ceiling = _smallest_upper(f, n, max(R, outer))
        record = stamped(
            "worst case",
            {
                "model": model.name,
                "layer": layer,
                "head": head,
                "map": spec.kind,
                "n": n,
                "within": within,
                "R": R if within in ("ball", "sphere") else None,
                "eps": eps,
                **found.estimate.as_record(),
                "value": found.value,
                "best_start": float(found.start.max()),
                "restarts": restarts,
                "ascent_steps": found.steps,
                "on_text": on_text.as_record(),
                "over_text": found.value / on_text.value if on_text.value > 0 else None,
                "upper_bound": ceiling.as_record(),
                "masses": masses_of(found.x),
                **shared,
            },
        )
        if keep is not None:
            keep(record, found)
        yield record


def balls(
    model: Model,
    corpus: Corpus | None,
    spec: Spec,
    *,
    eps: tuple[float, ...],
    restarts: int = 4,
    steps: int = 50,
    step: Step | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer (and head) and ε: what is certified for all tokens within ε of the text's.

    Beside it the largest constant that ascent finds in there: the truth lies between the two.
    """
    shared = run_facts(model, corpus, spec)
    for site in sites(model, corpus, spec, samples=1, step=step):
        n, layer, head, f, x = site.n, site.layer, site.head, site.f, site.x
        f, x = f.converted(dtype=torch.float64), x.double()
        centre = local_lipschitz(f, x, **spec.accuracy)
        vacuous = vacuous_eps(f, x)
        for size in sorted(eps):
            certificate = certify_ball(f, x, size, at_center=centre.upper)
            found = worst_case(f, n, Near(x, size), restarts=restarts, steps=steps, seed=spec.seed, tol=spec.tol)
            bound = certificate.bound
            yield stamped(
                "ball",
                {
                    "model": model.name,
                    "layer": layer,
                    "head": head,
                    "map": spec.kind,
                    "n": n,
                    "eps": size,
                    "certified": bound.value,
                    "log_certified": bound.log_value,
                    "method": certificate.method,
                    "found": found.estimate.as_record(),
                    "centre": centre.as_record(),
                    "tightness": bound.value / found.value if bound.value is not None and found.value > 0 else None,
                    "parts": certificate.parts,
                    "vacuous_eps": vacuous,
                    "status": found.estimate.status,
                    "radius": centre.radius,
                    **shared,
                },
            )


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


def _constraint(within: str, norm, R: float, x: torch.Tensor, eps: float | None) -> Constraint:
    if within == "norm":
        return Ellipsoid(norm)
    return Near(x, eps) if within == "near" else Ball(R) if within == "ball" else Sphere(R)


def _smallest_upper(f: SelfAttention, n: int, R: float) -> Bound:
    """The smallest upper bound that holds on the whole ball."""
    bounds = [bound for bound in every(LayerForm(f), n, R) if isinstance(bound, Bound) and bound.side == "upper"]
    return min(bounds, key=lambda bound: bound.log_value)
