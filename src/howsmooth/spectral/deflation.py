"""Certified singular values from products in half precision: the spectral gap absorbs their rounding.

A process on rounded products finds right vectors v_1 … v_i, which the reference (float32) then evaluates: the singular
values σ_j of J on their span, and the residuals r_j = ‖Jᵀu_j − σ_j v_j‖. On their complement, the range of
Q = I − VVᵀ, a second process from a new random start bounds λ₁(Q M̃ Q) by x, where M̃ is M = JᵀJ as the rounded products
apply it. Gaussian probes bound ‖Q (M̃ − M) Q‖ by η. Hence λ₁(Q M Q) ≤ c = x + η, and with λ_j = σ_j², ρ_j = σ_j r_j

    λ_j(M) ≤ the j-th largest of μ_1 … μ_i,    μ_j = the larger eigenvalue of [[λ_j, √i ρ_j], [√i ρ_j, c]].

Proof. In the basis (V, V^⊥), M is at most [[Λ, Bᵀ], [B, c I]], where column j of B has the norm ρ_j. An eigenvalue
μ > c of that matrix is one of Λ + BᵀB/(μ − c), which grows with BᵀB; and BᵀB ≤ i diag(ρ_j²), the trace of a positive
semidefinite matrix being at least its norm. With i diag(ρ_j²) in its place the matrix splits into blocks of two.

Rounding raises the top by i ρ_j²/(λ_j − c) only, so η need be small compared with the gap, not with the tolerance.
`docs/certificates.md` has the failure probabilities and the model of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.spectral.bidiagonal import Bidiagonalisation, Ritz, is_check_due
from howsmooth.spectral.memory import MAX_EXTRA_VECTORS, MemoryPlan
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.products import Products, gaussian_vectors, rayleigh_ritz
from howsmooth.spectral.rounding import MAX_PROBES, Perturbation, Rounding, allowance

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    Numbers = NDArray[np.float64]

MAX_RATIO = 0.94  # of λ_{i+1} to λ_k: beyond it the gap is too small for half precision
COMFORTABLE_RATIO = 0.85  # further vectors are deflated to get below it
START_SHARE = 0.5  # part of the failure probability that is spent on the start of the second process
STEPS_PER_PROBE = 6  # further steps that are tried before one more probe is drawn
SEARCH_ACCURACY = 1 / 4  # of the first process: its residuals over those that the tolerance and the gap allow


def joint_bound(
    values: Float[np.ndarray, "b i"], residuals: Float[np.ndarray, "b i"], rest: Float[np.ndarray, " b"]
) -> NDArray[np.float64]:
    """Return upper bounds (b, i) on the i largest eigenvalues of M, in decreasing order.

    Args:
        values: The Rayleigh quotients λ_j of i orthonormal vectors, with M diagonal on their span.
        residuals: The norms ρ_j = ‖M v_j − λ_j v_j‖.
        rest: Upper bound c on the largest eigenvalue of M on the complement.

    Example:
        >>> joint_bound(np.array([[2.0]]), np.array([[0.1]]), np.array([1.0])).round(4).tolist()
        [[2.0099]]
    """
    coupling = values.shape[1] * residuals**2
    half_gap = np.abs(values - rest[:, None]) / 2
    denominator = half_gap + np.sqrt(half_gap**2 + coupling)
    excess = np.divide(coupling, denominator, out=np.zeros_like(coupling), where=denominator > 0)
    bounds: NDArray[np.float64] = -np.sort(-(np.maximum(values, rest[:, None]) + excess), axis=1)
    return bounds


@dataclass(frozen=True)
class Deflated:
    """The result of `DeflatedSolve`, in the units of its products.

    Attributes:
        value: Singular values attained in the precision of the reference, (b, k).
        lower: Their lower ends, (b, k).
        upper: Their upper ends, (b, k); infinite where a computed one was contradicted.
        residual: ‖Jᵀu − σv‖, (b, k).
        u: Left vectors, (b, k, rows).
        v: Right vectors, (b, k, cols).
        is_certified: Whether the interval is as narrow as the tolerance and the reference's own rounding allow, (b,).
        at_step_limit: Whether a process reached its last step, (b,).
    """

    value: Numbers
    lower: Numbers
    upper: Numbers
    residual: Numbers
    u: Float[Tensor, "b k rows"]
    v: Float[Tensor, "b k cols"]
    is_certified: NDArray[np.bool_]
    at_step_limit: NDArray[np.bool_]


class DeflatedSolve:
    """One solve for all batch members with rounded products and a reference for a few.

    Args:
        operator: The operator, whose products are rounded further than its vectors.
        reference: The same operator without that rounding.
        k: Number of singular values.
        tol: Relative width of the intervals.
        delta: Failure probability of the intervals of one member.
        budget: Memory and steps.
        generator: Source of the random starts and probes.
        progress: As in `singular_values`; there is no interval until the second process.
    """

    def __init__(
        self,
        operator: LinearOperator,
        reference: LinearOperator,
        k: int,
        tol: float,
        delta: float,
        budget: MemoryPlan,
        generator: torch.Generator,
        progress: Callable[[int, Tensor, Tensor], None] | None,
    ) -> None:
        """Divide the failure probability."""
        self.operator, self.k, self.tol, self.budget = operator, k, tol, budget
        self.generator, self.progress = generator, progress
        self.products, self.reference = Products(operator), Products(reference, unit=1.0)
        self.start_delta = START_SHARE * delta
        # The bounds from 1, 2, … MAX_PROBES probes hold together: how many are drawn may depend on what they show.
        self.probe_delta = (1 - START_SHARE) * delta / MAX_PROBES
        recurrence = math.sqrt(budget.max_steps) * torch.finfo(operator.dtype).eps
        self.rounding = Rounding(above=recurrence + allowance(reference), below=allowance(reference))
        self.max_deflated = min(k + MAX_EXTRA_VECTORS, operator.shape[1])
        self.steps = 0

    def run(self) -> Deflated | None:
        """Return the intervals, or None if the gap is too small for every member.

        Raises:
            NonFiniteProduct: If a product overflows or is NaN.
        """
        vectors, ratio, at_step_limit = self._search()
        if (ratio > MAX_RATIO).all() and not at_step_limit:
            return None
        self.reference.unit = self.products.unit
        value, residual, u, v = rayleigh_ritz(self.reference, vectors, residual_products=self.reference)
        del vectors
        least = residual[:, 0] ** 2  # (zᵀM v_1)² ≤ λ_1 zᵀM z for every z, hence λ₁(Q M Q) ≥ ρ_1²/λ_1 = r_1²
        interval = _Interval(value, residual, self.k, self.tol, self.rounding)
        if v.shape[1] < self.operator.shape[1]:
            rest, at_limit = self._bound_complement(interval, v.to(self.operator.dtype))
        else:
            rest, at_limit = least, False  # the vectors span the whole space, and residuals are rounding
        is_contradicted = rest < (1 - self.rounding.above) * least
        upper = np.where(is_contradicted[:, None], np.inf, interval.upper(rest))
        is_certified = interval.is_within(rest) & ~is_contradicted
        return Deflated(
            value=interval.value,
            lower=interval.lower,
            upper=np.maximum(upper, interval.value),
            residual=residual[:, : self.k],
            u=u[:, : self.k],
            v=v[:, : self.k],
            is_certified=is_certified,
            at_step_limit=(at_limit | at_step_limit) & ~is_certified,
        )

    def _search(self) -> tuple[list[Tensor], Numbers, bool]:
        """Return vectors by a first process, its λ_{i+1}/λ_k as `_choose_count` does, and whether its steps ran out."""
        process = Bidiagonalisation(self.products, gaussian_vectors(self.products, self.generator), self.budget.stored)
        while True:
            process.step()
            q = process.steps
            is_last = q >= self.budget.max_steps
            if not (is_last or process.terminated.all() or is_check_due(q)):
                continue
            ritz = process.ritz()
            self._report(q, np.zeros(self.products.members), np.full(self.products.members, np.inf))
            count, ratio, is_found = self._choose_count(process, ritz)
            if is_found or is_last or process.terminated.all():
                break
        self.steps = q
        return [process.vector(weights) for weights in ritz.largest_vectors(count)], ratio, is_last and not is_found

    def _choose_count(self, process: Bidiagonalisation, ritz: Ritz) -> tuple[int, Numbers, bool]:
        """Return how many vectors to deflate, λ_{i+1}/((1 + tol)² λ_k), and whether they are accurate enough.

        This only chooses: the certificate holds for any number of vectors, however inaccurate they are.
        """
        k, most = self.k, self.max_deflated
        residuals = process.coupling()[:, -1:] * np.abs(ritz.last_entries)
        missing = max(0, most + 1 - process.steps)  # Ritz pairs that are not there yet
        values, residuals = (np.pad(t[:, ::-1], ((0, 0), (0, missing))) for t in (ritz.values, residuals))
        # The largest λ_k that the tolerance allows, so that a coarse tolerance needs no gap.
        unit = (1 + self.tol) ** 2 * np.where(values[:, k - 1] > 0, values[:, k - 1], 1.0)[:, None]
        ratios = values / unit
        is_open = ~process.terminated
        candidates = [ratios[is_open, count] for count in range(k, most + 1)]
        count = k
        for limit in (COMFORTABLE_RATIO, MAX_RATIO):
            within = [k + j for j, ratio in enumerate(candidates) if (ratio <= limit).all()]
            if within:
                count = within[0]
                break
        gap = np.maximum(1 - ratios[:, count], 1 - MAX_RATIO)[:, None]
        # Beside μ_j a vector beyond the k-th, with a lower value, may be less accurate.
        distance = np.maximum(1 - ratios[:, :count], self.tol)
        is_small = residuals[:, :count] <= SEARCH_ACCURACY * np.sqrt(distance * gap) * unit
        return count, ratios[:, count], bool(is_small[is_open].all()) and process.steps > count

    def _bound_complement(self, interval: _Interval, deflated: Tensor) -> tuple[Numbers, bool]:
        """Return c ≥ λ₁(Q M Q), by a second process and Gaussian probes, and whether its steps ran out.

        The first probe is the start of the process. Further ones, which cost products of the reference, are drawn only
        when the interval will be narrow enough with them; steps go on while fewer probes may suffice.
        """
        process = Bidiagonalisation(
            self.products, gaussian_vectors(self.products, self.generator), self.budget.stored, deflated
        )
        process.step()
        perturbation = Perturbation(process, self.reference)
        bound = np.full(self.products.members, np.inf)
        possible_since = self.budget.max_steps
        while True:
            q = process.steps
            is_last = q >= self.budget.max_steps
            is_final = is_last or bool(process.terminated.all())
            if is_final or is_check_due(q):
                ritz = process.ritz()
                bound = np.minimum(bound, process.eigenvalue_bound(ritz, self.start_delta))
                most = perturbation.bound(self.probe_delta, MAX_PROBES)
                possible = interval.is_within(ritz.top + most)  # the Ritz value is below any bound
                if not possible.any():
                    break
                fewest = self._fewest_probes(interval, perturbation, ritz.top, possible)
                probes = self._fewest_probes(interval, perturbation, bound, possible)
                if probes <= MAX_PROBES:
                    possible_since = min(possible_since, q)
                    if is_final or (probes - fewest) * STEPS_PER_PROBE <= q - possible_since:
                        if perturbation.count >= probes:
                            break
                        perturbation.extend(probes, self.generator)
                        continue
                self._report(self.steps + q, *interval.last(bound + perturbation.bound(self.probe_delta)))
                if is_final:
                    break
            process.step()
        self.steps += q
        return bound + perturbation.bound(self.probe_delta), is_last and bool(possible.any())

    def _fewest_probes(
        self, interval: _Interval, perturbation: Perturbation, bound: Numbers, members: NDArray[np.bool_]
    ) -> int:
        """Return the fewest probes that would do for these members; MAX_PROBES + 1 if none would."""
        counts = range(perturbation.count, MAX_PROBES + 1)
        within = (interval.is_within(bound + perturbation.bound(self.probe_delta, count)) for count in counts)
        sufficient = (count for count, is_within in zip(counts, within, strict=True) if is_within[members].all())
        return next(sufficient, MAX_PROBES + 1)

    def _report(self, step: int, lower: Numbers, upper: Numbers) -> None:
        if self.progress is not None:
            self.progress(step, self.products.batched(lower), self.products.batched(upper))


class _Interval:
    """The intervals of k values as functions of c, the bound on the complement.

    Args:
        value: Singular values on the span of the deflated vectors, (b, i).
        residual: Their residuals, (b, i).
        k: Number of values that are asked for.
        tol: Relative width.
        rounding: Rounding of the reference and of the recurrence.
    """

    def __init__(self, value: Numbers, residual: Numbers, k: int, tol: float, rounding: Rounding) -> None:
        self.eigenvalues, self.couplings = value**2, value * residual
        self.value, self.k, self.tol, self.rounding = value[:, :k], k, tol, rounding
        self.lower = rounding.lower(self.value.T, value[:, 0]).T
        # Half of the tolerance is left to c if the rounding of the reference itself takes more than the other half.
        width = self._raised(self.eigenvalues[:, :k]) - self.lower
        self.allowed = np.maximum(tol * self.value - width, tol / 2 * self.value)

    def _raised(self, eigenvalues: Numbers) -> Numbers:
        return self.rounding.upper(eigenvalues.T, np.sqrt(eigenvalues[:, 0])).T

    def upper(self, rest: Numbers) -> Numbers:
        """Return the upper ends (b, k)."""
        return self._raised(joint_bound(self.eigenvalues, self.couplings, rest)[:, : self.k])

    def last(self, rest: Numbers) -> tuple[Numbers, Numbers]:
        """Return the interval of the last of the k values, (b,) each."""
        return self.lower[:, -1], self.upper(rest)[:, -1]

    def is_within(self, rest: Numbers) -> NDArray[np.bool_]:
        """Return whether all k intervals of a member are as narrow as wanted, or the values negligible, (b,)."""
        bound = joint_bound(self.eigenvalues, self.couplings, rest)[:, : self.k]
        is_narrow = np.sqrt(bound) - self.value <= self.allowed
        is_negligible = self._raised(bound) <= self.tol * self.value[:, :1]
        within: NDArray[np.bool_] = np.all(is_narrow | is_negligible, axis=1)
        return within
