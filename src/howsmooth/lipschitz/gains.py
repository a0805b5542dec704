"""Gains per token: what moving one token does, and how far one token can be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.local import jacobian, single_at_least
from howsmooth.spectral import FunctionOperator, LinearOperator, singular_values
from howsmooth.spectral.result import CONVERGED, REMEDY

# Sequences solved side by side: a product holds this many copies of the tokens.
TOKENS_AT_ONCE = 32


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


def token_gains(f: SelfAttention | Callable[[Tensor], Tensor], x: Tensor, *, of: str = "input", tol: float = 1e-2,
                confidence: float = 0.999, seed: int = 0, strict: bool = True) -> TokenGains:
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
        raise NotConverged(f"expected relative width {tol:g} for all {n} tokens, got {failed[0]!r} for {len(failed)} "
                           f"of them; {REMEDY[failed[0]]}; all are in .partial, strict=False returns them", gains)
    return gains


def _tokens_operator(f, x: Tensor, tokens: Tensor, of: str) -> LinearOperator:
    """A batch of operators, one for each of the tokens: its columns of J, or the transpose of its rows."""
    t, n = len(tokens), x.shape[0]
    if isinstance(f, SelfAttention):
        whole = f.jacobian(x.expand(t, *x.shape))
        forward, transpose = whole.matvec, whole.rmatvec
    else:
        whole = jacobian(f, x)

        def forward(v: Tensor) -> Tensor:
            return torch.stack([whole.matvec(row) for row in v])

        def transpose(u: Tensor) -> Tensor:
            return torch.stack([whole.rmatvec(row) for row in u])

    rows, cols = whole.shape
    output = whole.image.shape[len(whole.batch) :]
    if of == "output" and (len(output) != 2 or output[0] != n):
        raise InputError(f"expected an output of shape ({n}, width), one token for each of x, got {tuple(output)}")
    if of == "output":  # rows of J are columns of its transpose
        forward, transpose, rows, cols = transpose, forward, cols, rows
    width = cols // n

    def matvec(v: Tensor) -> Tensor:
        spread = v.new_zeros(t, n, width)
        spread[torch.arange(t, device=v.device), tokens] = v
        return forward(spread.flatten(1))

    def rmatvec(u: Tensor) -> Tensor:
        return transpose(u).view(t, n, width)[torch.arange(t, device=u.device), tokens]

    def precise() -> LinearOperator | None:
        if isinstance(f, SelfAttention):
            return _tokens_operator(f.to(torch.float64), x.double(), tokens, of)
        twin = whole.precise()
        return None if twin is None else _tokens_operator(twin.f, twin.x, tokens, of)

    return FunctionOperator(matvec, rmatvec, (rows, width), dtype=x.dtype, device=x.device, batch=(t,),
                            workspace=whole.workspace, held=whole.held,
                            precise=precise if x.dtype != torch.float64 else None)
