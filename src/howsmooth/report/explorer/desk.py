"""What the tabs share: the models, the flags, the fields that stand above them, and the way a computation is run."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError, NotConverged
from howsmooth.report.explorer.html import said
from howsmooth.report.explorer.screen import Screen
from howsmooth.report.explorer.shelf import Shelf
from howsmooth.report.explorer.stopping import Flag, Flags, Stopped
from howsmooth.report.web_page import report_page

QUEUE = "compute"  # all computations wait in one line, and one runs at a time


@dataclass
class Desk:
    shelf: Shelf
    flags: Flags = field(default_factory=Flags)
    model: Any = None  # the fields above the tabs
    text: Any = None
    screen: Any = None
    download: Any = None
    reports: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.reports, ignore_errors=True)  # or when the process ends

    def run(self, visitor: str | None, status: Any, compute: Callable[[Flag], Iterator[dict]]) -> Iterator[dict]:
        """Hand on what `compute` shows; bad input and cancelling end it with a line in `status`."""
        flag = self.flags.fresh(visitor)
        try:
            yield from compute(flag)
        except Stopped:
            yield {status: said("Cancelled. What was computed stays.")}
        except (InputError, NotConverged) as error:
            yield {status: said(str(error), "warn")}
        except Exception as error:  # the bar must not stand still for ever; the server's log has the rest
            yield {status: said(f"This failed ({type(error).__name__}); the log of the server says more.", "warn")}
            raise

    def report(self, visitor: str | None, screen: Screen) -> dict[str, Any]:
        """The settings of the download button: the report of the screen, in a file of the visitor's own."""
        if not screen.everything:
            return {"value": None, "interactive": False}
        path = self._folder(visitor) / "howsmooth-report.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(report_page(screen.everything), encoding="utf-8")
        return {"value": str(path), "interactive": True}

    def leave(self, visitor: str | None) -> None:
        self.flags.forget(visitor)
        shutil.rmtree(self._folder(visitor), ignore_errors=True)

    def _folder(self, visitor: str | None) -> Path:
        # The name that a browser gives itself is text from outside: never part of a path.
        return self.reports / hashlib.sha256((visitor or "").encode()).hexdigest()[:32]
