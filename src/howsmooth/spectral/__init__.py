"""Matrix-free singular values that say how sure they are; knows nothing of attention."""

from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.memory import MemoryPlan, plan
from howsmooth.spectral.operator import FunctionOperator, LinearOperator, MatrixOperator, restrict
from howsmooth.spectral.power import attained_p_norm, power_method, warm_triplet
from howsmooth.spectral.result import SingularTriplets

__all__ = [
    "FunctionOperator",
    "LinearOperator",
    "MatrixOperator",
    "MemoryPlan",
    "SingularTriplets",
    "attained_p_norm",
    "plan",
    "power_method",
    "restrict",
    "singular_values",
    "warm_triplet",
]
