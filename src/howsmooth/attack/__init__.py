"""Inputs with a large local Lipschitz constant, in closed form and by gradient ascent, and attacks on models."""

from typing import TYPE_CHECKING

from howsmooth.attack import configurations, feature, mitigation
from howsmooth.attack.ascent import Ascent, ascend
from howsmooth.attack.constraints import Ball, Constraint, Ellipsoid, Near, Sphere
from howsmooth.attack.linearity import Linearity, linearity
from howsmooth.attack.starts import starts, worst_case
from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.attack import tokens

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

# The attacks on tokens import transformers, which takes seconds.
__getattr__, __dir__ = attach(__name__, {"tokens": "howsmooth.attack.tokens"})
