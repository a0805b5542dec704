"""Attention on measures, side by side: exact curves and bounds, what ascent finds, the masked constants."""

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
from howsmooth.spectral import attained_p_norm

ONE = torch.ones(1, 1, dtype=torch.float64)
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
SCORE_MATRICES = {"negative": -ONE, "positive": ONE, "rotation": TURN}


def unit_layer(scores: str, size: float = 1.0, causal: bool = False) -> SelfAttention:
    """One head with V = I and A = ∓size in d = 1, or size times a quarter turn in d = 2.

    >>> unit_layer("rotation", 3.0).d
    2
    """
    if scores not in SCORE_MATRICES:
        raise InputError(f"expected scores to be one of {', '.join(SCORE_MATRICES)}, got {scores!r}")
    A = SCORE_MATRICES[scores]
    eye = torch.eye(len(A), dtype=torch.float64)
    return SelfAttention(size * A, eye, eye, scale=1.0, causal=causal)


def lengths_up_to(power: float, points: int) -> list[float]:
    """Log n of so many lengths from 2 to 10^power, evenly spread in log n, whole numbers as far as these are doubles.

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
    step: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """One record per γR² and length: the exact two-place constant, its plateau, and the bounds around it, in logs."""
    for size in gamma_r2:
        if step is not None:
            step(size)
        top = plateau(size, scores)
        form = LayerForm(unit_layer(scores, top.a))  # on the unit ball
        fixed = {
            "log_two_dirac": this_project.two_dirac_lower(form, 2, 1.0).log_value,
            "log_n_free": mean_field.unmasked(form, 2, 1.0).log_value,
        }
        for point in regime_curve(size, log_lengths, scores):
            yield {
                "gamma_r2": float(size),
                "a": top.a,
                "scores": scores,
                **point.as_record(),
                "log_plateau": top.log_value,
                "log_crossover": top.log_crossover,
                "log_upper": mean_field.upper_at_log_n(form, point.log_n, 1.0).log_value,
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
    step: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """One record per a = ‖A‖R² and p: the proved constant of d_p, the statement in the slides, and what is attained.

    A = −a in d = 1 on [−1, 1], V = 1. Attained is the larger of two numbers: the norm in L^p of the running mean of n
    equal tokens, and that of the derivative at the roughest timed measure on n atoms that ascent (in d_2) has found.
    """
    for a in sizes:
        if step is not None:
            step(a)
        f = unit_layer("negative", a, causal=True)
        found = ascend(f, _masked_starts(n, restarts, seed), Ball(1.0), move="both", steps=steps, seed=seed, tol=1e-4)
        logs = found.masses.log().clamp(min=-600)
        J = mean_field_jacobian(f, found.x, logs).dense()
        mean = unit_layer("negative", 0.0, causal=True).jacobian(torch.zeros(n, 1, dtype=torch.float64)).dense()
        for p in exponents:
            change = (torch.log_softmax(logs, -1) * ((0.0 if p == math.inf else 1 / p) - 0.5)).exp()
            rough = found.value if p == 2 else attained_p_norm(change.unsqueeze(1) * J / change, p, seed=seed)
            equal = attained_p_norm(mean, p, starts=1)
            stated, verdict = _stated(f, p)
            bound = None if p == 1 else mean_field.masked(f, p, 1.0)
            yield {
                "a": float(a),
                "p": "inf" if p == math.inf else float(p),
                "n": n,
                "attained": max(rough, equal),
                "ascent": rough,
                "running_mean": equal,
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
    """(1 + 3a)e^{2a}, and whether it is a bound for d_p: true, false or open."""
    a = float(LayerForm(f).slopes(1.0).query[0])
    try:
        mean_field.stated_masked(f, p, 1.0)
        verdict = "true"
    except Refused as refusal:
        verdict = "false" if refusal.condition == "a statement that is true" else "open"
    return (1 + 3 * a) * math.exp(2 * a), verdict


def _masked_starts(n: int, restarts: int, seed: int) -> torch.Tensor:
    """(restarts, n, 1): equal tokens, one token against all others, and random ones."""
    first = -torch.ones(n, 1, dtype=torch.float64)
    isolated = first.clone()
    isolated[0] = 1
    random = Ball(1.0).draw((max(0, restarts - 2), n, 1), torch.Generator().manual_seed(seed))
    return torch.cat([first.unsqueeze(0), isolated.unsqueeze(0), random])[:restarts]
