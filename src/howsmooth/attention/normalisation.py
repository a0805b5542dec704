"""LayerNorm and RMSNorm: the map in front of attention, which bounds the norms of its tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention.weights import GivenWeights, converted_weight
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


class Normalisation(GivenWeights):
    """LayerNorm x ↦ g ∘ z + b with z = (x − mean)/√(var + eps), or RMSNorm, without the mean, if not `centred`.

    For every x, `|z| < √d`, and Σ z = 0 if centred: the outputs fill the interior of an ellipsoid.

    Args:
        gain: factors g, (d,).
        bias: offsets b, (d,); none by default.
        eps: number ≥ 0 added to the variance.
        centred: whether the mean is subtracted.

    Raises:
        InputError: if the weights are not finite tensors of one shape (d,), or eps is not a finite number ≥ 0.

    Example:
        >>> norm = Normalisation(torch.ones(4, dtype=torch.float64))
        >>> norm(torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64))
        tensor([ 1.0000,  1.0000, -1.0000, -1.0000], dtype=torch.float64)
    """

    gain: Tensor
    bias: Tensor | None

    def __init__(
        self,
        gain: Float[Tensor, " d"],
        bias: Float[Tensor, " d"] | None = None,
        eps: float = 1e-5,
        centred: bool = True,
    ) -> None:
        """Check and register the weights."""
        super().__init__()
        weights = {"gain": gain} if bias is None else {"gain": gain, "bias": bias}
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
                got = f"{tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(
                    f"Normalisation: expected the {name} as a tensor of a floating dtype, got {got}; use "
                    "torch.tensor and .float()"
                )
        if gain.dim() != 1 or not len(gain) or (bias is not None and bias.shape != gain.shape):
            raise InputError(
                "Normalisation: expected a gain (d,), d ≥ 1, and a bias of the same shape, got "
                f"{tuple(gain.shape)} and {None if bias is None else tuple(bias.shape)}"
            )
        if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
            raise InputError(f"Normalisation: expected eps as a finite number from 0, got {eps!r}")
        for name, tensor in weights.items():
            if not torch.isfinite(tensor).all():
                raise InputError(f"Normalisation: expected finite weights, got NaN or ∞ in the {name}")
        self.register_weight("gain", gain)
        self.register_weight("bias", bias)
        self.eps, self.centred = eps, centred

    @property
    def d(self) -> int:
        """Width of the tokens."""
        return self.gain.shape[0]

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor:
            """See `forward`."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Normalise tokens (…, d)."""
        z, _ = self.standardise(x)
        return self.affine(z)

    def standardise(self, x: Float[Tensor, "*b d"]) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b 1"]]:
        """Return z (…, d), before gain and bias, and the deviation √(var + eps) (…, 1) that x was divided by."""
        if not isinstance(x, Tensor) or x.shape[-1:] != (self.d,):
            raise InputError(
                f"Normalisation: expected tokens (…, {self.d}), got "
                + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
            )
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        deviation = (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return x / deviation, deviation

    def affine(self, z: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return g ∘ z + b."""
        bias = self.bias
        return self.gain * z if bias is None else self.gain * z + bias

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Normalisation:
        """Return a copy in another dtype or on another device, as `SelfAttention.converted` does."""
        gain, bias = (converted_weight(t, dtype, device) for t in (self.gain, self.bias))
        assert gain is not None
        return Normalisation(gain, bias, self.eps, self.centred)

    def extra_repr(self) -> str:
        """Describe the map."""
        return f"d={self.d}, eps={self.eps:g}, centred={self.centred}, {self.gain.dtype}"
