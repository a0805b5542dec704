"""Where tokens may go. Every set here is, in coordinates of its own, a ball (or a sphere) for each token:

    x = decode(y),  |y_i| ≤ radius

with `decode` affine. An ascent lives in the coordinates y: there the projection is a clip, and the gradient is the
transpose of `decode` applied to that in x.

Arguments of attacks are checked here, too: sizes, counts, seeds and tensors that cannot be meant are refused by name.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError

SMALLEST, LARGEST = 1e-100, 1e100  # of tokens: what can be multiplied, and the product squared
SEEDS = 2**63


class Constraint:
    """A set of tokens whose coordinates fill a ball of some `radius` each. Shapes are (…, n, d) throughout."""

    radius: float

    def encode(self, x: Tensor) -> Tensor:
        """The coordinates y of tokens x."""
        return x

    def decode(self, y: Tensor) -> Tensor:
        """The tokens x with coordinates y."""
        return y

    def pull(self, gradient: Tensor) -> Tensor:
        """A gradient in x as one in y."""
        return gradient

    def project(self, y: Tensor) -> Tensor:
        """The nearest point of the set, in coordinates."""
        return y * (self.radius / length(y).clamp(min=self.radius))

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Coordinates of random points of the set: directions and distances uniform. float64, on the CPU."""
        y = self.within(torch.randn(*shape, generator=generator, dtype=torch.float64))
        distance = self.radius * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64)
        return self.project(y * (distance / length(y)))

    def within(self, y: Tensor) -> Tensor:
        """Directions that do not leave the set's subspace, where it lies in one."""
        return y

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        """Whether all tokens are in the set, up to `tol` of its radius."""
        return self.excess(self.encode(x)) <= tol * self.radius

    def excess(self, y: Tensor) -> float:
        """By how much the outermost token is outside."""
        return float((length(y) - self.radius).max())

    def check(self, n: int, d: int) -> None:
        """Refuses tokens (n, d) that this set is not made for."""


@dataclass(frozen=True)
class Ball(Constraint):
    """Each token within `radius` of the origin: B_R^n.

    >>> Ball(2.0).project(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([[2., 0.],
            [0., 1.]])
    """

    radius: float

    def __post_init__(self):
        check_size(type(self).__name__, "radius", self.radius)


@dataclass(frozen=True)
class Sphere(Constraint):
    """Each token at distance `radius` from the origin."""

    radius: float

    def __post_init__(self):
        check_size(type(self).__name__, "radius", self.radius)

    def project(self, y: Tensor) -> Tensor:
        size = length(y)
        away = torch.zeros_like(y)
        away[..., 0] = 1  # from the origin all of the sphere is equally near
        return self.radius * torch.where(size > 0, y / torch.where(size > 0, size, 1), away)

    def excess(self, y: Tensor) -> float:
        return float((length(y) - self.radius).abs().max())


@dataclass(frozen=True, eq=False)
class Ellipsoid(Constraint):
    """What a normalisation can put out: x = g∘z + b with |z_i| ≤ √d, and Σz = 0 if it is centred. Coordinates are z.

    A channel whose gain is zero is its bias, whatever z is.
    """

    norm: Normalisation

    def __post_init__(self):
        if not isinstance(self.norm, Normalisation):
            raise InputError(f"Ellipsoid: expected a Normalisation, got {type(self.norm).__name__}")
        if self.norm.centred and self.norm.d < 2:
            raise InputError("Ellipsoid: expected a width of at least 2 where the mean is taken out, got 1")
        for name in ("gain", "bias"):
            if getattr(self.norm, name) is not None:
                check_entries("Ellipsoid", f"a {name}", getattr(self.norm, name))

    @property
    def radius(self) -> float:
        return math.sqrt(self.norm.d)

    def encode(self, x: Tensor) -> Tensor:
        gain, bias = self._weights(x)
        seen = gain != 0
        z = torch.where(seen, (x - bias) / torch.where(seen, gain, 1), 0)
        if self.norm.centred and not seen.all():  # channels that nobody sees take up the sum
            z = z - torch.where(seen, 0, z.sum(-1, keepdim=True) / (~seen).sum())
        return z

    def decode(self, y: Tensor) -> Tensor:
        gain, bias = self._weights(y)
        return gain * y + bias

    def pull(self, gradient: Tensor) -> Tensor:
        return self.within(self._weights(gradient)[0] * gradient)

    def project(self, y: Tensor) -> Tensor:
        return super().project(self.within(y))  # the ball's centre is in the subspace: one after the other

    def within(self, y: Tensor) -> Tensor:
        return y - y.mean(-1, keepdim=True) if self.norm.centred else y

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        z = self.encode(x)
        hidden = float((self.decode(z) - x).abs().max())  # a channel without gain that is not its bias
        off_centre = float(z.mean(-1).abs().max()) if self.norm.centred else 0.0
        return max(self.excess(z), off_centre, hidden) <= tol * self.radius

    def check(self, n: int, d: int) -> None:
        if d != self.norm.d:
            raise InputError(f"Ellipsoid: expected tokens of width {self.norm.d}, got {d}")

    def _weights(self, like: Tensor) -> tuple[Tensor, Tensor]:
        gain = self.norm.gain.detach().to(like)
        return gain, torch.zeros_like(gain) if self.norm.bias is None else self.norm.bias.detach().to(like)


@dataclass(frozen=True, eq=False)
class Near(Constraint):
    """Each token within `eps` of its place in `x0` (n, d). Coordinates are x − x0."""

    x0: Tensor
    eps: float

    def __post_init__(self):
        check_size("Near", "eps", self.eps)
        if not isinstance(self.x0, Tensor) or self.x0.dim() != 2 or not self.x0.dtype.is_floating_point:
            shape = tuple(self.x0.shape) if isinstance(self.x0, Tensor) else type(self.x0).__name__
            raise InputError(f"Near: expected x0 as tokens (n, d) of a floating dtype, got {shape}")
        if not torch.isfinite(self.x0).all():
            raise InputError("Near: expected finite tokens x0, got NaN or ∞")
        check_entries("Near", "tokens x0", self.x0)

    @property
    def radius(self) -> float:
        return self.eps

    def encode(self, x: Tensor) -> Tensor:
        return x - self.x0.detach().to(x)

    def decode(self, y: Tensor) -> Tensor:
        return y + self.x0.detach().to(y)

    def contains(self, x: Tensor, tol: float = 1e-12) -> bool:
        # x − x0 is rounded in units of x0, however small eps is.
        return self.excess(self.encode(x)) <= tol * max(self.eps, float(self.x0.abs().max()))

    def check(self, n: int, d: int) -> None:
        if (n, d) != tuple(self.x0.shape):
            raise InputError(f"Near: expected tokens of the shape of x0, {tuple(self.x0.shape)}, got {(n, d)}")


def length(y: Tensor) -> Tensor:
    """Token norms, (…, n, d) → (…, n, 1)."""
    return torch.linalg.vector_norm(y, dim=-1, keepdim=True)


def check_size(of: str, name: str, size: float) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise InputError(f"{of}: expected a finite {name} above 0, got {size!r}")
    if not SMALLEST <= size <= LARGEST:
        raise InputError(
            f"{of}: expected {name} from {SMALLEST:g} to {LARGEST:g}, got "
            f"{min(size, sys.float_info.max):.4g}; beyond, products of tokens leave float64: "
            "put the scale into the weights"
        )


def check_entries(of: str, name: str, tensor: Tensor) -> None:
    most = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    if most > LARGEST:
        raise InputError(
            f"{of}: expected {name} with entries up to {LARGEST:g}, got {most:.4g}; beyond, products of "
            "tokens leave float64: put the scale into the weights"
        )


def check_count(of: str, name: str, number: int, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(
            f"{of}: expected {name} as a {'positive whole number' if least else 'whole number from 0'}, got {number!r}"
        )


def check_seed(of: str, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise InputError(f"{of}: expected seed as a whole number from 0 and below 2⁶³, got {seed!r}")


def another_seed(seed: int, by: int) -> int:
    """The seed `by` places further on; after the last comes the first."""
    return (seed + by) % SEEDS


def check_masses(of: str, masses: Tensor, x: Tensor) -> None:
    if not isinstance(masses, Tensor) or masses.shape not in (x.shape[:-1], x.shape[-2:-1]):
        shapes = " or ".join(dict.fromkeys(str(tuple(shape)) for shape in (x.shape[-2:-1], x.shape[:-1])))
        raise InputError(
            f"{of}: expected masses as a tensor of shape {shapes}, one for each atom, got {described(masses)}"
        )
    for wrong, name in ((~torch.isfinite(masses), "finite"), (masses <= 0, "positive")):
        if wrong.any():
            raise InputError(
                f"{of}: expected {name} masses, got {float(masses[wrong][0]):g}; leave out atoms without mass"
            )


def described(what) -> str:
    """The shape of a tensor, or the type of anything else, for messages."""
    return f"{what.dtype} of shape {tuple(what.shape)}" if isinstance(what, Tensor) else type(what).__name__
