"""LayerNorm and RMSNorm: the map in front of attention, which decides how far out its tokens can be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class Normalisation:
    """x ↦ g ∘ z + b with z = (x − mean)/√(var + eps), or without the mean (RMSNorm) if not `centred`.

    Whatever x is, |z| < √d, and Σ z = 0 if centred: the outputs fill the inside of an ellipsoid.

    >>> norm = Normalisation(torch.ones(4, dtype=torch.float64))
    >>> norm(torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64))
    tensor([ 1.0000,  1.0000, -1.0000, -1.0000], dtype=torch.float64)
    """

    gain: Tensor
    bias: Tensor | None = None
    eps: float = 1e-5
    centred: bool = True

    def __post_init__(self):
        weights = {"gain": self.gain} if self.bias is None else {"gain": self.gain, "bias": self.bias}
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
                got = f"{tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(
                    f"Normalisation: expected the {name} as a tensor of a floating dtype, got {got}; use "
                    "torch.tensor and .float()"
                )
        if self.gain.dim() != 1 or not len(self.gain) or (self.bias is not None and self.bias.shape != self.gain.shape):
            raise InputError(
                "Normalisation: expected a gain (d,), d ≥ 1, and a bias of the same shape, got "
                f"{tuple(self.gain.shape)} and {None if self.bias is None else tuple(self.bias.shape)}"
            )
        if isinstance(self.eps, bool) or not isinstance(self.eps, (int, float)) or not 0 <= self.eps < math.inf:
            raise InputError(f"Normalisation: expected eps as a finite number from 0, got {self.eps!r}")
        for name, tensor in weights.items():
            if not torch.isfinite(tensor).all():
                raise InputError(f"Normalisation: expected finite weights, got NaN or ∞ in the {name}")

    @property
    def d(self) -> int:
        return self.gain.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised tokens, (…, d) → (…, d)."""
        z, _ = self.standardise(x)
        return self.place(z)

    def standardise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Z (…, d) before gain and bias, and the deviation √(var + eps) (…, 1) that x was divided by."""
        if not isinstance(x, Tensor) or x.shape[-1:] != (self.d,):
            raise InputError(
                f"Normalisation: expected tokens (…, {self.d}), got "
                + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
            )
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        deviation = (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return x / deviation, deviation

    def place(self, z: Tensor) -> Tensor:
        """G ∘ z + b."""
        return self.gain * z if self.bias is None else self.gain * z + self.bias

    def to(self, *args, **kwargs) -> Normalisation:
        bias = None if self.bias is None else self.bias.to(*args, **kwargs)
        return Normalisation(self.gain.to(*args, **kwargs), bias, self.eps, self.centred)
