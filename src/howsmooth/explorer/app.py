"""What visitors share and what each has: models, the session of a visitor, running and cancelling a computation."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError, NotConverged
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.explorer.choice import Choice
from howsmooth.explorer.html import said
from howsmooth.report.web_page import report_page

QUEUE = "compute"  # all computations wait in one line, and one runs at a time


class Cancelled(Exception):
    """The visitor does not want the rest."""


class Cancellation:
    """Requested by the button, checked by the worker before every step.

    >>> cancellation = Cancellation()
    >>> cancellation.check("layer 0")
    >>> cancellation.stop()
    >>> cancellation.check("layer 1")
    Traceback (most recent call last):
    howsmooth.explorer.app.Cancelled
    """

    def __init__(self):
        self._requested = threading.Event()

    def stop(self) -> None:
        self._requested.set()

    def check(self, *_: object) -> None:
        """Raise if a stop was requested; a `progress` callback for every computation."""
        if self._requested.is_set():
            raise Cancelled


class Cancellations:
    """One cancellation for the present computation of each visitor."""

    def __init__(self):
        self._current: dict[str | None, Cancellation] = {}

    def start(self, visitor: str | None) -> Cancellation:
        """Return one for a new computation, and stop the last of this visitor: there is one at a time."""
        self.stop(visitor)
        self._current[visitor] = Cancellation()
        return self._current[visitor]

    def stop(self, visitor: str | None) -> None:
        if visitor in self._current:
            self._current[visitor].stop()

    def forget(self, visitor: str | None) -> None:
        """A visitor who leaves also stops."""
        self.stop(visitor)
        self._current.pop(visitor, None)


@dataclass
class Session:
    choice: Choice | None = None
    records: list[dict[str, Any]] = field(default_factory=list)  # of layers, as `measure` yields them
    heads: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    layer: int | None = None

    def record(self, layer: int) -> dict[str, Any] | None:
        return next((record for record in self.records if record["layer"] == layer), None)

    @property
    def roughest(self) -> int | None:
        return max(self.records, key=lambda record: record["value"])["layer"] if self.records else None

    @property
    def words(self) -> list[str]:
        """The first record of a piece of text has its words."""
        return list(self.records[0]["words"] or ()) if self.records else []

    @property
    def everything(self) -> list[dict[str, Any]]:
        return [*self.records, *(record for of_layer in self.heads.values() for record in of_layer), *self.bounds]


@dataclass
class App:
    catalog: ModelCatalog
    cancellations: Cancellations = field(default_factory=Cancellations)
    model: Any = None  # the fields above the tabs
    text: Any = None
    session: Any = None
    download: Any = None
    reports: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.reports, ignore_errors=True)  # or when the process ends

    def run(
        self, visitor: str | None, status: Any, compute: Callable[[Cancellation], Iterator[dict]]
    ) -> Iterator[dict]:
        """Hand on what `compute` shows; bad input and cancelling end it with a line in `status`."""
        cancellation = self.cancellations.start(visitor)
        try:
            yield from compute(cancellation)
        except Cancelled:
            yield {status: said("Cancelled. What was computed stays.")}
        except (InputError, NotConverged) as error:
            yield {status: said(str(error), "warn")}
        except Exception as error:  # the bar must not stand still for ever; the server's log has the rest
            yield {status: said(f"This failed ({type(error).__name__}); the log of the server says more.", "warn")}
            raise

    def report(self, visitor: str | None, session: Session) -> dict[str, Any]:
        """The settings of the download button: the report of the session, in a file of the visitor's own."""
        if not session.everything:
            return {"value": None, "interactive": False}
        path = self._folder(visitor) / "howsmooth-report.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(report_page(session.everything), encoding="utf-8")
        return {"value": str(path), "interactive": True}

    def leave(self, visitor: str | None) -> None:
        self.cancellations.forget(visitor)
        shutil.rmtree(self._folder(visitor), ignore_errors=True)

    def _folder(self, visitor: str | None) -> Path:
        # The name that a browser gives itself is text from outside: never part of a path.
        return self.reports / hashlib.sha256((visitor or "").encode()).hexdigest()[:32]
