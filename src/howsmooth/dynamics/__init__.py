"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters."""

from howsmooth.dynamics.continuity import DensityFlow, density_flow
from howsmooth.dynamics.example import Example, follow, read_example
from howsmooth.dynamics.fixed_steps import steps_of
from howsmooth.dynamics.gaussian import GaussianState, blow_up_time, covariance_at
from howsmooth.dynamics.gaussian_flow import BlowUp, GaussianFlow, gaussian_flow
from howsmooth.dynamics.gaussian_rank import LimitingRank, limiting_rank
from howsmooth.dynamics.grid import Density, Grid
from howsmooth.dynamics.growth import (
    FlowDerivative,
    Growth,
    growth_by_map,
    growth_through,
    local_constant,
    perturbation_growth,
    stack,
    unstack,
    with_tangents,
)
from howsmooth.dynamics.instruments.records import watch
from howsmooth.dynamics.integration import integrate
from howsmooth.dynamics.mean_field import MeanFieldConvergence, mean_field_convergence
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.trajectory import Interrupted, Trajectory
from howsmooth.dynamics.velocity import Velocity

__all__ = [
    "BlowUp",
    "Density",
    "DensityFlow",
    "Example",
    "FlowDerivative",
    "GaussianFlow",
    "GaussianState",
    "Grid",
    "Growth",
    "Interrupted",
    "LimitingRank",
    "MeanFieldConvergence",
    "Renormalised",
    "Trajectory",
    "Velocity",
    "blow_up_time",
    "covariance_at",
    "density_flow",
    "follow",
    "gaussian_flow",
    "growth_by_map",
    "growth_through",
    "integrate",
    "limiting_rank",
    "local_constant",
    "mean_field_convergence",
    "perturbation_growth",
    "read_example",
    "stack",
    "steps_of",
    "unstack",
    "watch",
    "with_tangents",
]
