"""Products of an operator with vectors as the solvers use them: counted, scaled and checked.

`before_each_product` calls a function of the caller before each of them, which may stop the solve. Also the solver's
own random generator, and `rayleigh_ritz`, which evaluates the singular values attained on given right vectors together
with their residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.errors import InputError
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.resume import current_products

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    Numbers = NDArray[np.float64]
    Triplets = tuple[Numbers, Numbers, Float[Tensor, "b k rows"], Float[Tensor, "b k cols"]]

MAX_SQUARABLE = 1e100  # norms up to this, and down to its inverse, can be squared and summed in float64

_hook: ContextVar[Callable[[], object] | None] = ContextVar("hook", default=None)


@contextmanager
def before_each_product(hook: Callable[[], object]) -> Iterator[None]:
    """Call `hook()` before each product of the solvers in this context; an exception that it raises ends the solve.

    Other threads are not affected. Make the exception a subclass of BaseException if code between the caller and the
    solver handles every Exception.

    Args:
        hook: Function without arguments.

    Example:
        >>> from howsmooth.spectral import MatrixOperator, singular_values
        >>> calls = []
        >>> with before_each_product(lambda: calls.append(1)):
        ...     found = singular_values(MatrixOperator(torch.eye(3)))
        >>> len(calls) == found.products
        True
    """
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)


class NonFiniteProduct(InputError):
    """A product overflowed or is NaN."""


class Products:
    """Products of one operator with a flat batch of vectors (b, ·), counted, and divided by a unit for each member.

    A unit is 1 unless σ² would overflow or underflow in float64. Then it is a power of two near ‖J v‖, v being the
    first unit vector that is multiplied, so that the division is exact. The products are then those of J / unit.

    Args:
        operator: The operator J.
        unit: The unit of all members; None chooses it at the first product.
    """

    def __init__(self, operator: LinearOperator, unit: float | None = None) -> None:
        """Start counting at zero."""
        self.operator = operator
        self.members = torch.Size(operator.batch).numel()
        self.count = 0
        self.unit: Numbers = np.full(self.members, 1.0 if unit is None else unit)
        self._is_unit_chosen = unit is not None

    def forward(self, v: Float[Tensor, "b cols"]) -> Float[Tensor, "b rows"]:
        """Return J v / unit."""
        rows, cols = self.operator.shape
        image = self._apply(self.operator.matvec, v, (cols, rows), "matvec")
        if not self._is_unit_chosen:
            norms = self.norm(image, "J v")
            is_squarable = (norms == 0) | ((norms >= 1 / MAX_SQUARABLE) & (norms <= MAX_SQUARABLE))
            self.unit = np.where(is_squarable, 1.0, np.ldexp(1.0, np.frexp(norms)[1] - 1))
            self._is_unit_chosen = True
        return self._divide_by_unit(image)

    def adjoint(self, u: Float[Tensor, "b rows"]) -> Float[Tensor, "b cols"]:
        """Return Jᵀ u / unit."""
        return self._divide_by_unit(self._apply(self.operator.rmatvec, u, self.operator.shape, "rmatvec"))

    def gram(
        self, v: Float[Tensor, "b cols"], *, fused: bool, suffix: str = ""
    ) -> tuple[Float[Tensor, "b cols"], NDArray[np.float64]]:
        """Return M v / unit² as a vector and a factor (b,) of it, since M v may overflow a dtype in which J v does not.

        Args:
            v: Vectors (b, cols).
            fused: Whether to use the operator's own `gram`, whose rounding differs from that of two products.
            suffix: Appended to the names of the vectors in error messages.

        Raises:
            InputError: If a product is not finite.
        """
        if not fused:
            w = self.forward(v)
            norm = self.norm(w, "J v" + suffix)
            return self.adjoint(safe_divide(w, norm)), norm
        image, factor = self._compute(self.operator.gram, v.reshape(*self.operator.batch, -1), 2)
        image, factors = image.reshape(v.shape), factor.reshape(-1).cpu().numpy()
        self._refuse_non_finite(factors, "J v" + suffix)
        return self._divide_by_unit(image), factors / self.unit

    def _divide_by_unit(self, image: Tensor) -> Tensor:
        return image if np.all(self.unit == 1) else image / column(self.unit, image)

    def _apply(self, product: Callable[[Tensor], Tensor], vector: Tensor, sizes: tuple[int, int], name: str) -> Tensor:
        (image,) = self._compute(lambda x: (product(x),), vector.reshape(*self.operator.batch, sizes[0]), 1)
        expected = (*self.operator.batch, sizes[1])
        if tuple(image.shape) != expected or image.dtype != self.operator.dtype:
            raise InputError(
                f"expected {name} to return {self.operator.dtype} of shape {expected}, got "
                f"{image.dtype} of shape {tuple(image.shape)}; correct the operator"
            )
        return image.detach().reshape(self.members, sizes[1])

    def _compute(
        self, product: Callable[[Tensor], tuple[Tensor, ...]], vector: Tensor, count: int
    ) -> tuple[Tensor, ...]:
        """Return a product that counts as so many, saved if the context asks for it."""
        hook = _hook.get()
        if hook is not None:
            for _ in range(count):
                hook()
        is_first = self.count == 0
        self.count += count
        saved = current_products()
        return product(vector) if saved is None else saved.get(vector, lambda: product(vector), count, is_first)

    def batched(self, numbers: NDArray[np.float64]) -> Tensor:
        """Return numbers (b,) or (b, k) in units of the products as a tensor (*batch,) or (*batch, k)."""
        unit = self.unit.reshape(-1, *[1] * (numbers.ndim - 1))
        return torch.from_numpy(numbers * unit).reshape(self.operator.batch + numbers.shape[1:])

    def norm(self, vector: Float[Tensor, "b size"], name: str) -> NDArray[np.float64]:
        """Return the norms (b,) in float64.

        Norms whose squares overflow or underflow in float64 are computed again, in units of the largest entry.

        Raises:
            NonFiniteProduct: If a norm is not finite; `name` is the vector's name in the message.
        """
        norms: Numbers = torch.linalg.vector_norm(vector, dim=-1, dtype=torch.float64).cpu().numpy()
        unreliable = np.flatnonzero(~((norms >= 1 / MAX_SQUARABLE) & (norms <= MAX_SQUARABLE)))
        if len(unreliable) and vector.dtype == torch.float64:
            selected = vector[torch.from_numpy(unreliable).to(vector.device)]
            peak = torch.linalg.vector_norm(selected, ord=math.inf, dim=-1, keepdim=True)
            peak = torch.where(peak > 0, peak, 1.0)
            norms[unreliable] = (torch.linalg.vector_norm(selected / peak, dim=-1) * peak[:, 0]).cpu().numpy()
        self._refuse_non_finite(norms, name)
        return norms

    def _refuse_non_finite(self, norms: NDArray[np.float64], name: str) -> None:
        not_finite = np.flatnonzero(~np.isfinite(norms))
        if len(not_finite):
            batch = self.operator.batch
            where = [tuple(int(i) for i in np.unravel_index(w, batch)) for w in not_finite[:5]] if batch else []
            raise NonFiniteProduct(
                f"expected finite products, got NaN or infinity in {name}"
                + (f" of batch member {', '.join(map(str, where))}" if batch else "")
                + "; check the inputs of the operator for non-finite entries"
            )


def column(numbers: NDArray[np.float64], like: Tensor) -> Tensor:
    """Return numbers (b,) as a column (b, 1) in the dtype and on the device of a tensor."""
    return torch.from_numpy(numbers).to(like)[:, None]


def safe_divide(vector: Float[Tensor, "b size"], divisor: NDArray[np.float64]) -> Float[Tensor, "b size"]:
    """Return vector / divisor for each member, and zero where the divisor is zero."""
    return vector / column(np.where(divisor > 0, divisor, np.inf), vector)


def solver_generator(seed: int | torch.Generator) -> tuple[torch.Generator, int]:
    """Return a generator for the solver, and the seed to report.

    The certificate needs a start that is independent of J. Data drawn elsewhere from the same seed would otherwise
    equal the start. An integer seed is therefore hashed first; from a generator one number is drawn and hashed.
    """
    if isinstance(seed, torch.Generator):
        drawn = int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
        return torch.Generator(seed.device).manual_seed(_hashed(drawn)), seed.initial_seed()
    return torch.Generator().manual_seed(_hashed(seed)), seed


def _hashed(seed: int) -> int:
    return (seed * 6364136223846793005 + 1442695040888963407) % 2**63


def gaussian_vectors(products: Products, generator: torch.Generator) -> Float[Tensor, "b cols"]:
    """Return standard normal vectors.

    On a GPU they are drawn there, with a seed from the generator: a CPU takes as long for 10⁸ numbers as several
    products.
    """
    operator = products.operator
    if operator.device.type == "cuda" and generator.device.type == "cpu":
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator(operator.device).manual_seed(seed)
    z = torch.randn(
        products.members, operator.shape[1], dtype=operator.dtype, device=generator.device, generator=generator
    )
    return z.to(operator.device)


def rayleigh_ritz(products: Products, vectors: list[Float[Tensor, "b cols"]], residual_products: Products) -> Triplets:
    """Return the singular values of J on the span of k vectors, the residuals ‖Jᵀu − σv‖, u and v.

    This takes 2k products. By interlacing the i-th value never exceeds σ_i of J. J v_i = σ_i u_i holds by
    construction. Where J v is zero, u is an arbitrary unit vector.

    Args:
        products: Products in the precision in which the values are attained.
        vectors: k right vectors (b, cols), linearly independent.
        residual_products: Products for the residuals, which need less precision.

    Returns:
        Values (b, k), residuals (b, k), u (b, k, rows) and v (b, k, cols).
    """
    if len(vectors) == 1:
        v = vectors[0].to(products.operator.dtype)
        v = safe_divide(v, products.norm(v, "a Ritz vector"))
        w = products.forward(v)
        norm = products.norm(w, "J v")
        u = safe_divide(w, norm)
        u[torch.from_numpy(norm == 0).to(u.device), 0] = 1
        return norm[:, None], _residual(residual_products, norm, u, v)[:, None], u[:, None], v[:, None]

    basis, _ = torch.linalg.qr(torch.stack(vectors, dim=-1).to(products.operator.dtype))
    images = torch.stack([products.forward(v.contiguous()) for v in basis.unbind(-1)], dim=-1)
    for image in images.unbind(-1):
        products.norm(image, "J v")  # raises if it is not finite
    directions, triangle = torch.linalg.qr(images)
    left, values, right = torch.linalg.svd(triangle.double())
    u = (directions @ left.to(directions)).mT
    v = (basis @ right.mT.to(basis)).mT
    value: Numbers = values.cpu().numpy()
    residual = [_residual(residual_products, value[:, i], u[:, i].contiguous(), v[:, i]) for i in range(len(vectors))]
    return value, np.stack(residual, axis=1), u, v


def _residual(products: Products, value: NDArray[np.float64], u: Tensor, v: Tensor) -> NDArray[np.float64]:
    image = products.adjoint(u.to(products.operator.dtype))
    defect = image - column(value, v) * v
    return products.norm(defect, "Jᵀ u")
