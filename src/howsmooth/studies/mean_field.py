"""Attention on measures: exact curves with their bounds, constants found by ascent, and masked attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from howsmooth.attack import Ball, ascend
from howsmooth.attention import SelfAttention
from howsmooth.bounds import LayerForm, mean_field, this_project
from howsmooth.bounds.bound import Refused
from howsmooth.errors import InputError
from howsmooth.lipschitz import plateau, regime_curve
from howsmooth.lipschitz.mean_field import mean_field_jacobian
from howsmooth.lipschitz.three_points import three_point_plateau
from howsmooth.spectral import attained_p_norm

SCORE_MATRICES = {
    "negative": torch.tensor([[-1.0]], dtype=torch.float64),
    "positive": torch.tensor([[1.0]], dtype=torch.float64),
    "rotation": torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64),
}


def unit_layer(scores: str, size: float = 1.0, causal: bool = False) -> SelfAttention:
    """Return one head with V = I and A = size times a matrix of `SCORE_MATRICES`: ∓1, or a quarter turn in d = 2.

    Example:
        >>> unit_layer("rotation", 3.0).d
        2
    """
    if scores not in SCORE_MATRICES:
        raise InputError(f"expected scores to be one of {', '.join(SCORE_MATRICES)}, got {scores!r}")
    A = SCORE_MATRICES[scores]
    eye = torch.eye(len(A), dtype=torch.float64)
    return SelfAttention(size * A, eye, eye, scale=1.0, causal=causal)


def lengths_up_to(power: float, points: int) -> list[float]:
    """Return log n for lengths n from 2 to 10^power, evenly spaced in log n; n is an integer up to 2⁵³.

    Args:
        power: Exponent of the longest length.
        points: Number of lengths.

    Example:
        >>> [round(math.exp(log_n), 6) for log_n in lengths_up_to(2, 4)]
        [2.0, 7.0, 27.0, 100.0]
    """
    first, last = math.log(2), power * math.log(10)
    logs = [first + (last - first) * index / (points - 1) for index in range(points)]
    return list(dict.fromkeys(math.log(round(math.exp(log))) if log < 53 * first else log for log in logs))


def regimes(
    gamma_r2: Sequence[float],
    log_lengths: Sequence[float],
    scores: str = "negative",
    progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per γR² and length: the exact two-point constant, its plateau, and the bounds, as logarithms.

    The upper bounds are the smallest that are proved: `log_n_free` for every n, `log_upper` for the n of the record.
    `log_three_points` is what measures at three points attain in the limit; it may be above the plateau of two points.

    Args:
        gamma_r2: Values of γR².
        log_lengths: Logarithms of the lengths n.
        scores: A key of `SCORE_MATRICES`.
        progress: Called with each γR² before its curve.

    Example:
        >>> *_, last = regimes([2.0], lengths_up_to(4, 3))
        >>> round(last["log_value"], 4), round(last["log_plateau"], 4), round(last["log_upper"], 4)
        (2.5647, 2.5647, 3.1825)
    """
    for size in gamma_r2:
        if progress is not None:
            progress(size)
        top = plateau(size, scores)
        form = LayerForm(unit_layer(scores, top.a))  # on the unit ball
        # Which of the two is smaller depends on the sign of A: the second has the right rate in R for each.
        n_free = min(
            mean_field.unmasked(form, 2, 1.0).log_value, this_project.n_free_right_exponent(form, 2, 1.0).log_value
        )
        fixed = {
            "log_two_dirac": this_project.two_dirac_lower(form, 2, 1.0).log_value,
            "log_three_points": three_point_plateau(size, scores),
            "log_n_free": n_free,
        }
        for point in regime_curve(size, log_lengths, scores):
            yield {
                "gamma_r2": float(size),
                "a": top.a,
                "scores": scores,
                **point.as_record(),
                "log_plateau": top.log_value,
                "log_crossover": top.log_crossover,
                "log_upper": min(n_free, mean_field.upper_at_log_n(form, point.log_n, 1.0).log_value),
                "log_theorem1": mean_field.theorem1_at_log_n(form, point.log_n, 1.0).log_value,
                **fixed,
                "status": "converged",
            }


def masked_constants(
    exponents: Sequence[float],
    sizes: Sequence[float],
    *,
    n: int = 32,
    restarts: int = 6,
    steps: int = 100,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per a = ‖A‖R² and p: the proved constant of d_p, the statement in the slides, what is attained.

    A = −a in d = 1 on [−1, 1], V = 1. Attained is the largest of three numbers: the L^p norm of the running mean of n
    equal tokens, the L^p norm of the derivative at the timed measure on n atoms that ascent (in d₂) finds, and what
    tokens that alternate in log-time approach as atoms are added (`bounds.mean_field.masked_lower`).

    Args:
        exponents: Exponents p.
        sizes: Values of a.
        n: Number of atoms.
        restarts: Starting points of ascent.
        steps: Steps of ascent.
        seed: Seed of the starting points.
        progress: Called with each a before its records.

    Example:
        >>> (record,) = masked_constants([2.0], [0.3], n=4, restarts=2, steps=5)
        >>> record["attained"] <= record["bound"]
        True
    """
    for a in sizes:
        if progress is not None:
            progress(a)
        f = unit_layer("negative", a, causal=True)
        found = ascend(f, _masked_starts(n, restarts, seed), Ball(1.0), move="both", steps=steps, seed=seed, tol=1e-4)
        if found.masses is None:
            raise InputError('expected masses from an ascent with move = "both", got none')
        log_weights = found.masses.log().clamp(min=-600)
        J = mean_field_jacobian(f, found.x, log_weights).dense()
        mean = unit_layer("negative", 0.0, causal=True).jacobian(torch.zeros(n, 1, dtype=torch.float64)).dense()
        for p in exponents:
            scaling = (torch.log_softmax(log_weights, -1) * ((0.0 if p == math.inf else 1 / p) - 0.5)).exp()
            ascent = found.value if p == 2 else attained_p_norm(scaling.unsqueeze(1) * J / scaling, p, seed=seed)
            running_mean = attained_p_norm(mean, p, starts=1)
            stated, verdict = _stated(f, p)
            bound = None if p == 1 else mean_field.masked(f, p, 1.0)
            limit = 0.0 if p == 1 else math.exp(mean_field.masked_lower(f, p, 1.0).log_value)
            yield {
                "a": float(a),
                "p": "inf" if p == math.inf else float(p),
                "n": n,
                "attained": max(ascent, running_mean, limit),
                "ascent": ascent,
                "limit": limit or None,
                "running_mean": running_mean,
                "bound": None if bound is None else bound.value,
                "log_bound": None if bound is None else bound.log_value,
                "stated": stated,
                "verdict": verdict,
                "unmasked": mean_field.unmasked(unit_layer("negative", a), p, 1.0).value,
                "two_dirac": this_project.two_dirac_lower(f, n, 1.0).value if p == 2 else None,
                "estimate": found.estimate.as_record() if p == 2 else None,
                "ascent_steps": found.steps,
                "seed": seed,
                "status": found.estimate.status,
            }


def _stated(f: SelfAttention, p: float) -> tuple[float, str]:
    """Return (1 + 3a)e^{2a}, and whether it is a bound for d_p: true, false or open."""
    a = float(LayerForm(f).slopes(1.0).query[0])
    try:
        mean_field.stated_masked(f, p, 1.0)
        verdict = "true"
    except Refused as refusal:
        verdict = "false" if refusal.condition == "a statement that is true" else "open"
    return (1 + 3 * a) * math.exp(2 * a), verdict


def _masked_starts(n: int, restarts: int, seed: int) -> torch.Tensor:
    """Return (restarts, n, 1): equal tokens, one token opposite to all others, and random ones."""
    first = -torch.ones(n, 1, dtype=torch.float64)
    isolated = first.clone()
    isolated[0] = 1
    random = Ball(1.0).draw((max(0, restarts - 2), n, 1), torch.Generator().manual_seed(seed))
    return torch.cat([first.unsqueeze(0), isolated.unsqueeze(0), random])[:restarts]
