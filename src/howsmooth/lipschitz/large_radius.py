"""The limit of large tokens: attention at ρX as ρ → ∞, and how close a layer already is to it.

Scores grow like ρ², so query i eventually attends to one key alone, `m(i) = argmax_j` of its scores without biases
(biases grow like ρ only, and score offsets not at all). The terms of the derivative that come from the scores vanish
like `ρ² e^{−ρ²·gap}`. The limit is linear and does not depend on ρ:

    E ↦ ( Σ_h W_h V_h ε_{m_h(i)} )_i

For one head its norm is `‖V‖ (max_j #{i : m(i) = j})^½`, which is at most ‖V‖√n, with equality if all queries have the
same key. At a tie the covariance of a row grows like ρ², and there is no limit.

Reference:
    castin2024smooth, large radius. The multiplicities and several heads are from this project.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from howsmooth.attention.argmax import ArgmaxKeys, argmax_keys
from howsmooth.attention.backend import FusedLinearisation, upcast_half
from howsmooth.attention.blockwise import Linearisation
from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import local_lipschitz, promote_half
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import FunctionOperator, LinearOperator
from howsmooth.spectral.solver import Solver, SolverOptions

_NEGLIGIBLE_PROBABILITY = 1e-6  # of all keys but the argmax, in `LargeRadius.argmax_scale`


@dataclass(frozen=True, eq=False)
class LargeRadius:
    """The limit of the Jacobian at ρX as ρ → ∞.

    Attributes:
        value: Norm of the limit.
        lower: Lower end of its interval.
        upper: Upper end of its interval.
        confidence: Probability that the interval contains the norm; 1 if the norm is a formula, which is so for one
            head or for heads with the same argmax.
        operator: The limit as a matrix-free operator.
        argmax: The key m_h(i) of query i in head h, (h, n); −1 if it attends to none.
        gap: The smallest difference of the largest and the second largest score of a row, at ρ = 1; ∞ if every row
            has one key.
    """

    value: float
    lower: float
    upper: float
    confidence: float
    operator: LinearOperator = field(repr=False)
    argmax: Tensor = field(repr=False)
    gap: float

    @property
    def multiplicities(self) -> Tensor:
        """The number of queries whose argmax is each key, (h, n)."""
        h, n = self.argmax.shape
        counts = torch.zeros(h, n + 1, dtype=torch.int64)
        return counts.scatter_add_(1, self.argmax + 1, torch.ones_like(self.argmax))[:, 1:]

    @property
    def argmax_scale(self) -> float:
        """The ρ above which no key but the argmax has more than 10⁻⁶ of a query's attention, without biases."""
        return math.sqrt(math.log(1 / _NEGLIGIBLE_PROBABILITY) / self.gap)


def large_radius_limit(
    f: SelfAttention, x: Tensor, *, solver: Solver = Solver(), **options: Unpack[SolverOptions]
) -> LargeRadius:
    """Compute the limit of the Jacobian of f at ρx as ρ → ∞.

    Args:
        f: The layer.
        x: Tokens (n, d).
        solver: The options of the solve, for heads with different argmaxes.
        **options: Fields of the solver to replace.

    Returns:
        The limit, its norm and the argmax of each query.

    Raises:
        InputError: At a tie of scores, or for a layer with a soft cap: there is no such limit.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> x = torch.tensor([[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], dtype=torch.float64)
        >>> limit = large_radius_limit(SelfAttention(eye, eye, 3 * eye), x)
        >>> limit.argmax.tolist(), round(limit.value, 6)  # 3 √2
        ([[0, 0, 2]], 4.242641)
    """
    f, x = _check_one_sequence(f, x)
    f, x = f.converted(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    found = _argmax_without_ties(f, x)
    keys, gap, operator = found.key, found.gap, _limit_operator(f, found.key)
    if bool((keys == keys[0]).all()):  # the matrix Σ_h W_h V_h and one argmax for all heads: ‖V‖ √multiplicity
        multiplicity = int(keys[0][keys[0] >= 0].bincount().max()) if bool((keys >= 0).any()) else 0
        value = float(torch.linalg.matrix_norm(value_matrix(f), 2)) * math.sqrt(multiplicity)
        return LargeRadius(value, value, value, 1.0, operator, keys, gap)
    norm = singular_values(operator, solver=solver, **options)
    value, lower, upper = (float(t[0]) for t in (norm.value, norm.lower, norm.upper))
    return LargeRadius(value, lower, upper, norm.confidence, operator, keys, gap)


def lipschitz_at_scales(f: SelfAttention, x: Tensor, scales: Iterable[float], **options: Any) -> list[Estimate]:
    """Compute `‖D_{ρX} f‖₂` for each scale ρ; it tends to the norm of `large_radius_limit`.

    Args:
        f: The layer.
        x: Tokens (n, d).
        scales: Positive factors ρ.
        **options: Options of `local_lipschitz`.

    Returns:
        One estimate per scale.

    Raises:
        InputError: If x is not (n, d), or a scale is not positive and finite.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> [round(estimate.value, 3) for estimate in lipschitz_at_scales(SelfAttention(one, one, one), x, (1, 2, 4))]
        [1.516, 1.455, 1.414]
    """
    if not isinstance(x, Tensor) or x.dim() != 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"lipschitz_at_scales: expected tokens as a tensor (n, d), got {got}")
    # One sequence gives one estimate.
    return [cast(Estimate, local_lipschitz(f, scale * x, **options)) for scale in _check_scales(scales)]


@torch.no_grad()
def largest_probabilities(f: SelfAttention, x: Tensor, padding: Tensor | None = None) -> Tensor:
    """Compute `max_j P_ij` for each head and each real token.

    Args:
        f: The layer.
        x: Tokens (n, d).
        padding: Boolean mask (n,), True for real tokens.

    Returns:
        The probabilities (h, number of real tokens); zero for rows that attend to nothing.

    Raises:
        InputError: If x is not (n, d), or padding is not a boolean mask.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> largest_probabilities(SelfAttention(eye, eye, eye), 0 * eye)
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    f, x = _check_one_sequence(f, x)
    if padding is not None and not isinstance(padding, Tensor):
        raise InputError(
            f"expected padding as a tensor of dtype bool, True where the token is real, got {type(padding).__name__}"
        )
    linearised: Linearisation | FusedLinearisation = f.jacobian(x, padding).linearised
    if not isinstance(linearised, Linearisation):  # the fused kernels do not form probabilities
        q, k, v, o = (upcast_half(t) for t in (linearised.q, linearised.k, linearised.v, linearised.o))
        linearised = Linearisation(q, k, v, o, linearised.normaliser, linearised.pattern, linearised.padding)
    rows = [
        block.p.reshape(f.heads, block.last - block.first, -1).amax(-1)
        if block.stop > block.start
        else x.new_zeros(f.heads, block.last - block.first)
        for block in linearised.blocks()
    ]
    probabilities = torch.cat(rows, 1)
    return probabilities if padding is None else probabilities[:, padding]


def argmax_share(f: SelfAttention, x: Tensor, threshold: float = 0.99, padding: Tensor | None = None) -> Tensor:
    """Compute the share of queries that give at least `threshold` of their attention to one key.

    A share of 1 means that the layer is in the regime of large tokens. Rows that attend to nothing count as 0, and rows
    with a single key (the first row of causal attention) count as 1. `largest_probabilities` has the distribution.

    Args:
        f: The layer.
        x: Tokens (n, d).
        threshold: Probability above 0 and up to 1.
        padding: Boolean mask (n,), True for real tokens.

    Returns:
        The share for each head, (h,).

    Raises:
        InputError: If an argument has the wrong shape or range, or no token is real.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> argmax_share(SelfAttention(eye, eye, eye), 10 * eye), argmax_share(SelfAttention(eye, eye, eye), eye)
        (tensor([1.], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
        raise InputError(f"argmax_share: expected a threshold above 0 and up to 1, got {threshold!r}")
    probabilities = largest_probabilities(f, x, padding)
    if not probabilities.shape[1]:
        raise InputError("argmax_share: expected at least one real token, got padding that is False everywhere")
    return (probabilities >= threshold).double().mean(-1)


def value_matrix(f: SelfAttention) -> Tensor:
    """Return `Σ_h W_h V_h`, or the V_h stacked if there is no output projection, (d_out, d)."""
    values: Tensor = f.wv.unflatten(0, (f.kv_heads, -1)).repeat_interleave(f.heads // f.kv_heads, 0).flatten(0, 1)
    return values if f.wo is None else f.wo @ values


def _check_scales(scales: Iterable[float]) -> list[float]:
    try:
        checked = [] if isinstance(scales, str) else [float(scale) for scale in scales]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # not numbers, too large, or tensors of several
        checked = []
    if not checked or not all(0 < scale < math.inf for scale in checked):
        raise InputError(f"lipschitz_at_scales: expected positive finite factors ρ, as in (1, 2, 4), got {scales!r}")
    return checked


def _argmax_without_ties(f: SelfAttention, x: Tensor) -> ArgmaxKeys:
    """Return the argmax of each row of scores; raise if there is no limit."""
    try:
        found = argmax_keys(f, x)
    except InputError as error:
        raise InputError(f"large_radius_limit: {error}") from None
    if (tie := found.first_tie) is not None:
        raise InputError(
            f"large_radius_limit: expected one largest score in each row, got a tie in head {tie[0]}, row "
            f"{tie[1]} (gap {float(found.lead[tie]):.3g}); move a token: at a tie the norm grows like ρ²"
        )
    return found


def _limit_operator(f: SelfAttention, argmax: Tensor) -> LinearOperator:
    """Return `E ↦ (Σ_h W_h V_h ε_{m_h(i)})_i`; it gathers rows, and its adjoint scatters them."""
    (h, n), groups = argmax.shape, f.heads // f.kv_heads
    index = argmax.clamp(min=0).unsqueeze(-1)
    attends = (argmax >= 0).unsqueeze(-1).to(f.dtype)

    def matvec(v: Tensor) -> Tensor:
        values: Tensor = (v.view(n, f.d) @ f.wv.T).unflatten(-1, (f.kv_heads, -1)).transpose(0, 1)
        values = values.repeat_interleave(groups, 0)
        gathered = (values.gather(1, index.expand(-1, -1, values.shape[-1])) * attends).transpose(0, 1).flatten(1)
        return (gathered if f.wo is None else gathered @ f.wo.T).flatten()

    def rmatvec(u: Tensor) -> Tensor:
        g = u.view(n, f.d_out)
        heads: Tensor = (g if f.wo is None else g @ f.wo).unflatten(-1, (h, -1)).transpose(0, 1) * attends
        scattered = torch.zeros_like(heads).scatter_add_(1, index.expand_as(heads), heads)
        summed: Tensor = scattered.unflatten(0, (f.kv_heads, groups)).sum(1).transpose(0, 1).flatten(1)
        return (summed @ f.wv).flatten()

    return FunctionOperator(matvec, rmatvec, (n * f.d_out, n * f.d), dtype=f.dtype, device=f.device)


def _check_one_sequence(f: SelfAttention, x: Tensor) -> tuple[SelfAttention, Tensor]:
    if not isinstance(f, SelfAttention) or not isinstance(x, Tensor) or x.dim() != 2:
        raise InputError(
            "expected a SelfAttention and tokens of shape (n, d), got "
            f"{type(f).__name__} and {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}"
        )
    return promote_half(f, x)
