"""Restriction of a Jacobian to selected tokens: those that may be perturbed, and those whose output counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.spectral.operator import FunctionOperator, LinearOperator, restrict

TokenIndex = Sequence[int] | Tensor | None


@dataclass(frozen=True)
class TokenSelection:
    """An operator restricted to the entries of selected tokens.

    If all samples of a batch have the same selection, `operator` is the submatrix of the selected entries. Otherwise
    it keeps its shape, and all other rows and columns are zero.

    Attributes:
        operator: The restricted operator.
        input_mask: Selected entries of the input, (*batch, entries); None for all.
        output_mask: Selected entries of the output, likewise.
    """

    operator: LinearOperator
    input_mask: Tensor | None
    output_mask: Tensor | None

    def embed_input(self, v: Tensor) -> Tensor:
        """Extend right singular vectors (*batch, k, selected) by zeros to all entries of the input."""
        v = _embed(v, self.input_mask)
        if self.input_mask is None:
            return v
        # In a batch, the random start is not zero at the other entries. Without them ‖Jv‖/‖v‖ can only increase.
        return torch.nn.functional.normalize(v * self.input_mask.unsqueeze(-2), dim=-1)

    def embed_output(self, u: Tensor) -> Tensor:
        """Extend left singular vectors (*batch, k, selected) by zeros to all entries of the output."""
        return _embed(u, self.output_mask)


def select_tokens(
    operator: LinearOperator,
    x: Tensor,
    y: Tensor,
    tokens: TokenIndex,
    output_tokens: TokenIndex,
    padding: Tensor | None,
) -> TokenSelection:
    """Restrict the Jacobian of a map at x (…, n, d) with output y to selected tokens; padded tokens are excluded."""
    input_mask = _entry_mask(tokens, padding, x, operator.batch, "tokens")
    output_mask = _entry_mask(output_tokens, padding, y, operator.batch, "output_tokens")
    if _same_in_all_samples(input_mask) and _same_in_all_samples(output_mask):
        rows, cols = (
            None if mask is None else mask.reshape(-1, mask.shape[-1])[0].nonzero().flatten()
            for mask in (output_mask, input_mask)
        )
        return TokenSelection(restrict(operator, rows=rows, cols=cols), input_mask, output_mask)
    return TokenSelection(_zero_outside(operator, input_mask, output_mask), input_mask, output_mask)


def _entry_mask(
    tokens: TokenIndex, padding: Tensor | None, t: Tensor, batch: tuple[int, ...], name: str
) -> Tensor | None:
    """Return a mask (*batch, entries) of the entries of t (…, n, width) that belong to the selected tokens."""
    if tokens is None and padding is None:
        return None
    if t.dim() < 2:
        raise InputError(
            f"expected a tensor with tokens on its second-to-last axis to select {name}, got shape "
            f"{tuple(t.shape)}; it has no token axis"
        )
    mask = torch.ones(t.shape[-2], dtype=torch.bool, device=t.device)
    if tokens is not None:
        mask = _token_mask(tokens, t, name)
    mask = (mask if padding is None else mask & padding).expand(t.shape[:-1])
    if not mask.any(-1).all() if batch else not mask.any():
        raise InputError(
            f"expected at least one real token in {name}"
            + (", in every sequence" if batch else "")
            + ", got none; check tokens, output_tokens and padding together"
        )
    return mask.unsqueeze(-1).expand(t.shape).reshape(*batch, -1)


def _token_mask(tokens: Sequence[int] | Tensor, t: Tensor, name: str) -> Tensor:
    n, index = t.shape[-2], torch.as_tensor(tokens, device=t.device)
    if index.dtype == torch.bool:
        if index.shape not in ((n,), t.shape[:-1]):
            raise InputError(
                f"expected {name} as a mask of shape ({n},) or {tuple(t.shape[:-1])}, got {tuple(index.shape)}"
            )
        return index
    if index.is_floating_point() or index.dim() != 1 or not len(index) or not ((index >= 0) & (index < n)).all():
        raise InputError(f"expected {name} as indices from 0 to {n - 1} or a mask, got {tokens!r}")
    return torch.zeros(n, dtype=torch.bool, device=t.device).index_fill(0, index, True)


def _same_in_all_samples(mask: Tensor | None) -> bool:
    return mask is None or mask.dim() == 1 or bool((mask == mask[:1]).all())


def _embed(vectors: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None or vectors.shape[-1] == mask.shape[-1]:
        return vectors
    full = vectors.new_zeros(*vectors.shape[:-1], mask.shape[-1])
    full[..., mask.reshape(-1, mask.shape[-1])[0]] = vectors
    return full


def _zero_outside(whole: LinearOperator, input_mask: Tensor | None, output_mask: Tensor | None) -> LinearOperator:
    """Return an operator of the same shape whose rows and columns outside the masks are zero."""
    col_factor = 1.0 if input_mask is None else input_mask.to(whole.dtype)
    row_factor = 1.0 if output_mask is None else output_mask.to(whole.dtype)

    def likewise(make: Callable[[], LinearOperator | None]) -> Callable[[], LinearOperator | None]:
        def masked() -> LinearOperator | None:
            other = make()
            return None if other is None else _zero_outside(other, input_mask, output_mask)

        return masked

    masked_operator = FunctionOperator(
        lambda v: whole.matvec(v * col_factor) * row_factor,
        lambda u: whole.rmatvec(u * row_factor) * col_factor,
        whole.shape,
        dtype=whole.dtype,
        device=whole.device,
        batch=whole.batch,
        workspace=whole.workspace,
        held=whole.held,
        precise=likewise(whole.precise),
        perturbed=likewise(whole.perturbed),
    )
    masked_operator.copy_rounding(whole)
    masked_operator.whole = whole
    return masked_operator
