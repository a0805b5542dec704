"""Which maps split mass, and how much? A search for the measure of a few atoms with the largest ratio.

    python -m experiments.splitting_search softmax --A -1 [--atoms 2] [--equal-masses] [--out splitting.jsonl]

The ratio is max_i ‖∂₁G(x_i, μ)‖ / ‖D‖ (docs/splitting.md); a measure with a ratio above 1 splits. The examples of
`howsmooth meanfield splitting-cases` were found with this script.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from experiments.gaussian_census import FIELDS
from experiments.records import Record, Records
from howsmooth.attention.fields import Field, SigmoidField
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.criterion import Criterion, criterion

ZERO_THRESHOLD = 1e-12  # ‖D‖ below this fraction of the largest ‖∂₁G‖ counts as 0
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
    """Search for the measure of `atoms` atoms with the largest ratio, by Nelder–Mead from random starts.

    Positions and, with `masses`, masses are free; `radius` is the scale of the starts. A ratio above 1 proves that the
    map splits; an unsuccessful search proves nothing.
    """
    if min(d, atoms, starts, steps) < 1:
        raise InputError(f"expected d, atoms, starts and steps of at least 1, got {d}, {atoms}, {starts} and {steps}")
    generator = torch.Generator().manual_seed(seed)

    def measure(values: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        flat = torch.as_tensor(values, dtype=torch.float64)
        weights = torch.cat([flat.new_zeros(1), flat[atoms * d :]]) if masses else flat.new_zeros(atoms)
        return flat[: atoms * d].view(atoms, d), weights

    def loss(flat: NDArray[np.float64]) -> float:
        try:
            found = criterion(g, *measure(flat))
        except (InputError, NotConverged):  # overflow in float64, or a Sinkhorn coupling that does not converge
            return math.inf
        largest = float(found.own.max())
        if not (math.isfinite(largest) and math.isfinite(found.norm)) or largest == 0:
            return math.inf
        return math.log(max(found.norm, ZERO_THRESHOLD * largest)) - math.log(largest)

    best = None
    for _ in range(starts):
        start = torch.randn(atoms * d + (atoms - 1 if masses else 0), generator=generator, dtype=torch.float64)
        start[: atoms * d] *= radius * float(torch.rand(1, generator=generator))
        run = minimize(
            loss, start.numpy(), method="Nelder-Mead", options={"maxiter": steps, "xatol": 1e-9, "fatol": 1e-12}
        )
        if best is None or run.fun < best.fun:
            best = run
        if best.fun <= math.log(ZERO_THRESHOLD):
            break
    return criterion(g, *measure(best.x))


def key_of(record: Record) -> tuple:
    """Return the settings that identify a record; KeyError for a record of another kind."""
    return tuple(record[name] for name in SETTINGS)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.splitting_search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS), help="kind of attention, in d = 1 with V = 1")
    parser.add_argument("--A", type=float, default=-1.0, help="factor of the scores A·x·y (l2: |Ax − y|²)")
    parser.add_argument("--atoms", type=int, default=2)
    parser.add_argument("--equal-masses", action="store_true", help="optimise positions only")
    parser.add_argument("--starts", type=int, default=20, help="random measures to start from")
    parser.add_argument("--steps", type=int, default=200, help="steps of Nelder–Mead for each start")
    parser.add_argument("--radius", type=float, default=4.0, help="scale of the starts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to append records to, one JSON line each")
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
    for (position,), mass in zip(record["points"], record["masses"], strict=True):
        print(f"    mass {mass:.6g} at {position:.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
