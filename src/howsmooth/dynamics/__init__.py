"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters."""

from howsmooth.dynamics.declared import Example, read_example
from howsmooth.dynamics.derivative import FlowDerivative, stack, unstack, with_tangents
from howsmooth.dynamics.example import follow
from howsmooth.dynamics.growth import Growth, growth_through, local_constant, perturbation_growth
from howsmooth.dynamics.integrating import integrate
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.schemes import steps_of
from howsmooth.dynamics.trajectory import Trajectory
from howsmooth.dynamics.velocity import Velocity
from howsmooth.dynamics.watching import watch

__all__ = ["Example", "FlowDerivative", "Growth", "Renormalised", "Trajectory", "Velocity", "follow", "growth_through",
           "integrate", "local_constant", "perturbation_growth", "read_example", "stack", "steps_of", "unstack",
           "watch", "with_tangents"]
