"""Interactive latency. Tests do not assert these times, because they depend on the machine.

    help      `howsmooth --help` in its own process; baseline: `python -c pass`
    page      the report of 10,080 records in chromium, from opening it to the first chart; baseline: an empty page
    tokens    the same for two records of 8,192 tokens each, and a change of the record shown
    picture   where two equal atoms split, 400 × 400 configurations; baseline: one product of 2,048 × 2,048 matrices

The best of several runs, with the baseline measured right before or after. `benchmarks/study.py` times the engine of
studies.

    python benchmarks/latency.py [--runs 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def best(call: Callable[[], object], runs: int) -> float:
    """Return the smallest wall time of `call`, in seconds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def process(*arguments: str) -> Callable[[], object]:
    """Return a function that runs Python with these arguments."""
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def show(name: str, seconds: float, baseline: str, baseline_seconds: float) -> None:
    """Print a time and that of its baseline."""
    print(f"{name:38}{1e3 * seconds:8.0f} ms    {baseline:32}{1e3 * baseline_seconds:8.0f} ms")


def pages(runs: int) -> None:
    """Time reports in a browser."""
    from howsmooth.report.web_page import report_page
    from tests.browser import Page, browser
    from tests.report.conftest import full_record, record

    many = [
        full_record(layer, head, n, sample)
        for n in (16, 32, 64, 128, 256, 512, 1024)
        for sample in range(10)
        for layer in range(12)
        for head in range(12)
    ]
    words = [f"word{i % 89}" for i in range(8192)]
    long = [record(layer, 8192, 0, shares=[1 / 8192] * 8192, words=words) for layer in (0, 1)]
    with tempfile.TemporaryDirectory() as folder, browser() as opened:

        def written(name: str, text: str) -> str:
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            return path.as_uri()

        def opening(address: str, selector: str) -> Callable[[], object]:
            def call() -> None:
                with Page(opened) as visited:
                    visited.page.goto(address)
                    visited.page.wait_for_selector(selector, state="attached")

            return call

        empty = best(opening(written("empty.html", "<!doctype html><p>nothing</p>"), "p"), runs)
        grid = written("grid.html", report_page(many))
        show("page of 10,080 records", best(opening(grid, "#heat svg rect"), runs), "empty page", empty)
        tokens = written("tokens.html", report_page(long))
        show("page of 8,192 tokens", best(opening(tokens, ".words div"), runs), "empty page", empty)
        with Page(opened) as visited:
            visited.page.goto(tokens)
            visited.page.wait_for_selector(".words div")
            took = visited.page.evaluate("""() => new Promise((done) => { const begin = performance.now();
                const select = document.querySelector('#direction select'); select.selectedIndex = 1;
                select.dispatchEvent(new Event('change'));
                requestAnimationFrame(() => done(performance.now() - begin)); })""")
        show("another record of 8,192 tokens", took / 1e3, "empty page", empty)


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    bare = best(process("-c", "pass"), runs)
    for line in ("--help", "measure --help", "--version"):
        seconds = best(process("-m", "howsmooth", *line.split()), runs)
        show(f"howsmooth {line}", seconds, "python -c pass", bare)

    import torch

    from howsmooth.lipschitz.criterion import line_splitting_grid

    a = torch.randn(2048, 2048, dtype=torch.float64)
    seconds = best(line_splitting_grid, runs)
    show("picture of two equal atoms", seconds, "product of 2,048 × 2,048", best(lambda: a @ a, runs))
    pages(runs)


if __name__ == "__main__":
    main()
