"""What does the engine cost, beside reading the records? A study of many tiny tasks, all of them done.

The store is filled with records of one solve, with other layers, lengths and samples. Then, in one process and after
all imports, the wall-clock times of

    parse    reading every record of the store (JSON and its checksum), the unit of all other times
    resume   opening the store to write, planning every task again, and finding that none is left
    status   counting what is done, and what failed
    tables   the tables that a run prints at its end
    report   the page
    export   JSON lines, CSV and Parquet, with the growth of the peak memory of the process

    python benchmarks/engine.py [--records 20000] [--large 0]

`--large` fills a second store with so many records, and exports them and makes the page in a process of their own: its
peak memory is printed.
"""

from __future__ import annotations

import argparse
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

import howsmooth
from howsmooth.questions.spec import spec_of
from howsmooth.studies.formats import export, read_records
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import run_study
from howsmooth.studies.store import Store

LAYERS, LENGTHS = 12, (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)


@contextmanager
def timed(name: str, unit: float | None = None) -> Iterator[Callable[[], float]]:
    """Print the seconds of a block, and how many times `unit` they are."""
    began, spent = time.perf_counter(), 0.0
    yield lambda: spent
    spent = time.perf_counter() - began
    print(f"{name:8} {spent:8.2f} s" + ("" if unit is None else f"  {spent / unit:6.2f} × parse"), flush=True)


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


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--export", metavar="STORE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        export_and_report(Path(arguments.export))
        return
    from howsmooth.report.measurement_tables import Summary, study_tables
    from howsmooth.report.web_page import report_page

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.sqlite"
        plan = fill(path, arguments.records)
        with Store.read(path) as store, timed("parse") as parsing:
            count = sum(1 for _ in store.records())
        print(f"{count} records, {path.stat().st_size / 2**20:.0f} MiB")
        unit = parsing()
        with timed("resume", unit):
            run_study(plan, path)
        with Store.read(path) as store, timed("status", unit):
            store.counts(), store.failures(), store.check()
        with Store.read(path) as store, timed("tables", unit):
            study_tables(Summary(store.records()))
        with timed("report", unit):
            report_page(read_records([str(path)]).records)
        if arguments.large:
            large = Path(folder) / "large.sqlite"
            fill(large, arguments.large)
            subprocess.run([sys.executable, __file__, "--export", str(large)], check=True)


def export_and_report(path: Path) -> None:
    """Export a store in all formats and make its page; print the peak memory after each."""
    from howsmooth.report.web_page import report_page

    with Store.read(path) as store:
        for form in ("jsonl", "csv", "parquet"):
            with timed(form):
                export(store, str(path.with_suffix(f".{form}")))
            print(f"peak memory {peak():.0f} MiB")
    with timed("report"):
        report_page(read_records([str(path)]).records)
    print(f"peak memory {peak():.0f} MiB")


if __name__ == "__main__":
    main()
