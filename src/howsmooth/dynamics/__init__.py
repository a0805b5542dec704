"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters."""

from howsmooth.dynamics.integrate import integrate
from howsmooth.dynamics.trajectory import Trajectory
from howsmooth.dynamics.velocity import Velocity

__all__ = ["Trajectory", "Velocity", "integrate"]
