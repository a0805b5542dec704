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
    if isinstance(f, SelfAttention):
        return _at_tokens(f.jacobian(x.expand(len(tokens), *x.shape)), x.shape[0], tokens, of)
    whole = jacobian(f, x)
    output = whole.image.shape
    if of == "output" and (len(output) != 2 or output[0] != x.shape[0]):
        raise InputError(f"expected an output of shape ({x.shape[0]}, width), one token for each of x, got "
                         f"{tuple(output)}")
    return _at_tokens(whole, x.shape[0], tokens, of)


def _at_tokens(whole: LinearOperator, n: int, tokens: Tensor, of: str) -> LinearOperator:
    """The same of J at n tokens, or of a batch of as many J as there are `tokens`."""
    t, (rows, cols) = len(tokens), whole.shape
    forward, transpose = whole.matvec, whole.rmatvec
    if not whole.batch:
        forward, transpose = (lambda v, product=product: torch.stack([product(row) for row in v])
                              for product in (whole.matvec, whole.rmatvec))
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

    chosen = FunctionOperator(matvec, rmatvec, (rows, width), dtype=whole.dtype, device=whole.device, batch=(t,),
                              workspace=whole.workspace, held=whole.held, precise=also(whole.precise),
                              shaken=also(whole.shaken))
    chosen.allow_as(whole)
    return chosen
