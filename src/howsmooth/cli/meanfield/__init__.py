"""`howsmooth meanfield`: attention on measures: tokens without number, masses in place of lengths."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import Entry, LazyGroup

_COMMANDS = {
    "regimes": Entry("meanfield.regimes", "Lip against n, exactly: √n, √n·log n, and the plateau of mean field."),
    "splitting": Entry("meanfield.splitting", "Mass splitting: where tokens that are repeated are rougher."),
    "masked": Entry("meanfield.masked", "Masked attention in d_p: proved, attained, and what was stated."),
    "distance": Entry("meanfield.distance", "Exact distances between token measures, before and after attention."),
}


@click.group(
    name="meanfield",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="Infinite length: regimes, splitting, masks, distances.",
)
def command() -> None:
    """Attention as a map of probability measures: what is left of the constants at lengths without end."""
