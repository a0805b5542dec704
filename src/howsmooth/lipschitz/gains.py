"""Gains per token: what moving one token does, how far one output can be moved, how strongly it follows its own token.

The last is ‖∂₁G(x_i, μ)‖ for every token i: output i moves with its own token while what it sees stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.local import jacobian, single_at_least
from howsmooth.spectral import FunctionOperator, LinearOperator, singular_values
from howsmooth.spectral.result import CONVERGED, REMEDY
from howsmooth.spectral.rounding import allowance, perturbation_norm

# Sequences solved side by side: a product holds this many copies of the tokens.
TOKENS_AT_ONCE = 32
SMALL = 96  # matrices of at most this many rows or columns are stored, and their singular values exact
AT_ONCE = 64  # operators solved side by side: as many as leave their vectors in a cache
LOOSE = 0.05  # relative width for tokens that cannot be the largest


@dataclass(frozen=True, eq=False)
class TokenGains:
    """One certified constant per token, all intervals together valid with probability `confidence`."""

    of: str
    value: Tensor  # (n,)
    lower: Tensor
    upper: Tensor
    confidence: float
    status: list[str]

    @property
    def largest(self) -> float:
        """max_j ‖J[:, j]‖ (one token moves, all outputs count) or max_i ‖J[i, :]‖ (all move, one output counts)."""
        return float(self.value.max())


def token_gains(
    f: SelfAttention | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    of: str = "input",
    tol: float = 1e-2,
    confidence: float = 0.999,
    seed: int = 0,
    strict: bool = True,
) -> TokenGains:
    """The norm of each token's own part of D_X f, for x (n, d).

    of="input": ‖J[:, j]‖₂, how far the whole output moves per unit move of token j alone. Their maximum is the gain
    from perturbations that touch one token; with the budget spent per token instead of in total (an ∞→2 norm), no
    perturbation gains more than their sum.
    of="output": ‖J[i, :]‖₂, how far output i alone can be moved by a unit perturbation of all tokens. Their maximum is
    exactly the norm of J from the Euclidean norm to the largest token norm (2→∞).
    """
    if of not in ("input", "output"):
        raise InputError(f'expected of="input" or of="output", got {of!r}')
    f, x = single_at_least(f, x)
    if x.dim() != 2:
        raise InputError(f"expected tokens of shape (n, d), got {tuple(x.shape)}")
    n = x.shape[0]
    values, lowers, uppers, status = [], [], [], []
    share = 1 - (1 - confidence) / n  # each token gets an equal part of the failure probability
    for tokens in torch.arange(n, device=x.device).split(TOKENS_AT_ONCE):
        found = singular_values(_tokens_operator(f, x, tokens, of), tol=tol, confidence=share, seed=seed, strict=False)
        for parts, part in ((values, found.value), (lowers, found.lower), (uppers, found.upper)):
            parts.append(part[:, 0])
        status += found.status
    gains = TokenGains(of, torch.cat(values), torch.cat(lowers), torch.cat(uppers), confidence, status)
    failed = [s for s in status if s != CONVERGED]
    if strict and failed:
        raise NotConverged(
            f"expected relative width {tol:g} for all {n} tokens, got {failed[0]!r} for {len(failed)} "
            f"of them; {REMEDY[failed[0]]}; all are in .partial, strict=False returns them",
            gains,
        )
    return gains


def _tokens_operator(f, x: Tensor, tokens: Tensor, of: str) -> LinearOperator:
    """A batch of operators, one for each of the tokens: its columns of J, or the transpose of its rows."""
    if isinstance(f, SelfAttention):
        return _at_tokens(f.jacobian(x.expand(len(tokens), *x.shape)), x.shape[0], tokens, of)
    whole = jacobian(f, x)
    output = whole.image.shape
    if of == "output" and (len(output) != 2 or output[0] != x.shape[0]):
        raise InputError(
            f"expected an output of shape ({x.shape[0]}, width), one token for each of x, got {tuple(output)}"
        )
    return _at_tokens(whole, x.shape[0], tokens, of)


def _at_tokens(whole: LinearOperator, n: int, tokens: Tensor, of: str) -> LinearOperator:
    """The same of J at n tokens, or of a batch of as many J as there are `tokens`."""
    t, (rows, cols) = len(tokens), whole.shape
    forward, transpose = whole.matvec, whole.rmatvec
    if not whole.batch:
        forward, transpose = (
            lambda v, product=product: torch.stack([product(row) for row in v])
            for product in (whole.matvec, whole.rmatvec)
        )
    if of == "output":  # rows of J are columns of its transpose
        forward, transpose, rows, cols = transpose, forward, cols, rows
    width = cols // n

    def matvec(v: Tensor) -> Tensor:
        spread = v.new_zeros(t, n, width)
        spread[torch.arange(t, device=v.device), tokens] = v
        return forward(spread.flatten(1))

    def rmatvec(u: Tensor) -> Tensor:
        return transpose(u).view(t, n, width)[torch.arange(t, device=u.device), tokens]

    def also(make: Callable[[], LinearOperator | None]) -> Callable[[], LinearOperator | None]:
        def made() -> LinearOperator | None:
            other = make()
            return None if other is None else _at_tokens(other, n, tokens, of)

        return made

    chosen = FunctionOperator(
        matvec,
        rmatvec,
        (rows, width),
        dtype=whole.dtype,
        device=whole.device,
        batch=(t,),
        workspace=whole.workspace,
        held=whole.held,
        precise=also(whole.precise),
        perturbed=also(whole.perturbed),
    )
    chosen.copy_rounding(whole)
    return chosen


def own_norms(operator: LinearOperator, *, tol: float = 1e-3, confidence: float = 0.999, seed: int = 0) -> TokenGains:
    """The norms of a batch of n operators (d_out, d), all intervals together valid with this confidence.

    Small ones, and single heads of any layer, by exact singular values (their intervals allow for rounding and hold
    for certain). Large ones by Lanczos: all to 5 %, then those that may be the largest to `tol`.

    >>> stretch = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]], dtype=torch.float64)
    >>> from howsmooth.spectral import MatrixOperator
    >>> own_norms(MatrixOperator(stretch)).value
    tensor([3., 2.], dtype=torch.float64)
    """
    if len(operator.batch) != 1:
        raise InputError(f"expected a batch of n operators, got batch {operator.batch}")
    stored = _stored(operator)
    if stored is not None:
        value = torch.linalg.matrix_norm(stored.double(), ord=2)
        slack = (allowance(operator) + max(stored.shape[-2:]) * torch.finfo(torch.float64).eps) * value.max()
        slack = slack + 4 * perturbation_norm(operator, stored)
        return TokenGains("own", value, (value - slack).clamp_min(0), value + slack, 1.0, ["exact"] * len(value))
    n = operator.batch[0]
    share = 1 - (1 - confidence) / (2 * n)  # two passes, each token an equal part of the failure probability
    found = _solve(operator, torch.arange(n), max(tol, LOOSE), share, seed)
    value, lower, upper, status = found
    close = (upper >= lower.max()).nonzero().flatten()
    if tol < LOOSE:
        value[close], low, high, again = _solve(operator, close, tol, share, seed + 1)
        lower[close], upper[close] = torch.maximum(lower[close], low), torch.minimum(upper[close], high)
        for i, said in zip(close.tolist(), again, strict=True):
            status[i] = said
    return TokenGains("own", value, lower, upper, confidence, status)


def own_operator(g: Callable[[Tensor], Tensor], x: Tensor, *, trusted: bool = False) -> LinearOperator:
    """The derivative at x (n, d) of a map g that treats places one by one, as n operators (d_out, d) side by side.

    trusted: its derivatives are known to be right, which cannot be seen where all of them are lost in rounding.
    """

    def on_places(z: Tensor) -> Tensor:
        y = g(z)
        if not isinstance(y, Tensor) or y.dim() != 2 or len(y) != len(x):
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InputError(f"expected one output for each of {len(x)} places, got {got}")
        # The output may not depend on the place at all, which automatic differentiation refuses: 0·z makes it zero.
        return y + 0 * z.sum(-1, keepdim=True)

    whole = AutodiffJacobian(on_places, x, trusted=trusted)
    n, d_out = whole.image.shape
    # Places are on their own iff moving each t_i times as far moves each output t_i times as far.
    generator = torch.Generator().manual_seed(0)
    w, t = (torch.randn(n, width, generator=generator).to(x) for width in (x.shape[1], 1))
    once, scaled = (whole.matvec(v.flatten()).view(n, d_out) for v in (w, t * w))
    noise = 64 * whole.roundoff * (1 + float(x.abs().max())) * float(whole.image.abs().max())
    if float((scaled - t * once).abs().max()) > 1e-3 * float(once.abs().max()) + noise:
        raise InputError(
            "expected G(x, μ) to treat the places x one by one, got an output that moves with another "
            "place; hold the measure fixed"
        )

    def side_by_side(jacobian: LinearOperator, perturbed: Callable | None = None) -> LinearOperator:
        places = FunctionOperator(
            lambda v: jacobian.matvec(v.flatten()).view(n, d_out),
            lambda u: jacobian.rmatvec(u.flatten()).view(n, -1),
            (d_out, x.shape[1]),
            dtype=x.dtype,
            device=x.device,
            batch=(n,),
            perturbed=perturbed,
        )
        places.copy_rounding(jacobian)
        return places

    return side_by_side(whole, lambda: side_by_side(whole.perturbed()))


def plus_identity(operator: LinearOperator) -> LinearOperator:
    """I + J, for what a residual connection adds."""
    if operator.shape[0] != operator.shape[1]:
        raise InputError(f"expected an output as wide as the input for a residual, got {operator.shape}")

    def perturbed() -> LinearOperator | None:
        moved = operator.perturbed()
        return None if moved is None else plus_identity(moved)

    out = FunctionOperator(
        lambda v: v + operator.matvec(v),
        lambda u: u + operator.rmatvec(u),
        operator.shape,
        dtype=operator.dtype,
        device=operator.device,
        batch=operator.batch,
        workspace=operator.workspace,
        held=operator.held,
        perturbed=perturbed,
    )
    # What is hidden is a part of J; signs show its size, and where J is small that is little beside I.
    signs = torch.randn(*operator.batch, operator.shape[1], generator=torch.Generator().manual_seed(0)).sign()
    size = float(operator.matvec(signs.to(operator.device, operator.dtype)).norm(dim=-1).max())
    out.copy_rounding(operator)
    out.hidden = operator.hidden * min(1.0, 2 * size)
    return out


def _stored(operator: LinearOperator) -> Tensor | None:
    """The matrices themselves (up to what changes no singular value), if they are small."""
    if isinstance(operator, QueryDerivative):
        a = operator.attention
        heads = a.heads * a.wv.shape[0] // a.kv_heads
        if min(a.d_out, heads) <= SMALL and min(a.d, a.wq.shape[0]) <= SMALL:
            return operator.cores()
    return operator.dense() if max(operator.shape) <= SMALL else None


def _solve(operator: LinearOperator, tokens: Tensor, tol: float, confidence: float, seed: int):
    values, lowers, uppers, status = [], [], [], []
    for some in tokens.split(AT_ONCE):
        found = singular_values(
            _members(operator, some.to(operator.device)), tol=tol, confidence=confidence, seed=seed, strict=False
        )
        for parts, part in ((values, found.value), (lowers, found.lower), (uppers, found.upper)):
            parts.append(part[:, 0])
        status += found.status
    return torch.cat(values), torch.cat(lowers), torch.cat(uppers), status


def _members(operator: LinearOperator, tokens: Tensor) -> LinearOperator:
    """Some operators of a batch."""
    if isinstance(operator, QueryDerivative):
        return operator.at(tokens)
    if len(tokens) == operator.batch[0]:
        return operator
    n, (rows, cols) = operator.batch[0], operator.shape

    def spread(part: Tensor, width: int) -> Tensor:
        return part.new_zeros(n, width).index_copy(0, tokens, part)

    def perturbed() -> LinearOperator | None:
        moved = operator.perturbed()
        return None if moved is None else _members(moved, tokens)

    out = FunctionOperator(
        lambda v: operator.matvec(spread(v, cols))[tokens],
        lambda u: operator.rmatvec(spread(u, rows))[tokens],
        operator.shape,
        dtype=operator.dtype,
        device=operator.device,
        batch=(len(tokens),),
        perturbed=perturbed,
    )
    out.copy_rounding(operator)
    return out
