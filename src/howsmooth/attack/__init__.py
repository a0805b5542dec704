"""Inputs with a large local Lipschitz constant, in closed form and by gradient ascent, and attacks on models."""

from howsmooth.attack import configurations, feature, mitigation, tokens
from howsmooth.attack.ascent import Ascent, ascend
from howsmooth.attack.constraints import Ball, Constraint, Ellipsoid, Near, Sphere
from howsmooth.attack.linearity import Linearity, linearity
from howsmooth.attack.starts import starts, worst_case

__all__ = [
    "worst_case",
    "ascend",
    "Ascent",
    "starts",
    "Constraint",
    "Ball",
    "Sphere",
    "Ellipsoid",
    "Near",
    "linearity",
    "Linearity",
    "configurations",
    "feature",
    "tokens",
    "mitigation",
]
