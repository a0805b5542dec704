"""Run the tests under disturbances (load, thread counts, instruction sets, random order).

    make test-stress                                     the whole suite under each entry of RUNS
    make test-stress STRESS="busy threads-8+shuffled"    under these
    make test-stress TESTS=tests/cli                     a part of it
    make test-random SEEDS=20                            the tests that draw at random, 20 times (else 100)
    python -m tests.stress --list

Disturbances are combined by "+". Each run prints its disturbances and the seed of a random order; the last lines list
the results. The exit status is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARALLEL = ("-n", "logical", "--maxprocesses", "8", "--dist", "worksteal")


@dataclass(frozen=True)
class Disturbance:
    """What is different in a run of the tests."""

    what: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    niceness: int = 0
    busy: bool = False


PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}  # with more threads than cores, active waiting would block the others
DISTURBANCES = {
    "threads-1": Disturbance("one thread", {"OMP_NUM_THREADS": "1"}),
    "threads-2": Disturbance("two threads in every process", {"OMP_NUM_THREADS": "2", **PASSIVE}),
    "threads-8": Disturbance("eight threads in every process", {"OMP_NUM_THREADS": "8", **PASSIVE}),
    "avx2": Disturbance(
        "nothing newer than AVX2",
        {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"},
    ),
    "no-avx": Disturbance(
        "no AVX",
        {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"},
    ),
    "busy": Disturbance("a busy loop on every core", busy=True),
    "shuffled": Disturbance("tests in random order", options=("-p", "randomly")),
    "nice": Disturbance(
        "lowest priority", niceness=19
    ),  # not combined with busy: it would get one seventieth of the time
    "serial": Disturbance("all tests in one process", options=("-n", "0")),
}
RUNS = (
    "threads-1",
    "threads-2",
    "threads-8",
    "avx2",
    "no-avx",
    "shuffled",
    "busy",
    "nice+shuffled",
    "nice+no-avx",
    "threads-2+avx2+shuffled",
)


def parse_run(name: str) -> list[Disturbance]:
    """Return the disturbances of a run, whose names are combined by "+"."""
    parts = name.split("+")
    unknown = [part for part in parts if part not in DISTURBANCES]
    if unknown:
        raise SystemExit(f"expected disturbances among {', '.join(DISTURBANCES)}, got {unknown[0]!r}; join them by +")
    return [DISTURBANCES[part] for part in parts]


@contextmanager
def busy_loops(count: int) -> Iterator[list[subprocess.Popen]]:
    """Run `count` processes with a busy loop inside the context."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(name: str, tests: Sequence[str], seed: int, drawn: int | None = None) -> int:
    """Run pytest under the disturbances of `name`, with the seed `drawn` of what tests draw; return its exit status."""
    chosen = parse_run(name)
    environment = dict(os.environ) | ({} if drawn is None else {"HOWSMOOTH_SEED": str(drawn)})
    options = [*PARALLEL]
    for disturbance in chosen:
        environment |= disturbance.environment
        options += disturbance.options
    if "randomly" in options:
        options.append(f"--randomly-seed={seed}")
    niceness = max(disturbance.niceness for disturbance in chosen)
    command = [sys.executable, "-m", "pytest", "-q", *options, *tests]
    if niceness:
        command = ["nice", "-n", str(niceness), *command]
    print(
        f"== {name}: {', '.join(disturbance.what for disturbance in chosen)}"
        + (f"; seed {seed}" if "randomly" in options else "")
        + ("" if drawn is None else f"; HOWSMOOTH_SEED={drawn}"),
        flush=True,
    )
    with busy_loops((os.cpu_count() or 1) if any(disturbance.busy for disturbance in chosen) else 0):
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=" ".join(RUNS), help="disturbances, joined by +, with spaces between")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the random order")
    parser.add_argument("--seeds", type=int, default=0, help="repeat each run with so many seeds of what tests draw")
    parser.add_argument("--list", action="store_true", help="show the disturbances and the runs")
    parser.add_argument("tests", nargs="*", help="arguments of pytest: paths, -kNAME, -mMARK (without a space)")
    options, more = parser.parse_known_args(arguments)
    if options.list:
        for name, disturbance in DISTURBANCES.items():
            print(f"{name:12}{disturbance.what}")
        print("runs:", *RUNS)
        return 0
    names = options.runs.split()
    for name in names:
        parse_run(name)  # checked before the first run
    results = []
    for i, (name, drawn) in enumerate(product(names, range(1, options.seeds + 1) if options.seeds else (None,))):
        began = time.monotonic()
        status = run(name, [*options.tests, *more], (options.seed + i) % 2**32, drawn)
        label = name if drawn is None else f"{name}, HOWSMOOTH_SEED={drawn}"
        results.append((label, status, time.monotonic() - began))
    print("== summary")
    for name, status, seconds in results:
        print(f"{'passed' if status == 0 else f'FAILED (pytest ended with {status})'}  {name}  {seconds / 60:.1f} min")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    sys.exit(main())
