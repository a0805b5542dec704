"""`howsmooth meanfield`: attention on measures, the limit of infinitely many tokens."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup, question_entries

_COMMANDS = {**question_entries("meanfield")}


@click.group(
    name="meanfield",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="The mean-field limit: regimes, splitting, masks, distances.",
)
def command() -> None:
    """Study attention as a map of probability measures: the constants in the limit of infinite length."""


__all__ = ["command"]
