"""Screenshots of the explorer, taken by a real browser.

    python -m experiments.figures.explore [--out docs/images]

`explore-light.png` is the tab of layers with a token moved, `explore-dark.png` the growth of a layer between its
bounds, `explore-phone.png` the first again at the width of a phone. Needs playwright and a chromium ($CHROMIUM, or in
$PATH).
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.explorer import explorer, launch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def says(page: Page, where: str, words: str) -> None:
    page.wait_for_function("([id, words]) => document.getElementById(id).innerText.includes(words)", arg=[where, words])


def layers(page: Page) -> None:
    page.click("#measure-run")
    says(page, "measure-status", "Measured on")
    page.click("[data-layer='0']")
    says(page, "measure-status", "All heads")
    page.click("[data-token='24']")
    says(page, "measure-status", "was moved")


def growth(page: Page) -> None:
    page.get_by_role("tab", name="Growth").click()
    page.fill("#growth-layer input", "4")
    page.keyboard.press("Tab")
    page.click("#growth-run")
    says(page, "growth-status", "exponent")
    page.wait_for_timeout(500)  # the pictures are decoded


def take(browser: Browser, address: str, path: Path, act, *, width: int, theme: str, height: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=1 if width > 1000 else 2
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("#measure-run")
    act(page)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    from playwright.sync_api import sync_playwright

    page = explorer()
    address = launch(page, host="127.0.0.1", block=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        take(browser, address, out / "explore-light.png", layers, width=1280, height=1360, theme="light")
        take(browser, address, out / "explore-dark.png", growth, width=1280, height=1400, theme="dark")
        take(browser, address, out / "explore-phone.png", layers, width=390, height=1600, theme="light")
        browser.close()
    page.close()


if __name__ == "__main__":
    main()
