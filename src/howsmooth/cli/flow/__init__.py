"""`howsmooth flow`: attention applied again and again, with tokens as particles and depth as time."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup, question_entries


@click.group(
    name="flow",
    cls=LazyGroup,
    entries=question_entries("flow"),
    short_help="Tokens along depth: particles, Gaussians, densities, real layers.",
)
def command() -> None:
    """Follow tokens through many layers of attention: as an ODE, as a flow of densities, or in a real model."""


__all__ = ["command"]
