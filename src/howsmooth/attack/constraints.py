"""Constraint sets for the tokens of an attack.

In suitable coordinates y, every set here but one kind of `Near` is a ball (or a sphere) for each token:

    x = decode(y),  |y_i| ≤ radius

with `decode` affine. An ascent works in the coordinates y: the projection rescales tokens that are too long, and the
gradient is the transpose of the linear part of `decode` applied to the gradient in x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attack.checks import check_entries, check_size
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError
from howsmooth.norms import NORMS


class Constraint:
    """A set of token sequences in which each token's coordinates fill a ball. Shapes are (…, n, d) throughout."""

    @property
    def coordinate_radius(self) -> float:
        """The radius of the ball in coordinates."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        """Return the coordinates y of tokens x."""
        return x

    def decode(self, y: Tensor) -> Tensor:
        """Return the tokens x with coordinates y."""
        return y

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Convert a gradient in x to the gradient in y."""
        return gradient

    def project(self, y: Tensor) -> Tensor:
        """Return the nearest point of the set, in coordinates."""
        return y * (self.coordinate_radius / token_norms(y).clamp(min=self.coordinate_radius))

    def project_to_subspace(self, y: Tensor) -> Tensor:
        """Project onto the linear subspace that contains the set, if it is not the whole space."""
        return y

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw coordinates of random points of the set, float64 on the CPU: directions and norms are uniform."""
        y = self.project_to_subspace(torch.randn(*shape, generator=generator, dtype=torch.float64))
        norms = self.coordinate_radius * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64)
        return self.project(y * (norms / token_norms(y)))

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        """Return whether all tokens are in the set, up to `tol` relative to its radius."""
        return self.excess(self.encode(x)) <= tol * self.coordinate_radius

    def excess(self, y: Tensor) -> float:
        """Return the largest distance of a token outside the set, in coordinates; negative inside."""
        return float((token_norms(y) - self.coordinate_radius).max())

    def check(self, n: int, d: int) -> None:
        """Refuse tokens (n, d) of a shape that does not fit this set."""


@dataclass(frozen=True)
class _AroundOrigin(Constraint):
    """What a ball and a sphere share.

    Attributes:
        radius: the radius R > 0.
    """

    radius: float

    def __post_init__(self) -> None:
        """Check the radius."""
        check_size(type(self).__name__, "radius", self.radius)

    @property
    def coordinate_radius(self) -> float:
        """The radius R."""
        return self.radius


@dataclass(frozen=True)
class Ball(_AroundOrigin):
    """Each token within `radius` of the origin: B_R^n.

    Example:
        >>> Ball(2.0).project(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([[2., 0.],
                [0., 1.]])
    """


@dataclass(frozen=True)
class Sphere(_AroundOrigin):
    """Each token at distance `radius` from the origin.

    Example:
        >>> Sphere(2.0).project(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([[2., 0.],
                [0., 2.]])
    """

    def project(self, y: Tensor) -> Tensor:
        """Rescale every token to norm R; a token at the origin goes to R times the first unit vector."""
        norms = token_norms(y)
        first_axis = torch.zeros_like(y)
        first_axis[..., 0] = 1  # all points of the sphere are equally near to the origin
        return self.radius * torch.where(norms > 0, y / torch.where(norms > 0, norms, 1), first_axis)

    def excess(self, y: Tensor) -> float:
        """Return the largest distance of a token from the sphere."""
        return float((token_norms(y) - self.radius).abs().max())


@dataclass(frozen=True, eq=False, repr=False)
class Ellipsoid(Constraint):
    """The possible outputs of a normalisation: x = g∘z + b with |z_i| ≤ √d, and Σz = 0 if it is centred.

    The coordinates are z. A channel whose gain is zero equals its bias for every z.

    Attributes:
        norm: the LayerNorm (centred) or RMSNorm, with its gain and bias (d,).

    Example:
        >>> from howsmooth.attention.normalisation import Normalisation
        >>> ellipsoid = Ellipsoid(Normalisation(torch.tensor([2.0, 1.0]), centred=False))
        >>> ellipsoid.contains(torch.tensor([[2.0, 1.0]])), ellipsoid.contains(torch.tensor([[1.0, 2.0]]))
        (True, False)
    """

    norm: Normalisation

    def __post_init__(self) -> None:
        """Check the normalisation."""
        if not isinstance(self.norm, Normalisation):
            raise InputError(f"Ellipsoid: expected a Normalisation, got {type(self.norm).__name__}")
        if self.norm.centred and self.norm.d < 2:
            raise InputError("Ellipsoid: expected a width of at least 2 with a centred normalisation, got 1")
        for name in ("gain", "bias"):
            if getattr(self.norm, name) is not None:
                check_entries("Ellipsoid", f"a {name}", getattr(self.norm, name))

    @property
    def coordinate_radius(self) -> float:
        """√d, the largest norm of z."""
        return math.sqrt(self.norm.d)

    def __repr__(self) -> str:
        """Return the width instead of the weights."""
        return f"Ellipsoid(d={self.norm.d}, centred={self.norm.centred})"

    def encode(self, x: Tensor) -> Tensor:
        """Return z with g∘z + b = x in the channels of non-zero gain."""
        gain, bias = self._weights(x)
        nonzero = gain != 0
        z = torch.where(nonzero, (x - bias) / torch.where(nonzero, gain, 1), 0)
        if self.norm.centred and not nonzero.all():  # channels of zero gain are free: they make the sum zero
            z = z - torch.where(nonzero, 0, z.sum(-1, keepdim=True) / (~nonzero).sum())
        return z

    def decode(self, y: Tensor) -> Tensor:
        """Return g∘y + b."""
        gain, bias = self._weights(y)
        return gain * y + bias

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Return the gradient in z: multiplied by the gain, and centred if the normalisation is."""
        return self.project_to_subspace(self._weights(gradient)[0] * gradient)

    def project(self, y: Tensor) -> Tensor:
        """Project onto the subspace, then onto the ball; its centre is in the subspace, so the order is exact."""
        return super().project(self.project_to_subspace(y))

    def project_to_subspace(self, y: Tensor) -> Tensor:
        """Subtract each token's mean, if the normalisation is centred."""
        return y - y.mean(-1, keepdim=True) if self.norm.centred else y

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        """Return whether all tokens are possible outputs, up to `tol` relative to √d."""
        z = self.encode(x)
        mismatch = float((self.decode(z) - x).abs().max())  # of a channel with zero gain and its bias
        mean = float(z.mean(-1).abs().max()) if self.norm.centred else 0.0
        return max(self.excess(z), mean, mismatch) <= tol * self.coordinate_radius

    def check(self, n: int, d: int) -> None:
        """Refuse tokens whose width is not that of the normalisation."""
        if d != self.norm.d:
            raise InputError(f"Ellipsoid: expected tokens of width {self.norm.d}, got {d}")

    def _weights(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gain and the bias with the dtype and device of `like`."""
        gain = self.norm.gain.detach().to(like)
        return gain, torch.zeros_like(gain) if self.norm.bias is None else self.norm.bias.detach().to(like)


@dataclass(frozen=True, eq=False, repr=False)
class Near(Constraint):
    """Each token within `eps` of the corresponding row of `x0`, or all together. The coordinates are x − x0.

    Attributes:
        x0: the centre (n, d), finite, of a floating dtype.
        eps: the largest norm of x − x0, > 0.
        norm: "token" if each token may move by eps, "frobenius" if eps is for all of them together.

    Example:
        >>> near = Near(torch.zeros(2, 3), 0.5)
        >>> near.contains(torch.full((2, 3), 0.2)), near.contains(torch.ones(2, 3))
        (True, False)
    """

    x0: Tensor
    eps: float
    norm: str = "token"

    def __post_init__(self) -> None:
        """Check the centre and eps."""
        check_size("Near", "eps", self.eps)
        if self.norm not in NORMS:
            raise InputError(f"Near: expected norm as one of {', '.join(NORMS)}, got {self.norm!r}")
        if not isinstance(self.x0, Tensor) or self.x0.dim() != 2 or not self.x0.dtype.is_floating_point:
            shape = tuple(self.x0.shape) if isinstance(self.x0, Tensor) else type(self.x0).__name__
            raise InputError(f"Near: expected x0 as tokens (n, d) of a floating dtype, got {shape}")
        if not torch.isfinite(self.x0).all():
            raise InputError("Near: expected finite tokens x0, got NaN or ∞")
        check_entries("Near", "tokens x0", self.x0)

    @property
    def coordinate_radius(self) -> float:
        """The largest norm eps."""
        return self.eps

    def project(self, y: Tensor) -> Tensor:
        """Return the nearest point of the set, in coordinates."""
        return NORMS[self.norm].project(y, self.eps)

    def excess(self, y: Tensor) -> float:
        """Return how far the norm of y is above eps; negative inside."""
        return super().excess(y) if NORMS[self.norm].each_token else float((y.norm(dim=(-2, -1)) - self.eps).max())

    def __repr__(self) -> str:
        """Return the shape of x0 instead of its entries."""
        n, d = self.x0.shape
        return f"Near(n={n}, d={d}, eps={self.eps:.6g}, norm={self.norm!r})"

    def encode(self, x: Tensor) -> Tensor:
        """Return x − x0."""
        return x - self.x0.detach().to(x)

    def decode(self, y: Tensor) -> Tensor:
        """Return x0 + y."""
        return y + self.x0.detach().to(y)

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        """Return whether all tokens are within eps, up to `tol` relative to the larger of eps and max |x0|."""
        # The rounding of x − x0 is relative to x0, however small eps is.
        return self.excess(self.encode(x)) <= tol * max(self.eps, float(self.x0.abs().max()))

    def check(self, n: int, d: int) -> None:
        """Refuse tokens whose shape is not that of x0."""
        if (n, d) != tuple(self.x0.shape):
            raise InputError(f"Near: expected tokens of the shape of x0, {tuple(self.x0.shape)}, got {(n, d)}")


def token_norms(y: Tensor) -> Tensor:
    """Return the norm of each token, (…, n, d) → (…, n, 1)."""
    return torch.linalg.vector_norm(y, dim=-1, keepdim=True)
