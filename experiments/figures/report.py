"""Screenshots for docs/report.md: the report of MiniLM on the embedded text, light, dark and on a phone.

    python -m experiments.figures.report [FOLDER]

The records, about two minutes of one core, are kept in FOLDER and reused. Needs playwright and chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.browser import Page, browser

RUNS = {
    "layers": "measure minilm --lengths 32,64,128,256,512 --samples 3",
    "heads": "measure minilm --heads all --lengths 64,256 --samples 1",
    "bounds": "bound minilm --layers 0,2,5 --lengths 32,128,512",
}
SHOTS = {"light": {"height": 1500}, "dark": {"height": 1180, "theme": "dark"}, "phone": {"width": 390, "height": 844}}


def howsmooth(*arguments: str) -> None:
    """Run a command of howsmooth."""
    subprocess.run([sys.executable, "-m", "howsmooth", *arguments], check=True, stdout=subprocess.DEVNULL)


def main(folder: Path) -> None:
    """Make the report in a folder and take the screenshots."""
    for name, line in RUNS.items():
        if not (folder / f"{name}.jsonl").is_file():
            howsmooth(*line.split(), "--json", str(folder / f"{name}.jsonl"))
    page = folder / "report.html"
    howsmooth("report", *(str(folder / f"{name}.jsonl") for name in RUNS), "-o", str(page))
    with browser() as opened:
        for name, options in SHOTS.items():
            with Page(opened, **options) as shown:
                shown.page.goto(page.as_uri())
                shown.page.wait_for_selector("#measure svg")
                if name == "dark":  # the tokens of the worst direction of layer 0, the last that is listed
                    shown.page.locator(".directions:visible option").last.evaluate("option => option.selected = true")
                    shown.page.locator(".directions:visible select").dispatch_event("change")
                part = shown.page.locator(".directions:visible" if name == "dark" else "#measure").first
                part.evaluate("element => element.scrollIntoView()")
                shown.page.wait_for_timeout(300)
                shown.page.screenshot(path=f"docs/images/report-{name}.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
