"""`howsmooth flow`: attention repeated: tokens as particles, layer upon layer."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import Entry, LazyGroup

_COMMANDS = {
    "particles": Entry("flow.particles", "Tokens as particles: clusters, hulls, growth of perturbations."),
    "gaussian": Entry("flow.gaussian", "Gaussians stay Gaussian: mean, covariance, blow-up, limiting rank."),
    "pde": Entry("flow.pde", "Densities under attention on a grid, d = 1 or 2."),
    "model": Entry("flow.model", "Real depth: do tokens cluster, how do perturbations grow?"),
}


@click.group(
    name="flow", cls=LazyGroup, entries=_COMMANDS, short_help="Depth: particles, Gaussians, densities, real layers."
)
def command() -> None:
    """Follow tokens through many layers of attention: as an ODE, as a flow of densities, in a real model."""
