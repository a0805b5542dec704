"""Local Lipschitz constants: where attention meets linear algebra."""

from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import TokenGains, token_gains
from howsmooth.lipschitz.large_radius import (
    LargeRadius,
    approach,
    argmax_share,
    large_radius_limit,
    largest_probabilities,
)
from howsmooth.lipschitz.local import jacobian, local_lipschitz
from howsmooth.lipschitz.mean_field import Quotients, lipschitz_quotients, mean_field_jacobian, mean_field_lipschitz
from howsmooth.lipschitz.penalty import LipschitzPenalty, lipschitz_penalty
from howsmooth.lipschitz.regimes import Plateau, RegimePoint, plateau, regime_curve
from howsmooth.lipschitz.splitting import Splitting, splits

__all__ = [
    "AutodiffJacobian",
    "Estimate",
    "LargeRadius",
    "LipschitzPenalty",
    "Plateau",
    "Quotients",
    "RegimePoint",
    "Splitting",
    "TokenGains",
    "approach",
    "argmax_share",
    "jacobian",
    "large_radius_limit",
    "largest_probabilities",
    "lipschitz_penalty",
    "lipschitz_quotients",
    "local_lipschitz",
    "mean_field_jacobian",
    "mean_field_lipschitz",
    "plateau",
    "regime_curve",
    "splits",
    "token_gains",
]
