"""Up to which a is the published masked bound (1 + 3a)e^{2a} exceeded in d₂?

    python -m experiments.masked_threshold [--atoms 400000] [--out docs/images/masked_threshold.jsonl]

One head in d = 1 with A = −a and V = 1, tokens in [−1, 1]. Atoms have masses rⁱ, and x_i = ±1 changes its sign after
every B atoms. Records of four kinds, as JSON lines; those in the file are not computed again:

    limit       the norm for infinitely many atoms, at the best half-period log rᴮ (docs/mean_field.md)
    threshold   the a at which this norm equals (1 + 3a)e^{2a}, and the a from which the proved bound is smaller
    free        ascent over all tokens of one period in [−1, 1], from random ones: does another pattern reach more?
    atoms       a measure with finitely many atoms: its norm with a certified interval, by Lanczos on O(m) products

The constant cannot decrease as a grows: a smaller ball is a part of a larger one, and only a = ‖A‖R² matters. So a
certified value v at a shows that the bound is false from a up to the a' with (1 + 3a')e^{2a'} = v: `false_up_to`. The
records of kind "atoms" are at the ends of these intervals: together they cover everything from 0 to the last one.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from experiments.records import Record, Records
from howsmooth.bounds import mean_field
from howsmooth.bounds.alternating import alternating_matrix, periodic_matrix
from howsmooth.errors import InputError
from howsmooth.lipschitz.regimes import unit_layer
from howsmooth.spectral import LinearOperator, singular_values

SIZES = (0.05, 0.1, 0.15, 0.16, 0.17, 0.175, 0.18, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
LIMIT_BLOCKS = (128, 256)  # atoms per sign, whose norms are extrapolated to infinitely many
TOL, CONFIDENCE = 1e-3, 0.999
SMALL = ((0.16, 400, 1.15, 40), (0.17, 900, 1.05, 115), (0.175, 1800, 1.03, 189))  # a, atoms, r, B


class AlternatingAtoms(LinearOperator):
    """The derivative at m atoms of masses rⁱ with signs that change after every `block` atoms, in L²(μ).

    As x = ±1, attention depends on the signs alone: every product is two prefix sums, O(m) time and memory.

    Args:
        a: A = −a.
        atoms: Number m of atoms.
        ratio: Ratio r of successive masses.
        block: Number of successive atoms with one sign.
    """

    def __init__(self, a: float, atoms: int, ratio: float, block: int):
        """Compute the total attention, mean and variance of each atom."""
        if atoms < 1 or block < 1 or not ratio >= 1:
            raise InputError(f"expected atoms and block ≥ 1 and r ≥ 1, got {atoms}, {block} and {ratio}")
        log_mass = torch.arange(atoms, dtype=torch.float64) * math.log(ratio)
        if float(log_mass[-1]) > 1300:
            raise InputError(f"expected masses within e^1300, got r^m = e^{float(log_mass[-1]):.0f}; take fewer atoms")
        super().__init__((atoms, atoms), dtype=torch.float64, device=torch.device("cpu"))
        self.root = ((log_mass - log_mass[-1] / 2) / 2).exp()  # √a_i up to a factor
        self.sign = torch.where(torch.arange(atoms) // block % 2 == 0, 1.0, -1.0).double()
        plus = (self.root.square() * (self.sign > 0)).cumsum(0)
        minus = (self.root.square() * (self.sign < 0)).cumsum(0)
        # Weights of keys with sign + and − in the row of each atom, divided by their sum.
        self.to_plus, self.to_minus = (torch.exp(-a * s * self.sign) for s in (1.0, -1.0))
        total = self.to_plus * plus + self.to_minus * minus
        self.to_plus, self.to_minus = self.to_plus / total, self.to_minus / total
        mean = self.to_plus * plus - self.to_minus * minus
        self.diagonal = -a * (1 - mean.square())
        # P_ij + T_ij = to_± · a_j (1 − a σ_i (σ_j − m_i))
        self.to_plus = self.to_plus * (1 - a * self.sign * (1 - mean)) * self.root
        self.to_minus = self.to_minus * (1 - a * self.sign * (-1 - mean)) * self.root

    def matvec(self, v: Tensor) -> Tensor:
        """Return J v."""
        keys = self.root * v
        plus, minus = (torch.where(self.sign == s, keys, 0.0).cumsum(-1) for s in (1.0, -1.0))
        return self.to_plus * plus + self.to_minus * minus + self.diagonal * v

    def rmatvec(self, u: Tensor) -> Tensor:
        """Return Jᵀ u."""
        plus, minus = ((row * u).flip(-1).cumsum(-1).flip(-1) for row in (self.to_plus, self.to_minus))
        return self.root * torch.where(self.sign > 0, plus, minus) + self.diagonal * u


def stated(a: float) -> float:
    """Return the published bound (1 + 3a)e^{2a}."""
    return (1 + 3 * a) * math.exp(2 * a)


def exceeded_up_to(value: float) -> float:
    """Return the a with (1 + 3a)e^{2a} = value ≥ 1."""
    return float(brentq(lambda a: stated(a) - value, 0.0, math.log(value) + 1e-9, xtol=1e-13))


def limit_norm(a: float, half_period: float) -> float:
    """Return the norm of the alternating pattern with infinitely many atoms per period.

    With B atoms per sign the norm is short of it by c₁/B + O(1/B²), which two values of B remove.
    """
    first, second = (
        float(torch.linalg.matrix_norm(alternating_matrix(a, 2.0, half_period, block), 2)) for block in LIMIT_BLOCKS
    )
    return 2 * second - first


def best_half_period(a: float) -> tuple[float, float]:
    """Return the half-period with the largest limit, and the limit."""
    found = minimize_scalar(lambda t: -limit_norm(a, t), bounds=(3.0, 12.0), method="bounded", options={"xatol": 1e-3})
    return float(found.x), -float(found.fun)


def certify(a: float, atoms: int, ratio: float, block: int) -> Record:
    """Return the record of a measure: its norm, with the interval of the solver, and what follows from it."""
    found = singular_values(
        AlternatingAtoms(a, atoms, ratio, block), tol=TOL, confidence=CONFIDENCE, max_steps=2000, strict=False
    )
    lower = float(found.lower[0])
    return {
        "kind": "atoms",
        "a": a,
        "atoms": atoms,
        "ratio": ratio,
        "block": block,
        "value": float(found.value[0]),
        "lower": lower,
        "upper": float(found.upper[0]),
        "confidence": found.confidence,
        "status": found.status,
        "steps": found.steps,
        "stated": stated(a),
        "exceeds": lower > stated(a),
        "false_up_to": exceeded_up_to(lower),
    }


def pattern(half_period: float, atoms: int, log_time: float) -> tuple[float, int]:
    """Return r and B for so many atoms over a given log-time, with a sign change after every `half_period`."""
    step = log_time / atoms
    return math.exp(step), max(1, round(half_period / step))


def limit_record(a: float) -> Record:
    """Return the record of infinitely many atoms at one a."""
    half_period, value = best_half_period(a)
    return {
        "kind": "limit",
        "a": a,
        "half_period": half_period,
        "value": value,
        "stated": stated(a),
        "proved": mean_field.masked(unit_layer("negative", a), 2, 1.0).value,
        "exceeds": value > stated(a),
    }


def threshold_record() -> Record:
    """Return where the limit meets the published bound, and where the proved bound does."""
    a = float(brentq(lambda a: best_half_period(a)[1] - stated(a), 0.155, 0.25, xtol=1e-6))
    half_period, value = best_half_period(a)
    true_from = brentq(lambda a: mean_field.masked(unit_layer("negative", a), 2, 1.0).value - stated(a), 0.2, 1.0)
    return {
        "kind": "threshold",
        "a": a,
        "half_period": half_period,
        "value": value,
        "equal_tokens": exceeded_up_to(2.0),
        "true_from": float(true_from),
    }


def free_record(a: float, seed: int, atoms: int = 64, steps: int = 300) -> Record:
    """Return where ascent over the tokens of a period ends, from random tokens.

    The period is 1, 1½ or 2 times that of the alternating pattern, with `atoms` atoms in one of the latter. (More atoms
    in the same time have a larger norm, so a free period would shrink instead of forming a pattern.)
    """
    generator = torch.Generator().manual_seed(seed)
    half_period, factor = best_half_period(a)[0], (1.0, 1.5, 2.0)[seed % 3]
    period = 2 * half_period * factor
    tokens = torch.randn(round(factor * atoms), generator=generator, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.Adam([tokens], lr=0.1, maximize=True)
    best, pattern = 0.0, tokens.detach()
    for _ in range(steps):
        ascent.zero_grad()
        x = torch.tanh(tokens)
        value = torch.linalg.matrix_norm(periodic_matrix(x, a, 2.0, period), 2)
        if value.item() > best:
            best, pattern = value.item(), x.detach()
        value.backward()
        ascent.step()
    signs = pattern.sign()
    alternating = torch.linalg.matrix_norm(alternating_matrix(a, 2.0, half_period, atoms // 2), 2)
    return {
        "kind": "free",
        "a": a,
        "seed": seed,
        "atoms": atoms,
        "value": best,
        "alternating": float(alternating),
        "period": period,
        "sign_changes": int((signs != signs.roll(1)).sum()),
        "positive": float((signs > 0).double().mean()),
        "least_size": float(pattern.abs().min()),
    }


def key_of(record: Record) -> tuple:
    """Return what identifies a record; KeyError for a record of another kind."""
    if record["kind"] == "atoms":
        return "atoms", round(record["a"], 9), record["atoms"], round(record["ratio"], 9), record["block"]
    if record["kind"] == "free":
        return "free", round(record["a"], 9), record["seed"], record["atoms"]
    return record["kind"], None if record["kind"] == "threshold" else round(record["a"], 9)


def run(
    saved: Records, sizes: Sequence[float], atoms: int, log_time: float, links: int, seeds: int
) -> Iterator[Record]:
    """Yield all records; those that are saved already are not computed again."""

    def once(key: tuple, compute: Callable[[], Record]) -> Record:
        if key not in saved.done:
            saved.done[key] = compute()
            saved.append(saved.done[key])
        return saved.done[key]

    for a in sizes:
        yield once(("limit", round(a, 9)), lambda a=a: limit_record(a))  # type: ignore[misc]
    yield once(("threshold", None), threshold_record)
    for seed in range(seeds):
        yield once(("free", 0.18, seed, 64), lambda seed=seed: free_record(0.18, seed))  # type: ignore[misc]
    for measure in SMALL:
        yield once(("atoms", *measure), lambda measure=measure: certify(*measure))  # type: ignore[misc]
    a = exceeded_up_to(2.0)
    for _ in range(links):
        # Rounded down, so that the intervals overlap.
        a = math.floor(a * 1e6) / 1e6
        ratio, block = pattern(best_half_period(a)[0], atoms, log_time)
        measure = (a, atoms, ratio, block)
        key = ("atoms", round(a, 9), atoms, round(ratio, 9), block)
        record = once(key, lambda measure=measure: certify(*measure))  # type: ignore[misc]
        yield record
        a = record["false_up_to"]


def sentence(record: Record) -> str:
    """Describe a record in one line."""
    if record["kind"] == "threshold":
        return (
            f"(1 + 3a)e^(2a) is exceeded up to a = {record['a']:.5f} (equal tokens: {record['equal_tokens']:.5f}), "
            f"and proved from a = {record['true_from']:.5f} on"
        )
    if record["kind"] == "free":
        return (
            f"a = {record['a']:g}, ascent from seed {record['seed']}: {record['value']:.5f} with "
            f"{record['sign_changes']} sign changes in a period of {record['period']:.2f}, |x| ≥ "
            f"{record['least_size']:.2f}; alternating: {record['alternating']:.5f}"
        )
    what = "limit" if record["kind"] == "limit" else f"{record['atoms']} atoms"
    return (
        f"a = {record['a']:.6f}, {what}: {record.get('lower', record['value']):.5f} "
        f"{'>' if record['exceeds'] else '≤'} {record['stated']:.5f}"
        + (f", so false up to {record['false_up_to']:.6f}" if record["exceeds"] and "false_up_to" in record else "")
    )


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.masked_threshold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--atoms", type=int, default=400_000, help="atoms of the certified measures")
    parser.add_argument("--log-time", type=float, default=500.0, help="logarithm of the ratio of the extreme masses")
    parser.add_argument("--links", type=int, default=5, help="number of certified measures, each where the last ends")
    parser.add_argument("--seeds", type=int, default=6, help="number of random patterns to start ascent from")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES, help="values of a for the limit")
    parser.add_argument("--out", type=Path, default=Path("docs/images/masked_threshold.jsonl"))
    chosen = parser.parse_args(given)
    try:
        saved = Records(chosen.out, key_of, "records of masked thresholds", '{"kind": ')
        for record in run(saved, chosen.sizes, chosen.atoms, chosen.log_time, chosen.links, chosen.seeds):
            print(sentence(record), flush=True)
    except InputError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
