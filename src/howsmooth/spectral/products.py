"""Products of an operator with vectors, as the solvers need them: counted, scaled, checked.

A start is drawn from a generator that is the solver's own. `rayleigh_ritz` says which singular values are attained on
given right vectors, and how far those are from singular vectors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.errors import InputError
from howsmooth.spectral.operator import LinearOperator

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    Numbers = NDArray[np.float64]
    Triplets = tuple[Numbers, Numbers, Float[Tensor, "b k rows"], Float[Tensor, "b k cols"]]

MODERATE = 1e100  # norms up to this and down to its inverse can be squared, and summed, without a thought


class Products:
    """Products of one operator on a flat batch (b, ·), counted, and in units of a number for each member.

    A unit is 1, unless σ² would leave float64. Then it is a power of two near ‖J v‖, v the first vector of norm
    one to come by, so that nothing is rounded: what follows is the operator J / unit.
    """

    def __init__(self, operator: LinearOperator, unit: float | None = None):
        self.operator = operator
        self.members = torch.Size(operator.batch).numel()
        self.count = 0
        self.unit: Numbers = np.full(self.members, 1.0 if unit is None else unit)
        self._is_unit_known = unit is not None

    def forward(self, v: Float[Tensor, "b cols"]) -> Float[Tensor, "b rows"]:
        image = self._apply(self.operator.matvec, v, self.operator.shape[::-1], "matvec")
        if not self._is_unit_known:
            norms = self.norm(image, "J v")
            usual = (norms == 0) | ((norms >= 1 / MODERATE) & (norms <= MODERATE))
            self.unit = np.where(usual, 1.0, np.ldexp(1.0, np.frexp(norms)[1] - 1))
            self._is_unit_known = True
        return self._in_units(image)

    def adjoint(self, u: Float[Tensor, "b rows"]) -> Float[Tensor, "b cols"]:
        return self._in_units(self._apply(self.operator.rmatvec, u, self.operator.shape, "rmatvec"))

    def _in_units(self, image: Tensor) -> Tensor:
        return image if np.all(self.unit == 1) else image / torch.from_numpy(self.unit).to(image)[:, None]

    def _apply(self, product, vector: Tensor, sizes: tuple[int, int], name: str) -> Tensor:
        self.count += 1
        image = product(vector.reshape(*self.operator.batch, sizes[0]))
        expected = (*self.operator.batch, sizes[1])
        if tuple(image.shape) != expected or image.dtype != self.operator.dtype:
            raise InputError(
                f"expected {name} to return {self.operator.dtype} of shape {expected}, got "
                f"{image.dtype} of shape {tuple(image.shape)}; correct the operator"
            )
        return image.detach().reshape(self.members, sizes[1])

    def norm(self, vector: Float[Tensor, "b size"], name: str) -> NDArray[np.float64]:
        """Norms (b,) in float64, where 1e30 squared is a number; a norm that is not finite is refused.

        Those whose squares float64 cannot hold either are taken again, in units of the largest entry.
        """
        norms = torch.linalg.vector_norm(vector, dim=-1, dtype=torch.float64).cpu().numpy()
        lost = np.flatnonzero(~((norms >= 1 / MODERATE) & (norms <= MODERATE)))
        if len(lost) and vector.dtype == torch.float64:
            again = vector[torch.from_numpy(lost).to(vector.device)]
            peak = torch.linalg.vector_norm(again, ord=math.inf, dim=-1, keepdim=True)
            peak = torch.where(peak > 0, peak, 1.0)
            norms[lost] = (torch.linalg.vector_norm(again / peak, dim=-1) * peak[:, 0]).cpu().numpy()
        wrong = np.flatnonzero(~np.isfinite(norms))
        if len(wrong):
            batch = self.operator.batch
            where = [tuple(int(i) for i in np.unravel_index(w, batch)) for w in wrong[:5]] if batch else []
            raise InputError(
                f"expected finite products, got NaN or infinity in {name}"
                + (f" of batch member {', '.join(map(str, where))}" if batch else "")
                + "; look for non-finite entries in what the operator is made of"
            )
        return norms


def scaled(vector: Float[Tensor, "b size"], divisor: NDArray[np.float64]) -> Float[Tensor, "b size"]:
    """Vector / divisor for each member, and zero where the divisor is zero."""
    safe = torch.from_numpy(np.where(divisor > 0, divisor, np.inf)).to(vector)
    return vector / safe[:, None]


def own_generator(seed: int | torch.Generator) -> tuple[torch.Generator, int]:
    """A generator for the solver, and the seed to report.

    The certificate needs a start that is independent of J, and data drawn elsewhere from the same seed would otherwise
    be the start itself. A whole number is therefore mixed first. From a generator one number is drawn, and mixed, too.
    """
    if isinstance(seed, torch.Generator):
        drawn = int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
        return torch.Generator(seed.device).manual_seed(_mixed(drawn)), seed.initial_seed()
    return torch.Generator().manual_seed(_mixed(seed)), seed


def _mixed(seed: int) -> int:
    return (seed * 6364136223846793005 + 1442695040888963407) % 2**63


def gaussian(products: Products, generator: torch.Generator) -> Float[Tensor, "b cols"]:
    """Standard normal vectors, drawn where the generator lives."""
    operator = products.operator
    z = torch.randn(
        products.members, operator.shape[1], dtype=operator.dtype, device=generator.device, generator=generator
    )
    return z.to(operator.device)


def rayleigh_ritz(products: Products, found: list[Float[Tensor, "b cols"]], back: Products) -> Triplets:
    """Singular values (b, k) of J on the span of k vectors, residuals ‖Jᵀu − σv‖, u and v; 2k products.

    The values are attained in the precision of `products`; the residuals, of which less is asked, in that of `back`.

    By interlacing the i-th of them never exceeds σ_i of J. J v_i = σ_i u_i holds by construction. Where J v
    is zero any unit vector will do as u.
    """
    if len(found) == 1:
        v = found[0].to(products.operator.dtype)
        v = scaled(v, products.norm(v, "a Ritz vector"))
        w = products.forward(v)
        value = products.norm(w, "J v")
        u = scaled(w, value)
        u[torch.from_numpy(value == 0).to(u.device), 0] = 1
        return value[:, None], _residual(back, value, u, v)[:, None], u[:, None], v[:, None]

    basis, _ = torch.linalg.qr(torch.stack(found, dim=-1).to(products.operator.dtype))
    images = torch.stack([products.forward(v.contiguous()) for v in basis.unbind(-1)], dim=-1)
    for image in images.unbind(-1):
        products.norm(image, "J v")
    directions, triangle = torch.linalg.qr(images)
    left, value, right = torch.linalg.svd(triangle.double())
    u = (directions @ left.to(directions)).mT
    v = (basis @ right.mT.to(basis)).mT
    value = value.cpu().numpy()
    residual = [_residual(back, value[:, i], u[:, i].contiguous(), v[:, i]) for i in range(len(found))]
    return value, np.stack(residual, axis=1), u, v


def _residual(products: Products, value: NDArray[np.float64], u: Tensor, v: Tensor) -> NDArray[np.float64]:
    image = products.adjoint(u.to(products.operator.dtype))
    defect = image - torch.from_numpy(value).to(v)[:, None] * v
    return products.norm(defect, "Jᵀ u")
