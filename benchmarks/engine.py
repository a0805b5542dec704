"""What does the engine cost, beside reading the records? A study of many tiny tasks, all of them done.

The store is filled with records of one solve, with other layers, lengths and samples. Then, in one process, after all
imports and a page of some records, the processor times of

    parse    reading every record of the store: SQLite, JSON and checksum, each record dropped at once; the unit
    resume   opening the store to write, planning every task again, and finding that none is left
    status   counting what is done and what failed, and checking that no record was changed
    tables   the tables that a run prints at its end, with the laws
    report   reading the store for a page, with the validation of each record, and the page

    python benchmarks/engine.py [--records 20000] [--large 0]

`--large` fills a second store with so many records. Each export, and the page of the store and of each file that can be
read back, is made in a process of its own, whose peak memory is printed.
"""

from __future__ import annotations

import argparse
import io
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

import howsmooth
from howsmooth import fits
from howsmooth.cli.progress import print_tables
from howsmooth.questions.spec import spec_of
from howsmooth.report.web_page import report_page
from howsmooth.studies.formats import export, read_records
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import run_study
from howsmooth.studies.store import Store

LAYERS, LENGTHS = 12, (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)


@contextmanager
def timed(name: str, unit: float | None = None) -> Iterator[Callable[[], float]]:
    """Print the seconds of a block, and how many times `unit` they are."""
    began, spent = time.process_time(), 0.0
    yield lambda: spent
    spent = time.process_time() - began
    print(f"{name:8} {spent:8.3f} s" + ("" if unit is None else f"  {spent / unit:6.2f} × parse"), flush=True)


def fill(path: Path, count: int) -> Any:
    """Fill a store with the records of a study of about `count` tasks, and return its plan."""
    samples = max(1, count // (LAYERS * len(LENGTHS)))
    spec = spec_of(
        {
            "models": "random:bert",
            "inputs": "ids",
            "layers": list(range(LAYERS)),
            "lengths": list(LENGTHS),
            "samples": samples,
            "engine": {"workers": 0},
        }
    )
    model = howsmooth.measure("minilm", layers=[0], lengths=[64], samples=1)[0]
    plan = prepare(spec, timed=False)
    with Store.write(path) as store:
        store.plan(plan.description, plan.tasks())
        for bundle in plan.bundles():
            n = bundle.samples.n
            store.add(
                (
                    place.key,
                    {
                        **model,
                        "task": place.key,
                        "layer": place.at["layer"],
                        "sample": place.at["sample"],
                        "n": n,
                        "value": (1 + place.at["layer"]) * n**0.3 * (1 + 0.01 * math.sin(n + place.at["sample"])),
                        "words": None,
                        "shares": None,
                    },
                    None,
                )
                for place in bundle.places
            )
    return plan


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_memory(arguments.one[0], Path(arguments.one[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        small, path, large = (Path(folder) / f"{name}.sqlite" for name in ("small", "many", "large"))
        fill(small, LAYERS * len(LENGTHS))
        report_page(read_records([str(small)]).records)
        measure_times(fill(path, arguments.records), path)
        if arguments.large:
            fill(large, arguments.large)
            print(f"{arguments.large} records, {large.stat().st_size / 2**20:.0f} MiB")
            for what, file in (
                *((form, large) for form in ("jsonl", "csv", "parquet")),
                *(("report", large.with_suffix(ending)) for ending in (".sqlite", ".jsonl", ".parquet")),
            ):
                subprocess.run([sys.executable, __file__, "--one", what, str(file)], check=True)


def measure_times(plan: Any, path: Path) -> None:
    """Print the times of a store that is complete."""
    with Store.read(path) as store, timed("parse") as parsing:
        count = sum(1 for _ in store.records())
    print(f"{count} records, {path.stat().st_size / 2**20:.0f} MiB")
    unit = parsing()
    with timed("resume", unit):
        run_study(plan, path)
    with timed("status", unit), Store.read(path) as store:
        store.check(), store.counts(), store.failures()
    with Store.read(path) as store, timed("tables", unit):
        print_tables(store, Console(file=io.StringIO(), width=80))
    fits._law.cache_clear()  # a command of its own fits them again
    with timed("report", unit):
        report_page(read_records([str(path)]).records)


def measure_memory(what: str, path: Path) -> None:
    """Export a store, or make the page of a file; print the time, and the peak memory of this process."""
    with timed(what):
        if what == "report":
            report_page(read_records([str(path)]).records)
        else:
            with Store.read(path) as store:
                export(store, str(path.with_suffix(f".{what}")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.2f} GiB, of {path.suffix}", flush=True)


if __name__ == "__main__":
    main()
