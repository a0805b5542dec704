"""Singular values by unrestarted Golub–Kahan–Lanczos, in an interval that holds with a chosen probability."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.errors import InputError, NotConverged
from howsmooth.spectral.bidiagonal import NEGLIGIBLE, Bidiagonalisation, Ritz
from howsmooth.spectral.certificate import smallest_bound, within
from howsmooth.spectral.memory import MemoryPlan, plan
from howsmooth.spectral.operator import LinearOperator, refuse_autocast
from howsmooth.spectral.products import Products, gaussian, own_generator, rayleigh_ritz
from howsmooth.spectral.result import (
    CONTRADICTED,
    CONVERGED,
    LOWER_AT_PRECISION,
    LOWER_AT_STEPS,
    LOWER_ONLY,
    PRECISION_LIMIT,
    REMEDY,
    RESIDUAL,
    STEP_LIMIT,
    UNREACHED,
    SingularTriplets,
)
from howsmooth.spectral.rounding import MOST_PROBES, PROBE_SHARE, Perturbation, Rounding, allowance, probe_count

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

STOPS = ("interval", "residual")
REDRAWS = 12  # times that a solve is made again, from another start, where what it attained proves its interval wrong
REFUTED = 1e-9  # by how much more than the upper bound
OFTEN = 40  # up to this many steps the interval is looked at after each, later at every steps/OFTEN-th


def singular_values(
    operator: LinearOperator,
    k: int = 1,
    *,
    tol: float = 1e-3,
    confidence: float = 0.999,
    stop: str = "interval",
    max_steps: int | None = None,
    max_memory: int | None = None,
    seed: int | torch.Generator = 0,
    strict: bool = True,
    progress: Callable[[int, Tensor, Tensor], None] | None = None,
) -> SingularTriplets:
    """The k largest singular values of an operator (or of each in a batch) with a certified interval.

    It stops when (upper − lower)/value ≤ tol, or with stop="residual" when ‖Jᵀu − σv‖ ≤ tol·σ. Values after
    the first count as found, too, when their upper bound falls under tol times the first. For each batch
    member all k intervals hold together with probability `confidence` over the random start. Where the
    tolerance is not reached NotConverged is raised with the partial result, or with strict=False the result
    is returned and its status says so. An operator that rounds its products to half precision, stopped on the
    residual, has no upper end (the status says "lower bound only"): its rounding is measured for stop="interval" alone.

    Where the vectors found prove the interval wrong the solve is made again from another start. Drawing again only
    then leaves the confidence as it is.

    `max_memory` is in bytes (see `plan`): vectors that do not fit are made again in a second pass.
    `progress(step, lower, upper)` is called whenever the interval has been looked at, with tensors of the
    batch's shape.

    Triplets after the first come from J (I − VVᵀ), V the right vectors found, each from a fresh random start:
    its norm bounds σ_i from above whatever V is (Courant–Fischer), and a repeated value is found as often as
    it is there. The singular values of J V bound σ_1 … σ_k from below (interlacing).

    >>> from howsmooth.spectral import MatrixOperator
    >>> found = singular_values(MatrixOperator(torch.diag(torch.tensor([3.0, 1.0, 2.0]))), k=2, tol=1e-4)
    >>> [round(x, 3) for x in found.value.tolist()], found.status
    ([3.0, 2.0], 'converged')
    """
    began = time.perf_counter()
    _refuse_wrong_arguments(operator, k, tol, confidence, stop, max_steps, max_memory, seed, progress)
    budget = plan(operator, max_memory, max_steps, k=k, tol=tol, confidence=confidence, stop=stop)
    generator, seed = own_generator(seed)
    solve = _Solve(operator, k, tol, confidence, stop, budget, generator, progress)
    result, refuted = solve.run()
    for _ in range(REDRAWS):
        if not refuted.any():
            break
        again, still = _Solve(operator, k, tol, confidence, stop, budget, generator, progress).run()
        result, refuted = _instead(result, refuted, again), refuted & still
    if refuted.any():
        result = _without_upper(result, refuted)
    result = replace(result, seed=seed, seconds=time.perf_counter() - began)
    statuses = [result.status] if isinstance(result.status, str) else result.status
    failed = [status for status in statuses if status in UNREACHED]
    if strict and failed:
        wanted, got = (
            ("relative width", result.width)
            if stop == "interval"
            else ("a relative residual of", result.residual / result.value)
        )
        raise NotConverged(
            f"expected {wanted} {tol:g}, got {got.max():.3g} after {result.steps} steps "
            f"({failed[0]}, {len(failed)} of {len(statuses)} operators); {REMEDY[failed[0]]}; "
            "the partial result is in .partial, strict=False returns it",
            result,
        )
    return result


class _Solve:
    """One call of `singular_values`: what was found so far, and what is known of rounding."""

    def __init__(
        self,
        operator: LinearOperator,
        k: int,
        tol: float,
        confidence: float,
        stop: str,
        budget: MemoryPlan,
        generator: torch.Generator,
        progress: Callable | None,
    ):
        self.operator, self.tol, self.confidence, self.stop = operator, tol, confidence, stop
        self.k, self.budget, self.progress = k, budget, progress
        self.products = Products(operator)
        self.generator = generator
        twin = operator.precise() if operator.dtype != torch.float64 else None
        self.precise = None if twin is None else Products(twin, unit=1.0)  # float32 is of no scale to need another
        rounded = operator.dtype != torch.float64 or operator.casts
        perturbed = operator.perturbed() if rounded and twin is None else None
        # What E is measured against, if there is anything.
        self.reference = self.precise if perturbed is None else Products(perturbed, unit=1.0)
        self.epsilon = torch.finfo(operator.dtype).eps
        # The final value comes out a few roundings under the Ritz value that the loop looks at. With k > 1
        # the residuals ρ of the earlier vectors couple them to the later ones: σ moves by at most √k ρ.
        self.leak = tol / (8 * math.sqrt(k))
        self.inner_tol = max((tol if k == 1 else 7 / 8 * tol) - 32 * self.epsilon, tol / 2)

        delta = 1 - confidence
        self.measures = perturbed is not None or (self.precise is not None and stop == "interval")
        self.start_delta = delta * ((1 - PROBE_SHARE) if self.measures else 1) / k
        self.probe_delta = delta * PROBE_SHARE / k
        exact = operator if twin is None else twin
        # Where the products are measured against a twin, what is left is the rounding of the recurrence itself, and
        # the twin's own.
        unmeasured = math.sqrt(budget.max_steps) * self.epsilon + allowance(exact)
        measured = self.measures and self.precise is not None
        self.rounding = Rounding(above=unmeasured if measured else allowance(operator), below=allowance(exact))

        members = self.products.members
        self.steps = 0
        self.found: list[Tensor] = []
        self.uppers: list[NDArray[np.float64]] = []
        self.largest = np.zeros(members)
        self.ran_out = np.zeros(members, dtype=bool)

    def run(self) -> tuple[SingularTriplets, NDArray[np.bool_]]:
        """The triplets, and for each member whether what it attained proves its interval wrong."""
        for _ in range(self.k):
            self.find_next()
        return self.result()

    def find_next(self) -> None:
        """Run Lanczos in the complement of the vectors found, until the next value is known well enough."""
        first = not self.found
        found = None if first else torch.stack(self.found, dim=1)
        start = gaussian(self.products, self.generator)
        process = Bidiagonalisation(self.products, start, self.budget.stored, found)
        self.rounding = replace(self.rounding, perturbation=0.0)
        probed = not self.measures
        bound = np.full(self.products.members, np.inf)
        done = np.zeros(self.products.members, dtype=bool)
        while True:
            process.step()
            q = process.steps
            if first and q == 1:
                self._refuse_underflow(process.alphas[0])
            last = q >= self.budget.max_steps
            if not (last or process.broken.all() or q % math.ceil(q / OFTEN) == 0):
                continue
            ritz = process.ritz()
            self.largest = np.maximum(self.largest, np.sqrt(ritz.top))
            if not (last or self.progress is not None or self._near(process, ritz, done)):
                continue
            bound = np.minimum(bound, self._bound(process, ritz, done))
            done = self._done(process, ritz, bound)
            if not probed and (done.all() or last):
                self._probe(process, ritz)
                probed = True
                done = self._done(process, ritz, bound)
            self._report(self.steps + q, ritz, bound)
            if done.all() or last:
                break
        self.steps += q
        self.ran_out |= ~done
        self.uppers.append(self.rounding.upper(bound, self.largest))
        self.found.append(process.vector(ritz.top_vector))

    def _refuse_underflow(self, norm: NDArray[np.float64]) -> None:
        """Refuse entries so small that they are rounded more coarsely than a dtype's unit, where none measures it."""
        norm, least = norm * self.products.unit, torch.finfo(self.operator.dtype).tiny
        small = norm[(norm > 0) & (norm < least)]
        if self.reference is None and len(small):
            raise InputError(
                f"expected products J v of norm 0 or at least {least:.3g} in {self.operator.dtype}, "
                f"got {small.min():.3g}; multiply what the operator is made of by a constant"
            )

    def _near(self, process: Bidiagonalisation, ritz: Ritz, done: NDArray[np.bool_]) -> bool:
        """Whether a member that is not done may be now: a cheap question, to be asked before the costly ones."""
        if self.found or (process.broken & ~done).any():
            return True
        ask = np.flatnonzero(~done)
        top = ritz.top[ask]
        if self.stop == "residual":
            residual = process.coupling()[ask, -1] * np.abs(ritz.last[ask, -1])
            return bool((residual <= self.inner_tol * top).any())
        ratio = np.full(len(ask), (1 + self.inner_tol) ** 2)  # the largest that would be narrow enough
        return bool(
            within(
                ratio,
                ritz.values[ask],
                ritz.last[ask],
                process.sure_coupling(ritz.top)[ask],
                self.operator.shape[1],
                self.start_delta,
                orthogonal=process.complete,
            ).any()
        )

    def _bound(self, process: Bidiagonalisation, ritz: Ritz, done: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Upper bounds on λ₁ of the operator as applied; infinite for members where none is to be had now.

        Where the process came to its end the Krylov space is invariant, and holds λ₁ up to rounding with
        probability one. Where it did not, however small β̂ is, the certificate speaks.
        """
        bound = np.where(process.broken, ritz.top * (1 + NEGLIGIBLE * self.epsilon), np.inf)
        ask = np.flatnonzero(~process.broken & ~done)
        if len(ask):
            ratio = smallest_bound(
                ritz.values[ask],
                ritz.last[ask],
                process.sure_coupling(ritz.top)[ask],
                self.operator.shape[1],
                self.start_delta,
                orthogonal=process.complete,
            )
            bound[ask] = ritz.top[ask] * ratio
        return bound

    def _done(self, process: Bidiagonalisation, ritz: Ritz, bound: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Members for which further steps are not asked for, or could not help."""
        target = self.inner_tol * np.sqrt(ritz.top)
        residual = process.coupling()[:, -1] * np.abs(ritz.last[:, -1])
        negligible = self.rounding.upper(bound, self.largest) <= self.tol * self.largest
        if self.stop == "residual":
            return process.broken | (residual <= self.inner_tol * ritz.top) | negligible
        known = np.sqrt(bound) - np.sqrt(ritz.top) <= target
        hopeless = self._width(ritz.top, ritz) > target
        narrow = (self._width(bound, ritz) <= target) | (known & hopeless)
        if len(self.found) < self.k - 1:
            # A residual left in this vector would leak into the next values' bounds, too.
            narrow &= residual <= self.leak * ritz.top
        return process.broken | narrow | negligible

    def _width(self, bound: NDArray[np.float64], ritz: Ritz) -> NDArray[np.float64]:
        return self.rounding.upper(bound, self.largest) - self.rounding.lower(np.sqrt(ritz.top), self.largest)

    def _probe(self, process: Bidiagonalisation, ritz: Ritz) -> None:
        """Measure by how much the operator as applied differs from its float64 twin or, without one, when perturbed.

        In looks that halve what is left of the failure probability: the next, with one probe more, only where the
        last leaves rounding a large part of the tolerance.
        """
        delta = self.probe_delta / 2
        self.reference.unit = self.products.unit
        perturbation = Perturbation(process, self.reference)
        for count in range(probe_count(self.tol, self.operator.roundoff, delta), MOST_PROBES + 1):
            perturbation.extend(count, self.generator)
            self.rounding = replace(self.rounding, perturbation=perturbation.bound(delta))
            if self.precise is None and not self.found:  # the first process sees the whole of E: nothing is deflated
                self.rounding = replace(self.rounding, doubt=self.rounding.perturbation)
            if (self._width(ritz.top, ritz) <= self.tol / 2 * np.sqrt(ritz.top)).all():
                break
            delta /= 2

    def _report(self, step: int, ritz: Ritz, bound: NDArray[np.float64]) -> None:
        if self.progress is not None:
            batch, unit = self.operator.batch, self.products.unit
            lower = self.rounding.lower(np.sqrt(ritz.top), self.largest) * unit
            upper = self.rounding.upper(bound, self.largest) * unit
            self.progress(step, *(torch.from_numpy(side).reshape(batch) for side in (lower, upper)))

    def result(self) -> tuple[SingularTriplets, NDArray[np.bool_]]:
        """Evaluate the vectors found, in float64 where it can be had, and put the interval around them."""
        exact = self.precise if self.precise is not None else self.products
        value, residual, u, v = rayleigh_ritz(exact, self.found, back=self.products)
        largest = value[:, :1]
        lower = self.rounding.lower(value.T, value[:, 0]).T
        bounds = np.minimum.accumulate(np.stack(self.uppers, axis=1), axis=1)  # σ_i ≤ σ_{i−1}: earlier ones serve, too
        upper = np.maximum(bounds, value)  # rounding may not turn the interval around
        # A start that misses the vector it is after, as one in 1/δ may, can leave its bound below what is attained:
        # value_i ≤ σ_i, and ‖Jᵀu_1‖² = value_1² + residual_1² ≤ σ_1².
        attained = value.copy()
        attained[:, 0] = np.hypot(value[:, 0], residual[:, 0])
        attained *= 1 - self.rounding.above - self.rounding.below
        slack = np.asarray(self.rounding.perturbation).reshape(-1, 1)
        refuted = (attained**2 - slack > bounds**2 * (1 + REFUTED)).any(axis=1)
        # Products rounded further than the vectors, by an amount that nobody measured, bound nothing from above.
        unmeasured = self.operator.roundoff > self.epsilon and not self.measures
        if unmeasured:
            upper = np.full_like(upper, np.inf)

        batch = self.operator.batch
        narrow = ((upper - lower <= self.tol * value) | (upper <= self.tol * largest)).all(axis=1)
        if self.stop == "residual":
            small = ((residual <= self.tol * value) | (upper <= self.tol * largest)).all(axis=1)
            fine, at_steps, at_precision = (
                (LOWER_ONLY, LOWER_AT_STEPS, LOWER_AT_PRECISION)
                if unmeasured
                else (RESIDUAL, STEP_LIMIT, PRECISION_LIMIT)
            )
            names = np.where(small, fine, np.where(self.ran_out, at_steps, at_precision))
        else:
            names = np.where(narrow, CONVERGED, np.where(self.ran_out, STEP_LIMIT, PRECISION_LIMIT))
        unit = self.products.unit[:, None]
        back = {"dtype": self.operator.dtype, "device": self.operator.device}
        found = SingularTriplets(
            *(torch.from_numpy(x * unit).reshape(*batch, self.k) for x in (value, lower, upper, residual)),
            u=u.to(**back).reshape(*batch, self.k, -1),
            v=v.to(**back).reshape(*batch, self.k, -1),
            confidence=self.confidence,
            status=[str(name) for name in names] if batch else str(names[0]),
            steps=self.steps,
            products=self.products.count + (0 if self.reference is None else self.reference.count),
            dtype=self.operator.dtype,
            seed=None,
            seconds=0.0,
        )
        return found, refuted


def _instead(result: SingularTriplets, refuted: NDArray[np.bool_], again: SingularTriplets) -> SingularTriplets:
    """The result with what was found again for the members that were refuted; the work of both is counted."""
    batch = result.value.shape[:-1]

    def choose(old: Tensor, new: Tensor) -> Tensor:
        mask = torch.from_numpy(refuted).reshape(batch).to(old.device)
        return torch.where(mask.reshape(*batch, *[1] * (old.dim() - len(batch))), new, old)

    names = ("value", "lower", "upper", "residual", "u", "v")
    status = (
        again.status
        if isinstance(result.status, str)
        else [new if wrong else old for old, new, wrong in zip(result.status, again.status, refuted, strict=True)]
    )
    return replace(
        result,
        **{name: choose(getattr(result, name), getattr(again, name)) for name in names},
        status=status,
        steps=result.steps + again.steps,
        products=result.products + again.products,
    )


def _without_upper(result: SingularTriplets, refuted: NDArray[np.bool_]) -> SingularTriplets:
    """The result without the upper ends that are known to be wrong."""
    mask = torch.from_numpy(refuted).reshape(result.value.shape[:-1]).unsqueeze(-1)
    status = (
        CONTRADICTED
        if isinstance(result.status, str)
        else [CONTRADICTED if wrong else old for old, wrong in zip(result.status, refuted, strict=True)]
    )
    return replace(result, upper=result.upper.masked_fill(mask, math.inf), status=status)


def _refuse_wrong_arguments(operator, k, tol, confidence, stop, max_steps, max_memory, seed, progress):
    if not isinstance(operator, LinearOperator):
        raise InputError(
            f"expected a LinearOperator, got {type(operator).__name__}; wrap a matrix in "
            "MatrixOperator, functions in FunctionOperator"
        )
    refuse_autocast(operator.device)

    def whole(x):
        return isinstance(x, int) and not isinstance(x, bool)

    def real(x):
        return isinstance(x, (int, float)) and not isinstance(x, bool)

    wrong = []
    if operator.dtype not in (torch.float32, torch.float64):
        wrong.append(f"an operator in float32 or float64, got {operator.dtype}; cast what it is made of")
    if not whole(k) or not 1 <= k <= min(operator.shape):
        wrong.append(f"k from 1 to {min(operator.shape)} (the smaller side), got {k!r}")
    if not real(tol) or not 0 < tol < 1:
        wrong.append(f"tol between 0 and 1, got {tol!r}")
    if not real(confidence) or not 0 < confidence < 1:
        wrong.append(f"confidence between 0 and 1, got {confidence!r}")
    if stop not in STOPS:
        wrong.append(f"stop as one of {', '.join(STOPS)}, got {stop!r}")
    for name, number in (("max_steps", max_steps), ("max_memory", max_memory)):
        if number is not None and (not whole(number) or number < 1):
            wrong.append(f"{name} as a positive whole number or None, got {number!r}")
    if not isinstance(seed, torch.Generator) and (not whole(seed) or not 0 <= seed < 2**63):
        wrong.append(f"seed as a whole number from 0 or a torch.Generator, got {seed!r}")
    if progress is not None and not callable(progress):
        wrong.append(f"progress as a function of (step, lower, upper) or None, got {progress!r}")
    if wrong:
        raise InputError("expected " + "; expected ".join(wrong))
