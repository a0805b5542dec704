"""A browser for tests of pages: the system's chromium through Playwright, or a warning that there is none."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """Return the path of the browser: $CHROMIUM, /usr/bin/chromium, or the first in $PATH; None without one."""
    wanted = os.environ.get("CHROMIUM")
    if wanted:
        return wanted if Path(wanted).is_file() else None
    found = Path("/usr/bin/chromium")
    return str(found) if found.is_file() else next(filter(None, map(shutil.which, _NAMES)), None)


def require_chromium() -> str:
    """Return the path of the browser; without one, skip the tests with a warning in the summary of pytest."""
    why = None
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        why = "playwright is not installed (pip install 'howsmooth[test]')"
    path = chromium()
    if path is None:
        why = "no chromium was found at $CHROMIUM, /usr/bin/chromium or in $PATH (apt install chromium)"
    if why:
        warnings.warn(f"BROWSER TESTS ARE SKIPPED: {why}", stacklevel=2)
        pytest.skip(f"browser tests: {why}", allow_module_level=True)
    return path


@contextmanager
def browser() -> Iterator:
    """Open a headless browser and close it afterwards."""
    path = require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


class Page:
    """A page that records console errors in `errors` and the URLs it loads in `requests`."""

    def __init__(self, browser, *, width: int = 1280, height: int = 900, theme: str = "light"):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(0)  # a slow machine is not a failure; pytest stops a test that hangs
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._log)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _log(self, message) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_) -> None:
        self.context.close()
