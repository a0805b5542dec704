"""`howsmooth attack`: inputs with larger constants than text, and certificates around a text."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup, question_entries


@click.group(
    name="attack",
    cls=LazyGroup,
    entries=question_entries("attack"),
    short_help="Search for worst cases, and certify that none is near.",
)
def command() -> None:
    """Find inputs on which attention is far less smooth than on text, or certify that none is near."""


__all__ = ["command"]
