"""Worst cases of a model's attention: the largest constants found in a set of tokens, and what is certified there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attack import Ascent, Ball, Ellipsoid, Near, Sphere, worst_case
from howsmooth.attack.constraints import Constraint
from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.bounds import Bound, LayerForm, certify_ball, every, vacuous_eps
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.questions.bound import ball_radius
from howsmooth.questions.inputs import ProgressCallback, run_fields, sites
from howsmooth.questions.quantities import estimate_at
from howsmooth.questions.spec import ModelSpec
from howsmooth.records import make_record
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

CONSTRAINTS = ("norm", "ball", "sphere", "near")


def worst_cases(
    model: Model,
    corpus: Corpus | None,
    spec: ModelSpec,
    *,
    within: str = "norm",
    radius: str | float = "norm",
    eps: float | None = None,
    restarts: int = 16,
    steps: int = 100,
    progress: ProgressCallback | None = None,
    keep: Callable[[dict[str, Any], Ascent], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer (and head): the largest constant that ascent finds in a set of tokens.

    Args:
        model: The model.
        corpus: The text; None with random tokens.
        spec: Which layers and lengths.
        within: The set: "norm", all outputs of the normalisation in front of the layer; "ball" or "sphere" of the
            `radius`; or "near", all tokens within `eps` of those of the text.
        radius: Radius of the ball or sphere, as in `bound`.
        eps: Largest distance of each token from that of the text, for "near".
        restarts: Starting points.
        steps: Steps of ascent.
        progress: Called with (n, layer, head) before each site.
        keep: Called with each record and its ascent, which contains the tokens that were found.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> spec = spec_of({"layers": [0], "heads": [0], "lengths": [4], "tol": 0.1})
        >>> (record,) = worst_cases(model, text, spec, restarts=2, steps=2)
        >>> record["value"] > record["on_text"]["value"]
        True
    """
    if within not in CONSTRAINTS:
        raise InputError(f"expected within to be one of {', '.join(CONSTRAINTS)}, got {within!r}")
    if (eps is None) == (within == "near"):
        raise InputError(f"expected eps with within = 'near' and only there, got eps = {eps} with {within!r}")
    shared = run_fields(model, corpus, spec)
    for site in sites(model, corpus, spec, samples=1, progress=progress):
        n, layer, head, f, x = site.n, site.layer, site.head, site.f, site.x
        norm = model.normalisation(layer).converted(dtype=f.dtype)
        R = ball_radius(radius, radius_of(norm), x)
        constraint = _constraint(within, norm, R, x, eps)
        found = worst_case(f, n, constraint, restarts=restarts, steps=steps, seed=spec.seed, tol=spec.tol)
        on_text = estimate_at(f, x, **spec.accuracy, strict=False)
        largest_norm = float(torch.linalg.vector_norm(found.x, dim=-1, dtype=torch.float64).max())
        upper_bound = _smallest_upper(f, n, max(R, largest_norm))
        record = make_record(
            "worst case",
            {
                "model": model.name,
                "layer": layer,
                "head": head,
                "map": spec.map_name,
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
                "upper_bound": upper_bound.as_record(),
                "masses": token_multiplicities(found.x),
                **shared,
            },
        )
        if keep is not None:
            keep(record, found)
        yield record


def balls(
    model: Model,
    corpus: Corpus | None,
    spec: ModelSpec,
    *,
    eps: tuple[float, ...],
    restarts: int = 4,
    steps: int = 50,
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer (and head) and ε: a certified bound on the constant near the text.

    It holds for all inputs whose tokens are within ε of those of the text. The record also has the largest constant
    that ascent finds there; the supremum is between the two.

    Args:
        model: The model.
        corpus: The text; None with random tokens.
        spec: Which layers and lengths.
        eps: The values of ε.
        restarts: Starting points of ascent.
        steps: Steps of ascent.
        progress: Called with (n, layer, head) before each site.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> spec = spec_of({"layers": [0], "heads": [0], "lengths": [4], "tol": 0.1})
        >>> (record,) = balls(model, text, spec, eps=(1e-3,), restarts=2, steps=2)
        >>> record["certified"] > record["found"]["value"]
        True
    """
    shared = run_fields(model, corpus, spec)
    for site in sites(model, corpus, spec, samples=1, progress=progress):
        n, layer, head, f, x = site.n, site.layer, site.head, site.f, site.x
        f, x = f.converted(dtype=torch.float64), x.double()
        centre = estimate_at(f, x, **spec.accuracy)
        vacuous = vacuous_eps(f, x)
        for size in sorted(eps):
            certificate = certify_ball(f, x, size, at_center=centre.upper)
            found = worst_case(f, n, Near(x, size), restarts=restarts, steps=steps, seed=spec.seed, tol=spec.tol)
            bound = certificate.bound
            yield make_record(
                "ball",
                {
                    "model": model.name,
                    "layer": layer,
                    "head": head,
                    "map": spec.map_name,
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


def token_multiplicities(x: torch.Tensor, tol: float = 1e-2) -> list[int]:
    """Return how many tokens coincide at each distinct point, the largest number first.

    Args:
        x: Tokens, (n, d).
        tol: Tokens closer than this share of the largest norm coincide.

    Example:
        >>> token_multiplicities(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
        [2, 1]
    """
    rest, counts = x.double(), []
    distance = tol * float(torch.linalg.vector_norm(rest, dim=-1).max())
    while len(rest):
        close = torch.linalg.vector_norm(rest - rest[0], dim=-1) <= distance
        counts.append(int(close.sum()))
        rest = rest[~close]
    return sorted(counts, reverse=True)


def _constraint(within: str, norm: Normalisation, R: float, x: torch.Tensor, eps: float | None) -> Constraint:
    if within == "norm":
        return Ellipsoid(norm)
    if eps is not None:  # given with "near" and only there
        return Near(x, eps)
    return Ball(R) if within == "ball" else Sphere(R)


def _smallest_upper(f: SelfAttention, n: int, R: float) -> Bound:
    """Return the smallest upper bound that holds on the whole ball."""
    bounds = [bound for bound in every(LayerForm(f), n, R) if isinstance(bound, Bound) and bound.side == "upper"]
    return min(bounds, key=lambda bound: bound.log_value)
