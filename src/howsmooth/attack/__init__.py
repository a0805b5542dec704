"""How rough can it get: inputs at which attention is least smooth, by formula and by ascent."""

from howsmooth.attack import configurations, feature, mitigation
from howsmooth.attack.ascent import Ascent, ascend
from howsmooth.attack.constraints import Ball, Ellipsoid, Near, Sphere
from howsmooth.attack.linearity import Linearity, linearity
from howsmooth.attack.starts import starts, worst_case

__all__ = [
    "Ascent",
    "Ball",
    "Ellipsoid",
    "Linearity",
    "Near",
    "Sphere",
    "ascend",
    "configurations",
    "feature",
    "linearity",
    "mitigation",
    "starts",
    "worst_case",
]
