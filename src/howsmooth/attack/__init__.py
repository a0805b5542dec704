"""Inputs with a large local Lipschitz constant, in closed form and by gradient ascent, and attacks on models."""

from howsmooth.attack import configurations, feature, mitigation, tokens
from howsmooth.attack.ascent import Ascent, ascend
from howsmooth.attack.constraints import Ball, Constraint, Ellipsoid, Near, Sphere
from howsmooth.attack.linearity import Linearity, linearity
from howsmooth.attack.starts import starts, worst_case
from howsmooth.norms import NORMS, Norm

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
    "NORMS",
    "Norm",
    "linearity",
    "Linearity",
    "configurations",
    "feature",
    "tokens",
    "mitigation",
]
