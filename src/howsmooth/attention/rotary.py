"""Rotary positions of queries and keys."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


class Rotary(nn.Module):
    """Rotary positions: rotate the first r channels of queries and keys by angles that depend on the position.

    Channel c is paired with c + r/2 (as in Llama), or with the next channel if `interleaved` (as in GPT-J). The tables
    are buffers: they follow `.to()`, `copy.deepcopy` and `pickle`, but are not part of `state_dict()`.

    Args:
        cos: cosines of the angles, (positions, r) with even r.
        sin: sines of the angles, of the same shape.
        interleaved: whether pairs are neighbouring channels.

    Raises:
        InputError: if the tables have different shapes, an odd r, or entries that are not finite.

    Example:
        >>> angle = torch.tensor([[0.0, 0.0], [torch.pi / 2, torch.pi / 2]])
        >>> Rotary(angle.cos(), angle.sin())(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).round().abs()
        tensor([[1., 0.],
                [0., 1.]])
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, cos: Float[Tensor, "n r"], sin: Float[Tensor, "n r"], interleaved: bool = False) -> None:
        """Check and register the tables."""
        super().__init__()
        if cos.dim() != 2 or cos.shape != sin.shape or cos.shape[1] % 2:
            raise InputError(
                "expected rotary cos and sin of one shape (positions, r) with even r, got "
                f"{tuple(cos.shape)} and {tuple(sin.shape)}; give tables for single sequences"
            )
        if not (torch.isfinite(cos).all() and torch.isfinite(sin).all()):
            raise InputError("expected finite rotary tables, got NaN or ∞; check the angles")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.interleaved = interleaved

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor:
            """See `forward`."""

    def forward(self, x: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """Rotate x (…, n, k), whose tokens have the positions 0 … n − 1."""
        cos, sin, rotated, rest = self._parts(x)
        return torch.cat([rotated * cos + self._quarter_turn(rotated) * sin, rest], -1)

    def transpose(self, x: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """Apply the adjoint of `forward`; it is the inverse too, unless the tables contain a factor."""
        cos, sin, rotated, rest = self._parts(x)
        return torch.cat([rotated * cos - self._quarter_turn(rotated * sin), rest], -1)

    def shallow_copy(self) -> Rotary:
        """Return a module with the same tables, which an in-place `.to()` of this one leaves as it is."""
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        return other

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Rotary:
        """Return a copy in another dtype or on another device."""
        cos, sin = (t.to(dtype=dtype, device=device) for t in (self.cos, self.sin))
        return Rotary(cos, sin, self.interleaved)

    def extra_repr(self) -> str:
        """Describe the tables."""
        return f"positions={self.cos.shape[0]}, channels={self.cos.shape[1]}, interleaved={self.interleaved}"

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tables for these tokens, the channels to rotate and the other channels."""
        n, r = x.shape[-2], self.cos.shape[1]
        if n > self.cos.shape[0] or r > x.shape[-1]:
            raise InputError(
                f"expected at most {self.cos.shape[0]} tokens and a head width of at least {r} for these "
                f"rotary tables, got {n} tokens of head width {x.shape[-1]}; make tables for more positions"
            )
        return self.cos[:n], self.sin[:n], x[..., :r], x[..., r:]

    def _quarter_turn(self, x: Tensor) -> Tensor:
        """Rotate each pair of channels by 90 degrees."""
        if self.interleaved:
            return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)
