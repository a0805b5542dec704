"""Local Lipschitz constants: where attention meets linear algebra."""

from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import TokenGains, token_gains
from howsmooth.lipschitz.growth import Growth, fit_growth
from howsmooth.lipschitz.large_radius import (
    LargeRadius,
    approach,
    argmax_share,
    large_radius_limit,
    largest_probabilities,
)
from howsmooth.lipschitz.laws import Law, fit_law
from howsmooth.lipschitz.local import jacobian, local_lipschitz
from howsmooth.lipschitz.penalty import LipschitzPenalty, lipschitz_penalty
from howsmooth.lipschitz.quotients import Quotients, lipschitz_quotients
from howsmooth.lipschitz.splitting import Splitting, splits

__all__ = [
    "AutodiffJacobian", "Estimate", "Growth", "LargeRadius", "Law", "LipschitzPenalty", "Quotients", "Splitting",
    "TokenGains", "approach", "argmax_share", "fit_growth", "fit_law", "jacobian", "large_radius_limit",
    "largest_probabilities", "lipschitz_penalty", "lipschitz_quotients", "local_lipschitz", "splits", "token_gains",
]
