"""`howsmooth meanfield`: attention on measures: tokens without number, masses in place of lengths."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup

_FILES = {
    "regimes": "howsmooth.cli.meanfield.regimes",
    "splitting": "howsmooth.cli.meanfield.splitting",
    "masked": "howsmooth.cli.meanfield.masked",
    "distance": "howsmooth.cli.meanfield.distance",
}


@click.group(name="meanfield", cls=LazyGroup, files=_FILES,
             short_help="Infinite length: regimes, splitting, masks, distances.")
def command() -> None:
    """Attention as a map of probability measures: what is left of the constants at lengths without end."""
