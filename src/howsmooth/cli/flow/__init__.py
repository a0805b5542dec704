"""`howsmooth flow`: attention repeated: tokens as particles, layer upon layer."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import LazyGroup

_FILES = {
    "particles": "howsmooth.cli.flow.particles",
    "gaussian": "howsmooth.cli.flow.gaussian",
    "pde": "howsmooth.cli.flow.pde",
    "model": "howsmooth.cli.flow.model",
}


@click.group(name="flow", cls=LazyGroup, files=_FILES,
             short_help="Depth: particles, Gaussians, densities, real layers.")
def command() -> None:
    """Follow tokens through many layers of attention: as an ODE, as a flow of densities, in a real model."""
