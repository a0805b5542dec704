"""The text that ships with the package, so that a first run needs nothing from outside."""

from __future__ import annotations

from importlib.resources import files


def default_text() -> str:
    """Return the shipped English story, about 1,500 words.

    >>> len(default_text().split()) > 1400
    True
    """
    return files(__name__).joinpath("default.txt").read_text(encoding="utf-8")
