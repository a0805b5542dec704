from howsmooth.lipschitz.local import local_lipschitz as local_lipschitz
from howsmooth.lipschitz.estimate import Estimate as Estimate, TopToken as TopToken
from howsmooth.lipschitz.gains import token_gains as token_gains, TokenGains as TokenGains
from howsmooth.lipschitz.blocks import gain_matrix as gain_matrix, GainMatrix as GainMatrix
from howsmooth.lipschitz.penalty import lipschitz_penalty as lipschitz_penalty, LipschitzPenalty as LipschitzPenalty
from howsmooth.lipschitz.local import jacobian as jacobian
from howsmooth.lipschitz.autodiff import AutodiffJacobian as AutodiffJacobian
from howsmooth.lipschitz.mean_field import (
    mean_field_lipschitz as mean_field_lipschitz,
    mean_field_jacobian as mean_field_jacobian,
    lipschitz_quotients as lipschitz_quotients,
    Quotients as Quotients,
)
from howsmooth.lipschitz.large_radius import (
    large_radius_limit as large_radius_limit,
    LargeRadius as LargeRadius,
    lipschitz_at_scales as lipschitz_at_scales,
    argmax_share as argmax_share,
    largest_probabilities as largest_probabilities,
)
from howsmooth.lipschitz.regimes import (
    regime_curve as regime_curve,
    RegimePoint as RegimePoint,
    plateau as plateau,
    Plateau as Plateau,
)
from howsmooth.lipschitz.splitting import splits as splits, Splitting as Splitting
from howsmooth.lipschitz.consecutive import (
    consecutive_copies as consecutive_copies,
    consecutive_limit as consecutive_limit,
    ConsecutiveLimit as ConsecutiveLimit,
)
