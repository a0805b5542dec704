"""Quantities beside the constant: spectra, other norms, gains of pairs of tokens, eigenvalues.

Each record says what its interval is, in `certificate`:

    certified     all stated ends hold together with the probability `confidence`, over the solver's random draws
    exact         every block was formed: the ends are the value and the rounding that is allowed
    two sides     a lower end that is attained and an upper end that is proved; the number itself is NP-hard
    residual      eigenvalues: each has a residual, none an interval
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.lipschitz.blocks import gain_matrix
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import jacobian, local_lipschitz
from howsmooth.models.memory import solver_memory_limit
from howsmooth.questions.quantities import EvaluationPoint, described
from howsmooth.spectral.eigenvalues import leading_eigenvalues
from howsmooth.spectral.trace import FRACTIONS, FrobeniusNorm, count_singular_values, frobenius_norm

PROBES = 64  # of the Frobenius norm

Numbers = dict[str, Any]


def spectrum(point: EvaluationPoint) -> list[Numbers]:
    """Return the largest singular values with their intervals; `value` is the first."""

    def numbers(x: Tensor, i: int) -> Numbers:
        mask = point.perturbed if point.perturbed is None or point.perturbed.ndim == 1 else point.perturbed[i]
        estimate = _estimate(point, x, k=point.count or 1, tokens=mask)
        triplets = estimate.triplets
        ends = zip(triplets.value.tolist(), triplets.lower.tolist(), triplets.upper.tolist(), strict=True)
        return {
            **estimate.as_record(),
            "certificate": "certified",
            "direction_shares": estimate.shares,
            "spectrum": [
                {"value": value, "lower": lower, "upper": upper if upper < float("inf") else None}
                for value, lower, upper in ends
            ],
        }

    return _each(point, numbers)


def density(point: EvaluationPoint) -> list[Numbers]:
    """Return how many singular values exceed each threshold; `value` is the number above a tenth of the largest."""

    def numbers(x: Tensor, _: int) -> Numbers:
        found = count_singular_values(
            jacobian(point.f, x), probes=point.count or 1, confidence=point.solver.confidence, seed=point.solver.seed
        )
        rows = [
            {"threshold": t, "value": value, "lower": lower, "upper": upper}
            for t, value, lower, upper in zip(found.thresholds, found.value, found.lower, found.upper, strict=True)
        ]
        tenth = rows[FRACTIONS.index(0.1)]
        return {
            **_interval(tenth["value"], tenth["lower"], tenth["upper"], point),
            "certificate": "certified",
            "counts": rows,
            "steps": found.steps,
            "products": found.products,
        }

    return _each(point, numbers)


def frobenius(point: EvaluationPoint) -> list[Numbers]:
    """Return ‖J‖_F with its interval."""

    def numbers(x: Tensor, _: int) -> Numbers:
        found, products = _frobenius(point, x)
        return {**_interval(found.value, found.lower, found.upper, point), "products": products}

    return _each(point, numbers)


def effective_rank(point: EvaluationPoint) -> list[Numbers]:
    """Return ‖J‖_F²/‖J‖₂² with its interval."""

    def numbers(x: Tensor, _: int) -> Numbers:
        found, products = _frobenius(point, x)
        return {**_interval(*found.rank, point), "products": products}

    return _each(point, numbers)


def rms(point: EvaluationPoint) -> list[Numbers]:
    """Return ‖J‖ for the root mean square of all entries on both sides: ‖J‖₂ √(inputs/outputs)."""

    def numbers(x: Tensor, _: int) -> Numbers:
        estimate = _estimate(point, x)
        rows, cols = jacobian(point.f, x).shape
        scale = (cols / rows) ** 0.5
        record = estimate.as_record()
        scaled = {name: None if record[name] is None else scale * record[name] for name in ("value", "lower", "upper")}
        return {**record, **scaled, "residual": scale * record["residual"], "direction_shares": estimate.shares}

    return _each(point, numbers)


def token_norm(point: EvaluationPoint) -> list[Numbers]:
    """Return two sides of the norm of J for the largest token norm on both sides; `value` is the attained one."""

    def numbers(x: Tensor, _: int) -> Numbers:
        found = gain_matrix(point.f, x)
        lower, upper = found.token_norm
        return {
            **_interval(lower, lower, upper, point),
            "confidence": None,
            "certificate": "two sides",
            "status": "two sides",
            "products": found.products,
        }

    return _each(point, numbers)


def gains(point: EvaluationPoint) -> list[Numbers]:
    """Return ‖J_ij‖₂ of every output i and token j; `value` is the largest."""

    def numbers(x: Tensor, _: int) -> Numbers:
        found = gain_matrix(point.f, x)
        largest = float(found.value.max())
        return {
            **_interval(largest, largest * (1 - found.rounding), largest * (1 + found.rounding), point),
            "confidence": None,
            "certificate": "exact",
            "gains": [[float(f"{gain:.6g}") for gain in row] for row in found.value.tolist()],
            "products": found.products,
        }

    return _each(point, numbers)


def eigenvalues(point: EvaluationPoint) -> list[Numbers]:
    """Return the eigenvalues of largest modulus with their residuals; `value` is the largest modulus."""

    def numbers(x: Tensor, _: int) -> Numbers:
        J = jacobian(point.f, x)
        found = leading_eigenvalues(J, min(point.count or 1, J.shape[1]), seed=point.solver.seed)
        return {
            **_interval(found.radius, None, None, point),
            "confidence": None,
            "certificate": "residual",
            "residual": max(found.residual, default=None),
            "status": found.status,
            "products": found.products,
            "eigenvalues": [
                {"real": value.real, "imaginary": value.imag, "residual": residual}
                for value, residual in zip(found.value, found.residual, strict=True)
            ],
        }

    return _each(point, numbers)


def _each(point: EvaluationPoint, numbers: Callable[[Tensor, int], Numbers]) -> list[Numbers]:
    """Return the numbers of each sequence, with its time and what describes its tokens."""
    found = []
    for i, x in enumerate(point.x if point.x.ndim == 3 else point.x[None]):
        began = time.perf_counter()
        record = numbers(x, i)
        found.append({"seed": point.solver.seed, **described(x), **record, "seconds": time.perf_counter() - began})
    return found


def _interval(value: float, lower: float | None, upper: float | None, point: EvaluationPoint) -> Numbers:
    width = None if lower is None or upper is None or not value else (upper - lower) / value
    return {
        "value": value,
        "lower": lower,
        "upper": upper,
        "confidence": point.solver.confidence,
        "certificate": "certified",
        "status": "converged",
        "width": width,
    }


def _estimate(point: EvaluationPoint, x: Tensor, **options: Any) -> Estimate:
    limit = solver_memory_limit(x.device, point.solver.max_memory)
    return local_lipschitz(
        point.f, x, batched=False, solver=replace(point.solver, max_memory=limit), strict=False, **options
    )


def _frobenius(point: EvaluationPoint, x: Tensor) -> tuple[FrobeniusNorm, int]:
    """Return the Frobenius norm; half of the failure probability is that of the largest singular value."""
    half = point.solver.divided(2).confidence
    J = jacobian(point.f, x)
    estimate = _estimate(replace(point, solver=replace(point.solver, confidence=half)), x)
    if estimate.upper is None:
        raise InputError(
            f"expected an upper end of the largest singular value, got none ({estimate.status}); {estimate.remedy}"
        )
    seed = point.solver.seed
    assert isinstance(seed, int)  # a generator has no place in a spec
    largest = estimate.value, estimate.lower, estimate.upper
    found = frobenius_norm(J, largest, probes=PROBES, confidence=half, seed=seed + 1)
    return found, estimate.products + found.probes
