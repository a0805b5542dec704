"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters.

Modules are imported when a name is first used: reading a declared flow does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.dynamics.continuity import DensityFlow, density_flow
    from howsmooth.dynamics.declaration import Example, read_example
    from howsmooth.dynamics.example import integrate_example
    from howsmooth.dynamics.fixed_steps import steps_of
    from howsmooth.dynamics.gaussian import GaussianState, blow_up_time, covariance_at
    from howsmooth.dynamics.gaussian_flows import (
        BlowUp,
        GaussianFlow,
        ParticleComparison,
        compare_particles,
        gaussian_flow,
    )
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

__getattr__, __dir__ = attach(
    __name__,
    {
        "integrate": "howsmooth.dynamics.integration",
        "Velocity": "howsmooth.dynamics.velocity",
        "Trajectory": "howsmooth.dynamics.trajectory",
        "Interrupted": "howsmooth.dynamics.trajectory",
        "Renormalised": "howsmooth.dynamics.renormalised",
        "trajectory_records": "howsmooth.dynamics.instruments.records",
        "perturbation_growth": "howsmooth.dynamics.growth",
        "growth_through": "howsmooth.dynamics.growth",
        "growth_by_map": "howsmooth.dynamics.growth",
        "PerturbationGrowth": "howsmooth.dynamics.growth",
        "local_constant": "howsmooth.dynamics.growth",
        "FlowDerivative": "howsmooth.dynamics.growth",
        "with_tangents": "howsmooth.dynamics.growth",
        "stack": "howsmooth.dynamics.growth",
        "unstack": "howsmooth.dynamics.growth",
        "steps_of": "howsmooth.dynamics.fixed_steps",
        "gaussian_flow": "howsmooth.dynamics.gaussian_flows",
        "GaussianFlow": "howsmooth.dynamics.gaussian_flows",
        "GaussianState": "howsmooth.dynamics.gaussian",
        "BlowUp": "howsmooth.dynamics.gaussian_flows",
        "blow_up_time": "howsmooth.dynamics.gaussian",
        "covariance_at": "howsmooth.dynamics.gaussian",
        "limiting_rank": "howsmooth.dynamics.gaussian_rank",
        "LimitingRank": "howsmooth.dynamics.gaussian_rank",
        "compare_particles": "howsmooth.dynamics.gaussian_flows",
        "ParticleComparison": "howsmooth.dynamics.gaussian_flows",
        "density_flow": "howsmooth.dynamics.continuity",
        "DensityFlow": "howsmooth.dynamics.continuity",
        "Density": "howsmooth.dynamics.grid",
        "Grid": "howsmooth.dynamics.grid",
        "mean_field_convergence": "howsmooth.dynamics.mean_field",
        "MeanFieldConvergence": "howsmooth.dynamics.mean_field",
        "ConvergenceRate": "howsmooth.dynamics.mean_field",
        "read_example": "howsmooth.dynamics.declaration",
        "integrate_example": "howsmooth.dynamics.example",
        "Example": "howsmooth.dynamics.declaration",
    },
)

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
