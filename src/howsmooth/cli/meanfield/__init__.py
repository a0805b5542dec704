"""`howsmooth meanfield`: attention on measures, the limit of infinitely many tokens."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import Entry, LazyGroup, question_entries

_COMMANDS = {
    "regimes": Entry("meanfield.regimes", "Lip against n, exactly: √n, √n·log n, and the plateau of mean field."),
    "splitting": Entry("meanfield.splitting", "Mass splitting: where repeated tokens have a larger constant."),
    "masked": Entry("meanfield.masked", "Masked attention in d_p: bounds that are proved, attained, and published."),
    **question_entries("meanfield"),
}


@click.group(
    name="meanfield",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="The mean-field limit: regimes, splitting, masks, distances.",
)
def command() -> None:
    """Study attention as a map of probability measures: the constants in the limit of infinite length."""


__all__ = ["command"]
