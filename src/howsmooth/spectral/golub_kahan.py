"""Singular values by unrestarted Golub–Kahan–Lanczos, in an interval that holds with a chosen probability."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch

from howsmooth.errors import InputError, NotConverged
from howsmooth.spectral.bidiagonal import Bidiagonalisation, Ritz, is_check_due
from howsmooth.spectral.certificate import is_bound_within
from howsmooth.spectral.deflation import DeflatedSolve
from howsmooth.spectral.memory import MemoryPlan, plan
from howsmooth.spectral.operator import LinearOperator, is_rounded_further, refuse_autocast
from howsmooth.spectral.products import (
    NonFiniteProduct,
    Products,
    gaussian_vectors,
    rayleigh_ritz,
    safe_divide,
    solver_generator,
)
from howsmooth.spectral.result import (
    CONTRADICTED,
    CONVERGED,
    LOWER_ONLY,
    LOWER_ONLY_PRECISION_LIMIT,
    LOWER_ONLY_STEP_LIMIT,
    PRECISION_LIMIT,
    REMEDY,
    STEP_LIMIT,
    STOPPED_ON_RESIDUAL,
    TOLERANCE_NOT_REACHED,
    SingularTriplets,
)
from howsmooth.spectral.rounding import MAX_PROBES, PROBE_SHARE, Perturbation, Rounding, allowance, probe_count
from howsmooth.spectral.solver import Solver, SolverOptions, is_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Progress = Callable[[int, Tensor, Tensor], None]

SIZE_STEPS = 3  # of the power method, for the norm of an operator of which a part is measured
MAX_RETRIES = 12  # further solves, each from another start, where the attained values contradict the interval
CONTRADICTION_MARGIN = 1e-9  # relative excess of an attained σ² over its bound that counts as a contradiction


def singular_values(
    operator: LinearOperator,
    k: int = 1,
    *,
    solver: Solver = Solver(),
    strict: bool = True,
    progress: Progress | None = None,
    **options: Unpack[SolverOptions],
) -> SingularTriplets:
    """Compute the k largest singular values of an operator, or of each in a batch, with certified intervals.

    For each batch member all k intervals hold together with probability `confidence` over the random start. Values
    after the first also count as converged when their upper bound falls below tol times the first. If the attained
    values contradict the interval, the solve is repeated from another start; since this happens only then, the
    confidence does not change.

    Triplets after the first come from J (I − VVᵀ), V being the right vectors found, each from a new random start. The
    norm of that operator bounds σ_i from above for every V (Courant–Fischer), so a repeated singular value is found
    with its multiplicity. The singular values of J V bound σ_1 … σ_k from below (interlacing).

    Where products are rounded further than the vectors and the operator has a reference without that rounding, the
    spectral gap absorbs it (`spectral/deflation.py`); if the gap is too small, the solve is repeated with the products
    of the reference, and `notes` states this.

    Args:
        operator: The operator, or a batch of them, in float32 or float64.
        k: Number of singular values.
        solver: The options of the solve.
        strict: Whether to raise NotConverged where `tol` is not reached; otherwise the status shows it.
        progress: Called as `progress(step, lower, upper)` whenever the interval was computed, with tensors (*batch,).
        **options: Fields of the solver to replace, such as tol=1e-4.

    Returns:
        The triplets with their intervals and statuses.

    Raises:
        InputError: If an argument is invalid, a product is not finite, or autocast is on.
        NotConverged: If `strict` and the tolerance is not reached; `partial` is the result so far.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> found = singular_values(MatrixOperator(torch.diag(torch.tensor([3.0, 1.0, 2.0]))), k=2, tol=1e-4)
        >>> [round(x, 3) for x in found.value.tolist()], found.status
        ([3.0, 2.0], 'converged')
    """
    began = time.perf_counter()
    solver = replace(solver, **options)
    _check_arguments(operator, k, solver, progress)
    budget = plan(operator, k=k, solver=solver)
    generator, seed_used = solver_generator(solver.seed)
    reference = operator.precise() if solver.stop == "interval" and is_rounded_further(operator) else None
    if reference is None or operator.casts:
        result = _solve_with_retries(operator, k, solver, budget, generator, progress)
    else:
        limit = None if solver.max_memory is None else solver.max_memory - operator.held
        reference_budget = plan(reference, k=k, solver=solver, max_memory=limit)
        result = _solve_deflated(operator, reference, k, solver, budget, reference_budget, generator, progress)
    result = replace(result, seed=seed_used, seconds=time.perf_counter() - began)
    failed = [status for status in result.statuses if status in TOLERANCE_NOT_REACHED]
    if strict and failed:
        wanted, got = (
            ("relative width", result.width)
            if solver.stop == "interval"
            else ("a relative residual of", result.residual / result.value)
        )
        raise NotConverged(
            f"expected {wanted} {solver.tol:g}, got {got.max():.3g} after {result.steps} steps "
            f"({failed[0]}, {len(failed)} of {len(result.statuses)} operators); {REMEDY[failed[0]]}; "
            "the partial result is in .partial, strict=False returns it",
            result,
        )
    return result


def _solve_with_retries(
    operator: LinearOperator,
    k: int,
    solver: Solver,
    budget: MemoryPlan,
    generator: torch.Generator,
    progress: Progress | None,
) -> SingularTriplets:
    """Solve, and again from other starts for the members whose attained values contradict the interval."""
    result, contradicted = _Solve(operator, k, solver, budget, generator, progress).run()
    for _ in range(MAX_RETRIES):
        if not contradicted.any():
            break
        retry, still = _Solve(operator, k, solver, budget, generator, progress).run()
        result, contradicted = _replace_members(result, contradicted, retry), contradicted & still
    return _without_upper(result, contradicted) if contradicted.any() else result


def _solve_deflated(
    operator: LinearOperator,
    reference: LinearOperator,
    k: int,
    solver: Solver,
    budget: MemoryPlan,
    reference_budget: MemoryPlan,
    generator: torch.Generator,
    progress: Progress | None,
) -> SingularTriplets:
    """Solve with rounded products, and with those of the reference where the spectral gap does not absorb the rounding.

    Each of the two solves has half of the failure probability, since the first one decides whether there is a second.
    """
    tol, confidence = solver.tol, solver.confidence
    half = confidence + (1 - confidence) / 2
    solve = DeflatedSolve(operator, reference, k, tol, 1 - half, budget, generator, progress)
    try:
        found, reason = solve.run(), "the spectral gap is too small for their rounding"
    except NonFiniteProduct:
        found, reason = None, "one of them is not finite"
    result, failed = None, np.ones(solve.products.members, dtype=bool)
    if found is not None:
        reached = is_reached(found.upper - found.lower, found.value, found.upper, tol)
        statuses = [
            CONVERGED if is_fine else STEP_LIMIT if at_limit else PRECISION_LIMIT
            for is_fine, at_limit in zip(reached, found.at_step_limit, strict=True)
        ]
        result = _make_triplets(
            solve.products,
            *(found.value, found.lower, found.upper, found.residual, found.u, found.v),
            confidence=confidence,
            statuses=statuses,
            steps=solve.steps,
            count=solve.products.count + solve.reference.count,
        )
        failed = ~found.is_certified & ~(found.at_step_limit & (solver.max_steps is not None))
        if not failed.any():
            return result

    def continued(step: int, lower: Tensor, upper: Tensor) -> None:
        if progress is not None:
            progress(solve.steps + step, lower, upper)

    further = None if progress is None else continued
    retry = _solve_with_retries(reference, k, replace(solver, confidence=half), reference_budget, generator, further)
    retry = replace(retry, u=retry.u.to(operator.dtype), v=retry.v.to(operator.dtype), dtype=operator.dtype)
    members = f"{failed.sum()} of {len(failed)} operators: " if len(failed) > 1 else ""
    name = str(reference.dtype).removeprefix("torch.")
    note = f"{members}rounded products did not suffice ({reason}), and those in {name} were used"
    if result is not None:
        retry = _replace_members(result, failed, retry)
    else:
        retry = replace(
            retry,
            steps=retry.steps + solve.steps,
            products=retry.products + solve.products.count + solve.reference.count,
        )
    return replace(retry, confidence=confidence, notes=(note,))


class _Solve:
    """One solve for all batch members: the triplets found so far and the current model of rounding."""

    def __init__(
        self,
        operator: LinearOperator,
        k: int,
        solver: Solver,
        budget: MemoryPlan,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> None:
        self.operator, self.tol, self.confidence, self.stop = operator, solver.tol, solver.confidence, solver.stop
        self.k, self.budget, self.progress = k, budget, progress
        self.products = Products(operator)
        self.generator = generator
        precise = operator.precise() if operator.dtype != torch.float64 else None
        self.precise = None if precise is None else Products(precise, unit=1.0)  # float32 needs no other unit
        is_rounded = operator.dtype != torch.float64 or operator.casts
        perturbed = operator.perturbed() if is_rounded and precise is None else None
        # E is measured against this operator, if there is one.
        self.reference = self.precise if perturbed is None else Products(perturbed, unit=1.0)
        self.epsilon = torch.finfo(operator.dtype).eps
        # The final value is a few roundings below the Ritz value in the loop. With k > 1 the residuals ρ of the
        # earlier vectors couple them to the later ones: σ moves by at most √k ρ.
        self.residual_tol = self.tol / (8 * math.sqrt(k))
        self.inner_tol = max((1 if k == 1 else 7 / 8) * self.tol - 32 * self.epsilon, self.tol / 2)

        delta = 1 - self.confidence
        self.measures_rounding = perturbed is not None or (self.precise is not None and self.stop == "interval")
        self.start_delta = delta * ((1 - PROBE_SHARE) if self.measures_rounding else 1) / k
        self.probe_delta = delta * PROBE_SHARE / k
        most_precise = operator if precise is None else precise
        # Where the products are compared with a float64 reference, only the rounding of the recurrence itself and
        # that of the reference remain.
        remaining = math.sqrt(budget.max_steps) * self.epsilon + allowance(most_precise)
        has_measured_products = self.measures_rounding and self.precise is not None
        self.rounding = Rounding(
            above=remaining if has_measured_products else allowance(operator), below=allowance(most_precise)
        )

        members = self.products.members
        self.steps = 0
        self.found: list[Tensor] = []
        self.uppers: list[NDArray[np.float64]] = []
        self.largest = np.zeros(members)
        self.hit_step_limit = np.zeros(members, dtype=bool)

    def run(self) -> tuple[SingularTriplets, NDArray[np.bool_]]:
        """Return the triplets, and for each member whether the attained values contradict its interval."""
        for _ in range(self.k):
            self.find_next()
        return self.result()

    def find_next(self) -> None:
        """Run Lanczos in the complement of the vectors found, until the next value is accurate enough."""
        first = not self.found
        deflated = None if first else torch.stack(self.found, dim=1)
        start = gaussian_vectors(self.products, self.generator)
        process = Bidiagonalisation(self.products, start, self.budget.stored, deflated)
        self.rounding = replace(self.rounding, perturbation=0.0)
        is_probed = not self.measures_rounding
        bound = np.full(self.products.members, np.inf)
        done = np.zeros(self.products.members, dtype=bool)
        while True:
            process.step()
            q = process.steps
            if first and q == 1:
                self._refuse_underflow(np.sqrt(process.diagonal[0]))
                self.rounding = replace(self.rounding, size=self._size_of_whole())
            is_last = q >= self.budget.max_steps
            if not (is_last or process.terminated.all() or is_check_due(q)):
                continue
            ritz = process.ritz()
            self.largest = np.maximum(self.largest, np.sqrt(ritz.top))
            if not (is_last or self.progress is not None or self._may_be_done(process, ritz, done)):
                continue
            bound = np.minimum(bound, process.eigenvalue_bound(ritz, self.start_delta, done))
            done = self._is_done(process, ritz, bound)
            if not is_probed and (done.all() or is_last):
                self._measure_rounding(process, ritz)
                is_probed = True
                done = self._is_done(process, ritz, bound)
            self._report(self.steps + q, ritz, bound)
            if done.all() or is_last:
                break
        self.steps += q
        self.hit_step_limit |= ~done
        self.uppers.append(self.rounding.upper(bound, self.largest))
        self.found.append(process.vector(ritz.largest_vectors(1)[0]))

    def _refuse_underflow(self, norm: NDArray[np.float64]) -> None:
        """Raise InputError for subnormal products, which round more coarsely, unless a reference measures this."""
        norm, least = norm * self.products.unit, torch.finfo(self.operator.dtype).tiny
        small = norm[(norm > 0) & (norm < least)]
        if self.reference is None and len(small):
            raise InputError(
                f"expected products J v of norm 0 or at least {least:.3g} in {self.operator.dtype}, "
                f"got {small.min():.3g}; multiply the operator by a constant"
            )

    def _size_of_whole(self) -> NDArray[np.float64] | float:
        """Return a norm (b,) that the whole operator attains, by a few power steps; 0 where it is not needed.

        Rounding inside a product is relative to the norm of the whole operator, which may be far larger than that of
        the chosen rows and columns. A float64 reference measures it.
        """
        whole = self.operator.whole
        if whole is None or self.precise is not None:
            return 0.0
        products = Products(whole, unit=1.0)
        products.unit = self.products.unit
        v, size = gaussian_vectors(products, torch.Generator().manual_seed(0)), np.zeros(products.members)
        for _ in range(SIZE_STEPS):
            v = safe_divide(v, products.norm(v, "v"))
            v, factor = products.gram(v, fused=False)
            size = np.sqrt(factor * products.norm(v, "JᵀJ v"))
        self.products.count += products.count
        return size

    def _may_be_done(self, process: Bidiagonalisation, ritz: Ritz, done: NDArray[np.bool_]) -> bool:
        """Return whether a further member may be done now: a cheap test before the expensive bound."""
        if self.found or (process.terminated & ~done).any():
            return True
        pending = np.flatnonzero(~done)
        if self.stop == "residual":
            residual = process.coupling()[pending, -1] * np.abs(ritz.last_entries[pending, -1])
            return bool((residual <= self.inner_tol * ritz.top[pending]).any())
        ratio = np.full(len(pending), (1 + self.inner_tol) ** 2)  # the largest that is narrow enough
        is_within = is_bound_within(
            ratio,
            ritz.values[pending],
            ritz.last_entries[pending],
            process.floored_coupling(ritz.top)[pending],
            self.operator.shape[1],
            self.start_delta,
            orthogonal=process.is_fully_stored,
        )
        return bool(is_within.any())

    def _is_done(self, process: Bidiagonalisation, ritz: Ritz, bound: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the members for which further steps are not needed, or could not help."""
        target = self.inner_tol * np.sqrt(ritz.top)
        residual = process.coupling()[:, -1] * np.abs(ritz.last_entries[:, -1])
        is_negligible = self.rounding.upper(bound, self.largest) <= self.tol * self.largest
        if self.stop == "residual":
            is_small = residual <= self.inner_tol * ritz.top
            return process.terminated | is_small | is_negligible
        is_certified = np.sqrt(bound) - np.sqrt(ritz.top) <= target
        is_rounding_too_wide = self._width(ritz.top, ritz) > target
        is_narrow = (self._width(bound, ritz) <= target) | (is_certified & is_rounding_too_wide)
        if len(self.found) < self.k - 1:
            # A residual in this vector would also widen the bounds of the next values.
            is_narrow &= residual <= self.residual_tol * ritz.top
        return process.terminated | is_narrow | is_negligible

    def _width(self, bound: NDArray[np.float64], ritz: Ritz) -> NDArray[np.float64]:
        return self.rounding.upper(bound, self.largest) - self.rounding.lower(np.sqrt(ritz.top), self.largest)

    def _measure_rounding(self, process: Bidiagonalisation, ritz: Ritz) -> None:
        """Bound the difference between the operator as applied and its float64 reference, or the perturbed operator.

        Each attempt spends half of the failure probability that is left. A further attempt, with one more probe,
        follows only if the last one leaves rounding a large part of the tolerance.
        """
        if self.reference is None:
            raise RuntimeError("expected a reference to measure rounding against, got none")
        delta = self.probe_delta / 2
        self.reference.unit = self.products.unit
        perturbation = Perturbation(process, self.reference)
        for count in range(probe_count(self.tol, self.operator.roundoff, delta), MAX_PROBES + 1):
            perturbation.extend(count, self.generator)
            self.rounding = replace(self.rounding, perturbation=perturbation.bound(delta))
            if self.precise is None and not self.found:  # only the first process sees all of E: nothing is deflated
                self.rounding = replace(self.rounding, value_perturbation=self.rounding.perturbation)
            if (self._width(ritz.top, ritz) <= self.tol / 2 * np.sqrt(ritz.top)).all():
                break
            delta /= 2

    def _report(self, step: int, ritz: Ritz, bound: NDArray[np.float64]) -> None:
        if self.progress is not None:
            lower = self.rounding.lower(np.sqrt(ritz.top), self.largest)
            upper = self.rounding.upper(bound, self.largest)
            self.progress(step, self.products.batched(lower), self.products.batched(upper))

    def result(self) -> tuple[SingularTriplets, NDArray[np.bool_]]:
        """Evaluate the vectors found, in float64 if there is a reference, and compute the intervals."""
        evaluation = self.precise if self.precise is not None else self.products
        value, residual, u, v = rayleigh_ritz(evaluation, self.found, residual_products=self.products)
        lower = self.rounding.lower(value.T, value[:, 0]).T
        if self.precise is not None and not self.operator.is_same_in_float64:
            own = rayleigh_ritz(self.products, self.found, residual_products=self.products)[0]
            lower = np.minimum(lower, np.maximum(own - allowance(self.operator) * own[:, :1], 0.0))
        bounds = np.minimum.accumulate(np.stack(self.uppers, axis=1), axis=1)  # as σ_i ≤ σ_{i−1}
        upper = np.maximum(bounds, value)  # rounding must not make the interval empty
        # A start with too small a top component, which has probability δ, can give a bound below an attained value:
        # value_i ≤ σ_i, and ‖Jᵀu_1‖² = value_1² + residual_1² ≤ σ_1².
        attained = value.copy()
        attained[:, 0] = np.hypot(value[:, 0], residual[:, 0])
        error = (self.rounding.above + self.rounding.below) * np.maximum(value[:, 0], self.rounding.size)
        attained = np.maximum(attained - error[:, None], 0.0)
        slack = np.asarray(self.rounding.perturbation).reshape(-1, 1)
        contradicted: NDArray[np.bool_] = (attained**2 - slack > bounds**2 * (1 + CONTRADICTION_MARGIN)).any(axis=1)
        # Products that are rounded further than the vectors, by an amount that was not measured, give no upper bound.
        is_unmeasured = is_rounded_further(self.operator) and not self.measures_rounding
        if is_unmeasured:
            upper = np.full_like(upper, np.inf)
        statuses = self._statuses(value, lower, upper, residual, is_unmeasured)

        triplets = _make_triplets(
            self.products,
            *(value, lower, upper, residual, u, v),
            confidence=self.confidence,
            statuses=statuses,
            steps=self.steps,
            count=self.products.count + (0 if self.reference is None else self.reference.count),
        )
        return triplets, contradicted

    def _statuses(
        self,
        value: NDArray[np.float64],
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        residual: NDArray[np.float64],
        is_unmeasured: bool,
    ) -> list[str]:
        reached = is_reached(upper - lower if self.stop == "interval" else residual, value, upper, self.tol)
        if self.stop == "interval":
            names = (CONVERGED, STEP_LIMIT, PRECISION_LIMIT)
        elif is_unmeasured:
            names = (LOWER_ONLY, LOWER_ONLY_STEP_LIMIT, LOWER_ONLY_PRECISION_LIMIT)
        else:
            names = (STOPPED_ON_RESIDUAL, STEP_LIMIT, PRECISION_LIMIT)
        return [
            names[0] if is_fine else names[1] if at_limit else names[2]
            for is_fine, at_limit in zip(reached, self.hit_step_limit, strict=True)
        ]


def is_reached(
    error: NDArray[np.float64], value: NDArray[np.float64], upper: NDArray[np.float64], tol: float
) -> NDArray[np.bool_]:
    """Return (b,) whether all k errors are at most tol of their values, or the values negligible beside the first."""
    reached: NDArray[np.bool_] = np.all((error <= tol * value) | (upper <= tol * value[:, :1]), axis=1)
    return reached


def _make_triplets(
    products: Products,
    value: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    residual: NDArray[np.float64],
    u: Tensor,
    v: Tensor,
    *,
    confidence: float,
    statuses: list[str],
    steps: int,
    count: int,
) -> SingularTriplets:
    """Return the result in the shape of the batch, from numbers in units of the products."""
    operator = products.operator
    batch, k = operator.batch, value.shape[1]
    return SingularTriplets(
        value=products.batched(value),
        lower=products.batched(lower),
        upper=products.batched(upper),
        residual=products.batched(residual),
        u=u.to(dtype=operator.dtype, device=operator.device).reshape(*batch, k, -1),
        v=v.to(dtype=operator.dtype, device=operator.device).reshape(*batch, k, -1),
        confidence=confidence,
        status=statuses if batch else statuses[0],
        steps=steps,
        products=count,
        dtype=operator.dtype,
        seed=None,
        seconds=0.0,
    )


def _replace_members(
    result: SingularTriplets, contradicted: NDArray[np.bool_], retry: SingularTriplets
) -> SingularTriplets:
    """Return `result` with the contradicted members taken from `retry`; steps and products are added up."""
    batch = result.value.shape[:-1]

    def choose(old: Tensor, new: Tensor) -> Tensor:
        mask = torch.from_numpy(contradicted).reshape(batch).to(old.device)
        return torch.where(mask.reshape(*batch, *[1] * (old.dim() - len(batch))), new, old)

    statuses = [
        new if wrong else old for old, new, wrong in zip(result.statuses, retry.statuses, contradicted, strict=True)
    ]
    return replace(
        result,
        value=choose(result.value, retry.value),
        lower=choose(result.lower, retry.lower),
        upper=choose(result.upper, retry.upper),
        residual=choose(result.residual, retry.residual),
        u=choose(result.u, retry.u),
        v=choose(result.v, retry.v),
        status=statuses if batch else statuses[0],
        steps=result.steps + retry.steps,
        products=result.products + retry.products,
    )


def _without_upper(result: SingularTriplets, contradicted: NDArray[np.bool_]) -> SingularTriplets:
    """Return `result` with infinite upper ends where the computed ones are contradicted."""
    batch = result.value.shape[:-1]
    mask = torch.from_numpy(contradicted).reshape(batch).unsqueeze(-1)
    statuses = [CONTRADICTED if wrong else old for old, wrong in zip(result.statuses, contradicted, strict=True)]
    return replace(result, upper=result.upper.masked_fill(mask, math.inf), status=statuses if batch else statuses[0])


def _check_arguments(operator: object, k: object, solver: Solver, progress: object) -> None:
    if not isinstance(operator, LinearOperator):
        raise InputError(
            f"expected a LinearOperator, got {type(operator).__name__}; wrap a matrix in "
            "MatrixOperator, functions in FunctionOperator"
        )
    refuse_autocast(operator.device)
    wrong = []
    if operator.dtype not in (torch.float32, torch.float64):
        wrong.append(f"an operator in float32 or float64, got {operator.dtype}; cast its inputs")
    if not is_integer(k) or not 1 <= k <= min(operator.shape):
        wrong.append(f"k from 1 to {min(operator.shape)} (the smaller side), got {k!r}")
    if solver.product_dtype is not None:
        wrong.append(f"product_dtype only with a layer, got {solver.product_dtype} with an operator; leave it out")
    if progress is not None and not callable(progress):
        wrong.append(f"progress as a function of (step, lower, upper) or None, got {progress!r}")
    if wrong:
        raise InputError("expected " + "; expected ".join(wrong))
