"""Local Lipschitz constants: where attention meets linear algebra."""

from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import TokenGains, token_gains
from howsmooth.lipschitz.growth import Growth, fit_growth
from howsmooth.lipschitz.laws import Law, fit_law
from howsmooth.lipschitz.local import jacobian, local_lipschitz

__all__ = [
    "AutodiffJacobian", "Estimate", "Growth", "Law", "TokenGains", "fit_growth", "fit_law", "jacobian",
    "local_lipschitz", "token_gains",
]
