"""`howsmooth attack`: inputs that are worse than text, and what is certified around a text."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup

_FILES = {
    "worst-case": "howsmooth.cli.attack.worst_case",
    "ball": "howsmooth.cli.attack.ball",
    "layer": "howsmooth.cli.attack.layer",
    "model": "howsmooth.cli.attack.model",
    "tokens": "howsmooth.cli.attack.tokens",
    "predict": "howsmooth.cli.attack.predict",
}


@click.group(name="attack", cls=LazyGroup, files=_FILES,
             short_help="Worst cases: search for them, certify against them.")
def command() -> None:
    """Find inputs on which attention is far less smooth than on text, or certify that none is near."""
