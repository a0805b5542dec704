"""Screenshots of the explorer, taken by a real browser.

    python -m experiments.figures.explore [--out docs/images]

`explore-light.png` shows the tab of layers, the text in its two colourings and a token moved, `explore-dark.png` the
growth of a layer between its bounds, `explore-phone.png` the first tab at the width of a phone. Needs playwright and a
chromium ($CHROMIUM, or in $PATH).
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.explorer import explorer, launch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def wait_for_text(page: Page, where: str, words: str) -> None:
    """Wait until the element `where` contains the words."""
    page.wait_for_function("([id, words]) => document.getElementById(id).innerText.includes(words)", arg=[where, words])


def layers(page: Page) -> None:
    """Measure the layers, then move a token."""
    page.click("#measure-run")
    wait_for_text(page, "measure-status", "Measured on")
    page.click("[data-layer='0']")
    wait_for_text(page, "measure-status", "All heads")
    page.click("[data-place='0-27']")
    wait_for_text(page, "measure-status", "was moved")


def growth(page: Page) -> None:
    """Show the growth of a layer."""
    page.get_by_role("tab", name="Growth").click()
    page.get_by_label("Layer", exact=True).fill("4")
    page.keyboard.press("Tab")
    page.click("#bound-run")
    wait_for_text(page, "bound-status", "theory allows")
    page.wait_for_timeout(500)  # until the images are decoded


def take_screenshot(
    browser: Browser, address: str, path: Path, act: Callable[[Page], None], *, width: int, theme: str, height: int
) -> None:
    """Open the explorer, perform the actions and save a screenshot."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=1 if width > 1000 else 2
    )
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.goto(address)
    page.wait_for_selector("#measure-run")
    act(page)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)
    context.close()


def main() -> None:
    """Run the command line."""
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
        take_screenshot(browser, address, out / "explore-light.png", layers, width=1280, height=1740, theme="light")
        take_screenshot(browser, address, out / "explore-dark.png", growth, width=1280, height=2640, theme="dark")
        take_screenshot(browser, address, out / "explore-phone.png", layers, width=390, height=2100, theme="light")
        browser.close()
    page.close()


if __name__ == "__main__":
    main()
