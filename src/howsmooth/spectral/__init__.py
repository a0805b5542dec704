"""Matrix-free singular values with certified intervals, for any linear operator."""

from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.memory import MemoryPlan, plan
from howsmooth.spectral.operator import FunctionOperator, LinearOperator, MatrixOperator, restrict
from howsmooth.spectral.power import attained_p_norm, power_method, warm_triplet
from howsmooth.spectral.products import before_each_product
from howsmooth.spectral.result import SingularTriplets
from howsmooth.spectral.resume import saved_products
from howsmooth.spectral.solver import Solver

__all__ = [
    "singular_values",
    "Solver",
    "SingularTriplets",
    "LinearOperator",
    "MatrixOperator",
    "FunctionOperator",
    "restrict",
    "plan",
    "MemoryPlan",
    "before_each_product",
    "saved_products",
    "warm_triplet",
    "power_method",
    "attained_p_norm",
]
