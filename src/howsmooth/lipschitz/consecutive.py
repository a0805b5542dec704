"""Copies at consecutive positions: a causal model on x_1 … x_1 x_2 … x_2 …, each token k times in a row.

The formula of mass splitting does not apply: copy s of token i attends to only s of its k copies, means do not
separate, and the norm may decrease. As k → ∞ its limit is at least

    max( 2‖Σ_h W_h V_h‖ , sup_{i, 0 < σ ≤ 1} ‖Σ_h W_h V_h C_i^{h,σ} A_h‖ )

where C_i^σ is the covariance with the weight of token i itself multiplied by σ. The first term: the copies of x_1 alone
are mapped to their running mean, whose norm tends to 2 (Hardy's inequality). The second term: away from the start, the
limit operator is multiplication by V C^σ A plus a Hilbert–Schmidt operator. In particular, the norm of a single token
grows from ‖V‖ to 2‖V‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from howsmooth.attention import blockwise
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.large_radius import value_matrix
from howsmooth.lipschitz.local import local_lipschitz
from howsmooth.lipschitz.rowwise import spectral_norms

_GRID_POINTS = 48  # values of log σ


@dataclass(frozen=True)
class ConsecutiveLimit:
    """A lower bound on the limit of ‖D‖ if every token is repeated k → ∞ times in a row.

    Attributes:
        running_mean: `2‖Σ W V‖`.
        own: The supremum over tokens and σ of the norm of the derivative of an output in its own token. It is maximised
            over a grid of σ, then refined for the best token; the value is attained, so it is a lower bound.
        token: The token at which `own` is attained.
        share: The σ at which `own` is attained.
    """

    running_mean: float
    own: float
    token: int
    share: float

    @property
    def value(self) -> float:
        """The larger of the two bounds."""
        return max(self.running_mean, self.own)


def consecutive_copies(f: SelfAttention, x: Tensor, k: int, **options: Any) -> Estimate:
    """Compute ‖D‖ of a causal layer at x (n, d) with every token k times in a row, at consecutive positions.

    `options` are those of `local_lipschitz`.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(-one, one, one, causal=True)
        >>> x = torch.tensor([[-3.0], [0.3]], dtype=torch.float64)
        >>> [round(consecutive_copies(f, x, k).value, 3) for k in (1, 2, 8)]
        [2.315, 2.261, 2.202]
    """
    _check_causal(f)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"expected a number of copies k ≥ 1, got {k!r}")
    _check_one_sequence(f, x)
    return cast(Estimate, local_lipschitz(f, x.repeat_interleave(k, -2), **options))  # one sequence, one estimate


def consecutive_limit(f: SelfAttention, x: Tensor) -> ConsecutiveLimit:
    """Compute a lower bound on the limit k → ∞, for a causal layer whose scores do not depend on positions."""
    from scipy.optimize import minimize_scalar  # imported here because it takes a second

    _check_causal(f)
    for option, value in (("rotary positions", f.rotary), ("a window", f.window), ("a score_bias", f.score_bias)):
        if value is not None:
            raise InputError(
                f"expected a causal layer without positions for infinitely many copies, got one with {option}; use "
                "consecutive_copies with a k"
            )
    _check_one_sequence(f, x)
    f, x = f.converted(dtype=torch.float64), x.double()

    def norms(log_share: float) -> Tensor:
        return spectral_norms(QueryDerivative(_with_diagonal_bias(f, log_share), x), tol=1e-4).value

    grid = torch.linspace(0, -_log_share_range(f, x), _GRID_POINTS, dtype=torch.float64)
    values = torch.stack([norms(float(log_share)) for log_share in grid])  # (grid, n)
    best, token = divmod(int(values.argmax()), len(x))
    bracket = grid[min(best + 1, _GRID_POINTS - 1)], grid[max(best - 1, 0)]
    refined = minimize_scalar(
        lambda log_share: -float(norms(log_share)[token]),
        bounds=tuple(map(float, bracket)),
        method="bounded",
        options={"xatol": 1e-6, "maxiter": 30},
    )
    own, log_share = max((float(values[best, token]), float(grid[best])), (-float(refined.fun), float(refined.x)))
    value_norm = float(torch.linalg.matrix_norm(value_matrix(f), ord=2))
    return ConsecutiveLimit(2 * value_norm, own, token, math.exp(log_share))


def _with_diagonal_bias(f: SelfAttention, bias: float) -> SelfAttention:
    """Return the layer with `bias` added to the score of each token for itself."""
    return f.replaced(score_bias=lambda i, j: torch.where(i == j, bias, 0.0))


def _log_share_range(f: SelfAttention, x: Tensor) -> float:
    """Return −log σ at which no token has more than about e⁻⁶ of its own attention, if it attends to others at all."""
    q, k, v = (t.unsqueeze(0) for t in f.project(x))
    others = pattern_of(q, k, v, **_with_diagonal_bias(f, -torch.inf).pattern())
    normaliser = blockwise.forward(q, k, v, others)[1]
    keys = k.repeat_interleave(f.heads // f.kv_heads, 1)
    raw = f.scale * (q * keys).sum(-1)
    lead = (raw if f.softcap is None else f.softcap * torch.tanh(raw / f.softcap)) - normaliser.sum(-1)
    lead = lead[torch.isfinite(lead)]  # the first token attends to no other
    return max(0.0, float(lead.max()) if len(lead) else 0.0) + 6.0


def _check_one_sequence(f: SelfAttention, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected the tokens of one sequence as a tensor (n, {f.d}), got {got}")
    f.check_tokens(x.to(f.dtype), None)


def _check_causal(f: SelfAttention) -> None:
    if not isinstance(f, SelfAttention) or not f.causal:
        raise InputError(
            f"expected a causal SelfAttention, got {f!r}; unmasked layers do not depend on the order of copies: use "
            "splits"
        )
