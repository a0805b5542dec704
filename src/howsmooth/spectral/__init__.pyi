from howsmooth.spectral.golub_kahan import singular_values as singular_values
from howsmooth.spectral.solver import Solver as Solver
from howsmooth.spectral.result import SingularTriplets as SingularTriplets
from howsmooth.spectral.operator import (
    LinearOperator as LinearOperator,
    MatrixOperator as MatrixOperator,
    FunctionOperator as FunctionOperator,
    restrict as restrict,
)
from howsmooth.spectral.trace import (
    frobenius_norm as frobenius_norm,
    FrobeniusNorm as FrobeniusNorm,
    count_singular_values as count_singular_values,
    SingularValueCounts as SingularValueCounts,
)
from howsmooth.spectral.eigenvalues import leading_eigenvalues as leading_eigenvalues, Eigenvalues as Eigenvalues
from howsmooth.spectral.memory import plan as plan, MemoryPlan as MemoryPlan
from howsmooth.spectral.products import before_each_product as before_each_product
from howsmooth.spectral.resume import saved_products as saved_products
from howsmooth.spectral.power import (
    warm_triplet as warm_triplet,
    power_method as power_method,
    attained_p_norm as attained_p_norm,
)
