"""Cancelling: a flag for each visitor, looked at before every step of a computation."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The visitor does not want the rest."""


class Flag:
    """Raised by the button, looked at by the worker.

    >>> flag = Flag()
    >>> flag.check("layer 0")
    >>> flag.stop()
    >>> flag.check("layer 1")
    Traceback (most recent call last):
    howsmooth.report.explorer.stopping.Stopped
    """

    def __init__(self):
        self._raised = threading.Event()

    def stop(self) -> None:
        self._raised.set()

    def check(self, *_step) -> None:
        """For the `step` and `progress` of every loop, whatever they are told."""
        if self._raised.is_set():
            raise Stopped


class Flags:
    """The flag of each visitor's present computation."""

    def __init__(self):
        self._flags: dict[str | None, Flag] = {}

    def fresh(self, visitor: str | None) -> Flag:
        """A flag for a new computation; one that may still run for this visitor is stopped: there is one at a time."""
        self.stop(visitor)
        self._flags[visitor] = Flag()
        return self._flags[visitor]

    def stop(self, visitor: str | None) -> None:
        if visitor in self._flags:
            self._flags[visitor].stop()

    def forget(self, visitor: str | None) -> None:
        """A visitor who leaves also stops."""
        self.stop(visitor)
        self._flags.pop(visitor, None)
