"""An operator seen at chosen tokens: which inputs may move, which outputs count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.spectral import FunctionOperator, LinearOperator, restrict

Tokens = Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Chosen:
    """`operator` has the chosen entries only. `moved` and `seen`, (*batch, entries) or None for all, say which.

    Where sequences of a batch differ in their choice the operator keeps its shape and the others are held at zero.
    """

    operator: LinearOperator
    moved: Tensor | None
    seen: Tensor | None

    def whole_input(self, v: Tensor) -> Tensor:
        """Right singular vectors (*batch, k, ·) on all entries, zero where nothing may move."""
        v = _spread(v, self.moved)
        # In a batch the random start leaves a trace where nothing may move; without it ‖Jv‖/‖v‖ is only larger.
        return v if self.moved is None else torch.nn.functional.normalize(v * self.moved.unsqueeze(-2), dim=-1)

    def whole_output(self, u: Tensor) -> Tensor:
        """Left singular vectors (*batch, k, ·) on all entries, zero where nothing is looked at."""
        return _spread(u, self.seen)


def choose(
    operator: LinearOperator, x: Tensor, image: Tensor, tokens: Tokens, output_tokens: Tokens, padding: Tensor | None
) -> Chosen:
    """The derivative at x (…, n, d) of a map with output `image`, at chosen tokens; padded ones never count."""
    moved = _entries(tokens, padding, x, operator.batch, "tokens")
    seen = _entries(output_tokens, padding, image, operator.batch, "output_tokens")
    if _alike(moved) and _alike(seen):
        rows, cols = (
            None if mask is None else mask.reshape(-1, mask.shape[-1])[0].nonzero().flatten() for mask in (seen, moved)
        )
        return Chosen(restrict(operator, rows=rows, cols=cols), moved, seen)
    return Chosen(_held_at_zero(operator, moved, seen), moved, seen)


def _entries(tokens: Tokens, padding: Tensor | None, t: Tensor, batch: tuple[int, ...], name: str) -> Tensor | None:
    """The entries of t (…, n, width) that belong to the chosen tokens, as a mask (*batch, entries)."""
    if tokens is None and padding is None:
        return None
    if t.dim() < 2:
        raise InputError(
            f"expected a tensor with tokens on its last axis but one to choose {name}, got shape "
            f"{tuple(t.shape)}; tokens cannot be told apart in it"
        )
    mask = torch.ones(t.shape[-2], dtype=torch.bool, device=t.device) if tokens is None else _mask(tokens, t, name)
    mask = (mask if padding is None else mask & padding).expand(t.shape[:-1])
    if not mask.any(-1).all() if batch else not mask.any():
        raise InputError(
            f"expected at least one real token in {name}"
            + (", in every sequence" if batch else "")
            + ", got none; look at tokens, output_tokens and padding together"
        )
    return mask.unsqueeze(-1).expand(t.shape).reshape(*batch, -1)


def _mask(tokens: Tokens, t: Tensor, name: str) -> Tensor:
    n, chosen = t.shape[-2], torch.as_tensor(tokens, device=t.device)
    if chosen.dtype == torch.bool:
        if chosen.shape not in ((n,), t.shape[:-1]):
            raise InputError(
                f"expected {name} as a mask of shape ({n},) or {tuple(t.shape[:-1])}, got {tuple(chosen.shape)}"
            )
        return chosen
    if chosen.is_floating_point() or chosen.dim() != 1 or not len(chosen) or not ((chosen >= 0) & (chosen < n)).all():
        raise InputError(f"expected {name} as indices from 0 to {n - 1} or a mask, got {tokens!r}")
    return torch.zeros(n, dtype=torch.bool, device=t.device).index_fill(0, chosen, True)


def _alike(mask: Tensor | None) -> bool:
    return mask is None or mask.dim() == 1 or bool((mask == mask[:1]).all())


def _spread(vectors: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None or vectors.shape[-1] == mask.shape[-1]:
        return vectors
    full = vectors.new_zeros(*vectors.shape[:-1], mask.shape[-1])
    full[..., mask.reshape(-1, mask.shape[-1])[0]] = vectors
    return full


def _held_at_zero(whole: LinearOperator, moved: Tensor | None, seen: Tensor | None) -> LinearOperator:
    into = 1.0 if moved is None else moved.to(whole.dtype)
    out = 1.0 if seen is None else seen.to(whole.dtype)

    def also(make):
        def made() -> LinearOperator | None:
            other = make()
            return None if other is None else _held_at_zero(other, moved, seen)

        return made

    held = FunctionOperator(
        lambda v: whole.matvec(v * into) * out,
        lambda u: whole.rmatvec(u * out) * into,
        whole.shape,
        dtype=whole.dtype,
        device=whole.device,
        batch=whole.batch,
        workspace=whole.workspace,
        held=whole.held,
        precise=also(whole.precise),
        perturbed=also(whole.perturbed),
    )
    held.copy_rounding(whole)
    return held
