"""`howsmooth meanfield`: attention on measures, the limit of infinitely many tokens."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup, question_entries


@click.group(
    name="meanfield",
    cls=LazyGroup,
    entries=question_entries("meanfield"),
    short_help="The mean-field limit: regimes, splitting, masks, distances.",
)
def command() -> None:
    """Study attention as a map of probability measures: the constants in the limit of infinite length."""


__all__ = ["command"]
