"""Gains per token: the amplification if one token alone is perturbed, or if one output alone counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.token_columns import TokenColumns
from howsmooth.display import Displayed
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.estimate import check_token_strings
from howsmooth.lipschitz.local import Map, jacobian, promote_half
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import FunctionOperator, LinearOperator
from howsmooth.spectral.result import CONVERGED, REMEDY
from howsmooth.spectral.solver import Solver, SolverOptions

TOKENS_PER_BATCH = 16  # tokens solved at once: enough for batched products, and vectors that stay in the cache


@dataclass(frozen=True, eq=False)
class TokenGains(Displayed):
    """One norm per token, each with an interval.

    All intervals together are valid with probability `confidence`.

    Attributes:
        of: "input" (norms of block columns of J), "output" (norms of block rows) or "own" (norms of the derivative of
            an output in its own token, with all that it attends to fixed).
        value: The norms, (n,).
        lower: Lower ends, (n,).
        upper: Upper ends, (n,).
        confidence: Probability that all intervals contain their norms.
        status: Status of the solve of each token.
        tokens: The tokens as strings; see `with_tokens`.
    """

    of: str
    value: Tensor
    lower: Tensor
    upper: Tensor
    confidence: float
    status: list[str]
    tokens: tuple[str, ...] | None = None

    @property
    def largest(self) -> float:
        """The largest norm of all tokens."""
        return float(self.value.max())

    def with_tokens(self, strings: Sequence[str]) -> TokenGains:
        """Return a copy with the tokens as strings, which the notebook display uses.

        Args:
            strings: One string for each token, special tokens included.

        Raises:
            InputError: If the number of strings is not the number of tokens.
        """
        return replace(self, tokens=check_token_strings(strings, len(self.value)))


def token_gains(
    f: Map,
    x: Tensor,
    *,
    of: str = "input",
    solver: Solver = Solver(tol=1e-2),
    strict: bool = True,
    **options: Unpack[SolverOptions],
) -> TokenGains:
    """Compute the norm of each token's block column, or block row, of the Jacobian of f at x.

    The tokens are solved in batches. For the block columns of a `SelfAttention` a product uses that only one token
    moves (`howsmooth.attention.token_columns`); for other maps, and block rows, it is a product with all of J.

    Args:
        f: A `SelfAttention` or another torch callable.
        x: Tokens (n, d).
        of: "input": `‖J[:, j]‖₂`, the largest change of the whole output per unit perturbation of token j alone. Their
            maximum is the amplification of perturbations of a single token. Their sum bounds the amplification of
            perturbations of unit norm per token (an ∞→2 norm).
            "output": `‖J[i, :]‖₂`, the largest change of output i per unit perturbation of all tokens. Their maximum is
            the norm of J from the Euclidean norm to the largest token norm (2→∞).
        solver: The options of each solve; the confidence is that of all n intervals together.
        strict: Whether to raise NotConverged if `tol` is not reached, or to return the result with its statuses.
        **options: Fields of the solver to replace.

    Returns:
        The norms and their intervals.

    Raises:
        InputError: If x is not (n, d), or, for of="output", f(x) does not have one row per token.
        NotConverged: If `strict` and the tolerance was not reached for all tokens.

    Example:
        >>> scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> token_gains(lambda x: scale * x, torch.zeros(2, 3, dtype=torch.float64)).value
        tensor([1., 2.], dtype=torch.float64)
    """
    if of not in ("input", "output"):
        raise InputError(f'expected of="input" or of="output", got {of!r}')
    solver = replace(solver, **options)
    f, x = promote_half(f, x)
    if x.dim() != 2:
        raise InputError(f"expected tokens of shape (n, d), got {tuple(x.shape)}")
    n = x.shape[0]
    values, lowers, uppers = list[Tensor](), list[Tensor](), list[Tensor]()
    status = list[str]()
    blocks_of = _token_blocks(f, x, of)
    for tokens in torch.arange(n, device=x.device).split(TOKENS_PER_BATCH):
        found = singular_values(blocks_of(tokens), solver=solver.divided(n), strict=False)
        for parts, part in ((values, found.value), (lowers, found.lower), (uppers, found.upper)):
            parts.append(part[:, 0])
        status += found.status
    gains = TokenGains(of, torch.cat(values), torch.cat(lowers), torch.cat(uppers), solver.confidence, status)
    failed = [s for s in status if s != CONVERGED]
    if strict and failed:
        raise NotConverged(
            f"expected relative width {solver.tol:g} for all {n} tokens, got {failed[0]!r} for {len(failed)} "
            f"of them; {REMEDY[failed[0]]}; all are in .partial, strict=False returns them",
            gains,
        )
    return gains


def _token_blocks(f: Map, x: Tensor, of: str) -> Callable[[Tensor], LinearOperator]:
    """Return a function of tokens to a batch of operators: their block columns of J, or transposed block rows."""
    n = x.shape[0]
    if isinstance(f, SelfAttention):
        if of == "input":
            return TokenColumns(f, x, torch.arange(min(n, TOKENS_PER_BATCH))).at
        # One copy of the sequence per token, so that one batched product serves all tokens.
        return lambda tokens: _blocks(f.jacobian(x.expand(len(tokens), *x.shape)), n, tokens, of)
    J = jacobian(f, x)
    output = J.image.shape
    if of == "output" and (len(output) != 2 or output[0] != n):
        raise InputError(f"expected an output of shape ({n}, width), one token for each of x, got {tuple(output)}")
    return lambda tokens: _blocks(J, n, tokens, of)


def _blocks(J: LinearOperator, n: int, tokens: Tensor, of: str) -> LinearOperator:
    """Return the blocks of J, which is one Jacobian at n tokens or a batch of len(tokens) copies of it."""
    t, (rows, cols) = len(tokens), J.shape
    forward: Callable[[Tensor], Tensor] = J.matvec if J.batch else _for_each_row(J.matvec)
    transpose: Callable[[Tensor], Tensor] = J.rmatvec if J.batch else _for_each_row(J.rmatvec)
    if of == "output":  # a block row is the transpose of a block column of Jᵀ
        forward, transpose, rows, cols = transpose, forward, cols, rows
    width = cols // n

    def matvec(v: Tensor) -> Tensor:
        embedded = v.new_zeros(t, n, width)
        embedded[torch.arange(t, device=v.device), tokens] = v
        return forward(embedded.flatten(1))

    def rmatvec(u: Tensor) -> Tensor:
        return transpose(u).view(t, n, width)[torch.arange(t, device=u.device), tokens]

    def likewise(make: Callable[[], LinearOperator | None]) -> Callable[[], LinearOperator | None]:
        def blocks() -> LinearOperator | None:
            other = make()
            return None if other is None else _blocks(other, n, tokens, of)

        return blocks

    blocks = FunctionOperator(
        matvec,
        rmatvec,
        (rows, width),
        dtype=J.dtype,
        device=J.device,
        batch=(t,),
        workspace=J.workspace,
        held=J.held,
        precise=likewise(J.precise),
        perturbed=likewise(J.perturbed),
    )
    blocks.copy_rounding(J)
    return blocks


def _for_each_row(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda vectors: torch.stack([product(vector) for vector in vectors])
