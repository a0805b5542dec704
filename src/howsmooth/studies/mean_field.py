"""Attention on measures, side by side: exact curves and bounds, what ascent finds, the masked constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from howsmooth.attack import Ascent, Ball, ascend
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
# Of log Lip against ‖A‖R², as R → ∞: half of the largest ⟨Az, y − z⟩ in the unit ball, and γ.
EXPONENTS = {"negative": 1.0, "positive": 1 / 8, "rotation": 1 / 2}
GAMMAS = {"negative": 1.0, "positive": 1 / 8, "rotation": 0.0}


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
    """log n of so many lengths from 2 to 10^power, evenly spread in log n, whole numbers as far as these are doubles.

    >>> [round(math.exp(log_n), 6) for log_n in lengths_up_to(2, 4)]
    [2.0, 7.0, 27.0, 100.0]
    """
    first, last = math.log(2), power * math.log(10)
    logs = [first + (last - first) * index / (points - 1) for index in range(points)]
    return list(dict.fromkeys(math.log(round(math.exp(log))) if log < 53 * first else log for log in logs))


def regimes(gamma_r2: Sequence[float], log_lengths: Sequence[float], scores: str = "negative",
            step: Callable[[float], None] | None = None) -> Iterator[dict[str, Any]]:
    """One record per γR² and length: the exact two-place constant, its plateau, and the bounds around it, in logs."""
    for size in gamma_r2:
        if step is not None:
            step(size)
        top = plateau(size, scores)
        form = LayerForm(unit_layer(scores, top.a))  # on the unit ball
        fixed = {"log_two_dirac": this_project.two_dirac_lower(form, 2, 1.0).log_value,
                 "log_n_free": mean_field.unmasked(form, 2, 1.0).log_value}
        for point in regime_curve(size, log_lengths, scores):
            yield {"gamma_r2": float(size), "a": top.a, "scores": scores, **point.as_record(),
                   "log_plateau": top.log_value, "log_crossover": top.log_crossover,
                   "log_upper": mean_field.upper_at_log_n(form, point.log_n, 1.0).log_value,
                   "log_theorem1": mean_field.theorem1_at_log_n(form, point.log_n, 1.0).log_value, **fixed,
                   "status": "converged"}


def roughest_measures(scores: str, radii_squared: Sequence[float], *, atoms: int = 3, restarts: int = 8,
                      steps: int = 150, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One record per R²: where ascent over positions and masses ends from random measures in the ball, ‖A‖ = 1.

    The three kinds are A = −1 and A = 1 in d = 1, and a quarter turn in d = 2.
    """
    f = unit_layer(scores)
    for squared in radii_squared:
        R = math.sqrt(squared)
        found = ascend(f, _draw(restarts, atoms, f.d, R, seed), Ball(R), move="both", steps=steps, seed=seed, tol=1e-4)
        upper = mean_field.unmasked(f, 2, R)
        yield {"scores": scores, "radius_squared": float(squared), "gamma_r2": GAMMAS[scores] * squared,
               **found.estimate.as_record(), "value": found.value, "atoms": atoms, "restarts": restarts,
               "ascent_steps": found.steps, "places": places(found), "upper_bound": upper.as_record()}


def places(found: Ascent, apart: float = 1e-2) -> list[dict[str, Any]]:
    """The distinct places of a measure that ascent found, the heaviest first; nearer than `apart`·R is one place."""
    rest = sorted(range(len(found.x)), key=lambda i: -float(found.masses[i]))
    radius, listed = float(torch.linalg.vector_norm(found.x, dim=-1).max()), []
    while rest:
        near = [i for i in rest if float((found.x[i] - found.x[rest[0]]).norm()) <= apart * radius]
        mass = float(found.masses[near].sum())
        listed.append({"place": found.x[near[0]].tolist(), "mass": mass, "log_mass": math.log(mass)})
        rest = [i for i in rest if i not in near]
    return sorted(listed, key=lambda entry: -entry["mass"])


@dataclass(frozen=True)
class Rate:
    """Lip ≈ constant·e^{exponent·R²}(1 + turning·R²), which is the shape of two Diracs, beside what theory says."""

    scores: str
    exponent: float
    exponent_error: float | None  # standard error; None without a degree of freedom to spare
    turning: float
    constant: float
    gamma: float  # the exponent of the published lower bound
    true_exponent: float  # half the largest ⟨Az, y − z⟩ in the unit ball
    upper_exponent: float  # of the upper bound, ‖A‖; the published one has 2‖A‖

    def as_record(self) -> dict:
        return asdict(self)


def fit_rate(records: Sequence[dict[str, Any]]) -> Rate:
    """The growth of what ascent found with R², from records of `roughest_measures` for one kind of scores."""
    from scipy.optimize import curve_fit

    kinds = {record["scores"] for record in records}
    if len(kinds) != 1 or len({record["radius_squared"] for record in records}) < 3:
        raise InputError(f"expected records of one kind of scores at three radii or more, got {len(records)} of "
                         f"{', '.join(sorted(kinds)) or 'none'}")
    kind = kinds.pop()
    squared = np.array([record["radius_squared"] for record in records])
    logs = np.log([record["value"] for record in records])
    (exponent, turning, constant), covariance = curve_fit(
        lambda r, exponent, turning, constant: exponent * r + np.log1p(turning * r) + constant, squared, logs,
        p0=(1.0, 1.0, 0.0), bounds=([0, 0, -np.inf], np.inf))
    error = float(np.sqrt(covariance[0, 0])) if len(records) > 3 else None
    return Rate(kind, float(exponent), error, float(turning), math.exp(constant), GAMMAS[kind], EXPONENTS[kind], 1.0)


def masked_constants(exponents: Sequence[float], sizes: Sequence[float], *, n: int = 32, restarts: int = 6,
                     steps: int = 100, seed: int = 0, step: Callable[[float], None] | None = None
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
            yield {"a": float(a), "p": "inf" if p == math.inf else float(p), "n": n,
                   "attained": max(rough, equal), "ascent": rough, "running_mean": equal,
                   "bound": None if bound is None else bound.value,
                   "log_bound": None if bound is None else bound.log_value, "stated": stated, "verdict": verdict,
                   "unmasked": mean_field.unmasked(unit_layer("negative", a), p, 1.0).value,
                   "two_dirac": this_project.two_dirac_lower(f, n, 1.0).value if p == 2 else None,
                   "estimate": found.estimate.as_record() if p == 2 else None, "ascent_steps": found.steps,
                   "seed": seed, "status": found.estimate.status}


def _stated(f: SelfAttention, p: float) -> tuple[float, str]:
    """(1 + 3a)e^{2a}, and whether it is a bound for d_p: true, false or open."""
    a = float(LayerForm(f).slopes(1.0).query[0])
    try:
        mean_field.stated_masked(f, p, 1.0)
        verdict = "true"
    except Refused as refusal:
        verdict = "false" if refusal.condition == "a statement that is true" else "open"
    return (1 + 3 * a) * math.exp(2 * a), verdict


def _draw(restarts: int, atoms: int, d: int, R: float, seed: int) -> torch.Tensor:
    return Ball(R).draw((restarts, atoms, d), torch.Generator().manual_seed(seed))


def _masked_starts(n: int, restarts: int, seed: int) -> torch.Tensor:
    """(restarts, n, 1): equal tokens, one token against all others, and random ones."""
    first = -torch.ones(n, 1, dtype=torch.float64)
    isolated = first.clone()
    isolated[0] = 1
    random = Ball(1.0).draw((max(0, restarts - 2), n, 1), torch.Generator().manual_seed(seed))
    return torch.cat([first.unsqueeze(0), isolated.unsqueeze(0), random])[:restarts]
