"""Which maps split mass, and how much? A search for the measure of a few atoms with the largest ratio.

    python -m experiments.splitting_search softmax --A -1 [--atoms 2] [--equal-masses] [--out splitting.jsonl]

The ratio is max_i ‖∂₁G(x_i, μ)‖ / ‖D‖ (docs/splitting.md); a measure splits above 1. The examples of
`howsmooth meanfield splitting --which` were found in this way.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from scipy.optimize import minimize
from torch import Tensor

from experiments.gaussian_census import FIELDS
from experiments.records import Record, Records
from howsmooth.attention.fields import Field, SigmoidField
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.criterion import Criterion, criterion

ZERO = 1e-12  # ‖D‖ below this part of the largest ‖∂₁G‖ counts as none
KINDS: dict[str, Callable[[Tensor, Tensor], Field]] = {**FIELDS, "sigmoid": SigmoidField}
SETTINGS = ("kind", "A", "atoms", "equal_masses", "starts", "steps", "radius", "seed")


def search(
    g: Callable,
    d: int,
    atoms: int,
    *,
    starts: int = 20,
    steps: int = 200,
    radius: float = 4.0,
    masses: bool = True,
    seed: int = 0,
) -> Criterion:
    """The measure of so many atoms with the largest ratio that Nelder–Mead finds from random starts.

    Positions, and masses if asked, move freely; `radius` is the size of the starts. A search shows that a map splits;
    that it finds nothing shows nothing.
    """
    if min(d, atoms, starts, steps) < 1:
        raise InputError(f"expected d, atoms, starts and steps of at least 1, got {d}, {atoms}, {starts} and {steps}")
    generator = torch.Generator().manual_seed(seed)

    def measure(flat) -> tuple[Tensor, Tensor]:
        flat = torch.as_tensor(flat, dtype=torch.float64)
        weights = torch.cat([flat.new_zeros(1), flat[atoms * d :]]) if masses else flat.new_zeros(atoms)
        return flat[: atoms * d].view(atoms, d), weights

    def loss(flat) -> float:
        try:
            found = criterion(g, *measure(flat))
        except (InputError, NotConverged):  # too far out for doubles, or a coupling that takes too long
            return math.inf
        largest = float(found.own.max())
        if not (math.isfinite(largest) and math.isfinite(found.norm)) or largest == 0:
            return math.inf
        return math.log(max(found.norm, ZERO * largest)) - math.log(largest)

    best = None
    for _ in range(starts):
        start = torch.randn(atoms * d + (atoms - 1 if masses else 0), generator=generator, dtype=torch.float64)
        start[: atoms * d] *= radius * float(torch.rand(1, generator=generator))
        run = minimize(
            loss, start.numpy(), method="Nelder-Mead", options={"maxiter": steps, "xatol": 1e-9, "fatol": 1e-12}
        )
        if best is None or run.fun < best.fun:
            best = run
        if best.fun <= math.log(ZERO):
            break
    return criterion(g, *measure(best.x))


def key_of(record: Record) -> tuple:
    """What tells records apart; KeyError for a record of something else."""
    return tuple(record[name] for name in SETTINGS)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.splitting_search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS), help="of attention, on the line and with V = 1")
    parser.add_argument("--A", type=float, default=-1.0, help="of the scores A·x·y (l2: |Ax − y|²)")
    parser.add_argument("--atoms", type=int, default=2)
    parser.add_argument("--equal-masses", action="store_true", help="only positions move")
    parser.add_argument("--starts", type=int, default=20, help="random measures to start from")
    parser.add_argument("--steps", type=int, default=200, help="of Nelder–Mead for each start")
    parser.add_argument("--radius", type=float, default=4.0, help="size of the starts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="records to add to, one JSON line each")
    chosen = parser.parse_args(given)
    where = {name: getattr(chosen, name) for name in SETTINGS}
    one = torch.ones(1, 1, dtype=torch.float64)
    try:
        saved = None if chosen.out is None else Records(chosen.out, key_of, "records of searches", '{"kind": ')
        record = None if saved is None else saved.done.get(key_of(where))
        if record is None:
            found = search(
                KINDS[chosen.kind](chosen.A * one, one),
                1,
                chosen.atoms,
                starts=chosen.starts,
                steps=chosen.steps,
                radius=chosen.radius,
                masses=not chosen.equal_masses,
                seed=chosen.seed,
            )
            record = {**where, **found.as_record()}
            if saved is not None:
                saved.append(record)
    except InputError as error:
        parser.error(str(error))
    print(f"ratio {record['ratio']:.6g}" + ("" if record["ratio"] > 1 else ", which does not split"))
    for (place,), mass in zip(record["points"], record["masses"], strict=True):
        print(f"    mass {mass:.6g} at {place:.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
