"""Local Lipschitz constants of attention and of any other torch map, with certified intervals."""

from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.consecutive import ConsecutiveLimit, consecutive_copies, consecutive_limit
from howsmooth.lipschitz.estimate import Estimate, TopToken
from howsmooth.lipschitz.gains import TokenGains, token_gains
from howsmooth.lipschitz.large_radius import (
    LargeRadius,
    argmax_share,
    large_radius_limit,
    largest_probabilities,
    lipschitz_at_scales,
)
from howsmooth.lipschitz.local import jacobian, local_lipschitz
from howsmooth.lipschitz.mean_field import Quotients, lipschitz_quotients, mean_field_jacobian, mean_field_lipschitz
from howsmooth.lipschitz.penalty import LipschitzPenalty, lipschitz_penalty
from howsmooth.lipschitz.regimes import Plateau, RegimePoint, plateau, regime_curve
from howsmooth.lipschitz.splitting import Splitting, splits

__all__ = [
    "local_lipschitz",
    "Estimate",
    "TopToken",
    "token_gains",
    "TokenGains",
    "lipschitz_penalty",
    "LipschitzPenalty",
    "jacobian",
    "AutodiffJacobian",
    "mean_field_lipschitz",
    "mean_field_jacobian",
    "lipschitz_quotients",
    "Quotients",
    "large_radius_limit",
    "LargeRadius",
    "lipschitz_at_scales",
    "argmax_share",
    "largest_probabilities",
    "regime_curve",
    "RegimePoint",
    "plateau",
    "Plateau",
    "splits",
    "Splitting",
    "consecutive_copies",
    "consecutive_limit",
    "ConsecutiveLimit",
]
