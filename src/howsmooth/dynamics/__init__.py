"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters."""

from typing import TYPE_CHECKING

from howsmooth.dynamics.continuity import DensityFlow, density_flow
from howsmooth.dynamics.fixed_steps import steps_of
from howsmooth.dynamics.gaussian import GaussianState, blow_up_time, covariance_at
from howsmooth.dynamics.gaussian_flow import BlowUp, GaussianFlow, ParticleComparison, compare_particles, gaussian_flow
from howsmooth.dynamics.gaussian_rank import LimitingRank, limiting_rank
from howsmooth.dynamics.grid import Density, Grid
from howsmooth.dynamics.growth import (
    FlowDerivative,
    PerturbationGrowth,
    growth_by_map,
    growth_through,
    local_constant,
    perturbation_growth,
    stack,
    unstack,
    with_tangents,
)
from howsmooth.dynamics.instruments.records import trajectory_records
from howsmooth.dynamics.integration import integrate
from howsmooth.dynamics.mean_field import ConvergenceRate, MeanFieldConvergence, mean_field_convergence
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.trajectory import Interrupted, Trajectory
from howsmooth.dynamics.velocity import Velocity
from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.dynamics.example import Example, integrate_example, read_example

__all__ = [
    "integrate",
    "Velocity",
    "Trajectory",
    "Interrupted",
    "Renormalised",
    "trajectory_records",
    "perturbation_growth",
    "growth_through",
    "growth_by_map",
    "PerturbationGrowth",
    "local_constant",
    "FlowDerivative",
    "with_tangents",
    "stack",
    "unstack",
    "steps_of",
    "gaussian_flow",
    "GaussianFlow",
    "GaussianState",
    "BlowUp",
    "blow_up_time",
    "covariance_at",
    "limiting_rank",
    "LimitingRank",
    "compare_particles",
    "ParticleComparison",
    "density_flow",
    "DensityFlow",
    "Density",
    "Grid",
    "mean_field_convergence",
    "MeanFieldConvergence",
    "ConvergenceRate",
    "read_example",
    "integrate_example",
    "Example",
]

# Examples are read from files, which pydantic checks.
__getattr__, __dir__ = attach(
    __name__,
    {
        "read_example": "howsmooth.dynamics.example",
        "integrate_example": "howsmooth.dynamics.example",
        "Example": "howsmooth.dynamics.example",
    },
)
