"""The eigenvalues of largest modulus of a square operator, by Arnoldi iteration, each with its residual.

J is not normal: an eigenvalue with the residual r = ‖J x − λ x‖, ‖x‖ = 1, is one of J + E with ‖E‖₂ = r, and may be
farther than r from those of J. No end of the interval of an eigenvalue is certified, but |λ| ≤ ‖J‖₂.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, eigs
from scipy.sparse.linalg import LinearOperator as ScipyOperator

from howsmooth.errors import InputError
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.products import Products, solver_generator
from howsmooth.spectral.result import CONVERGED, STEP_LIMIT

MAX_DENSE_SIDE = 64  # smaller matrices are formed


@dataclass(frozen=True)
class Eigenvalues:
    """The eigenvalues of largest modulus, by decreasing modulus.

    Attributes:
        value: The eigenvalues λ, complex.
        residual: ‖J x − λ x‖ of each, for a unit vector x.
        status: "converged", or "step limit" if fewer than wanted were found.
        products: Products with J.
        seed: Seed of the start.
    """

    value: tuple[complex, ...]
    residual: tuple[float, ...]
    status: str
    products: int
    seed: int

    @property
    def radius(self) -> float:
        """The largest modulus found, an estimate of the spectral radius."""
        return max(map(abs, self.value), default=0.0)


def leading_eigenvalues(
    operator: LinearOperator, k: int = 6, *, tol: float = 1e-6, seed: int | torch.Generator = 0, restarts: int = 300
) -> Eigenvalues:
    """Compute the k eigenvalues of largest modulus of a square operator.

    Args:
        operator: One operator; its float64 reference is used where there is one.
        k: Number of eigenvalues.
        tol: Relative residual at which the iteration stops.
        seed: Seed of the start.
        restarts: Largest number of restarts.

    Raises:
        InputError: The operator is not square, is a batch, or k is not between 1 and its side.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> turn = MatrixOperator(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))
        >>> sorted(round(float(value.imag), 6) for value in leading_eigenvalues(turn, 2).value)
        [-2.0, 2.0]
    """
    rows, cols = operator.shape
    if operator.batch or rows != cols:
        raise InputError(
            f"expected one square operator, got shape {operator.shape} and batch {operator.batch}; eigenvalues need a "
            "map whose output has the shape of its input"
        )
    if not 1 <= k <= cols:
        raise InputError(f"expected k from 1 to {cols}, got {k!r}")
    exact = operator.precise() or operator
    generator, seed_used = solver_generator(seed)
    products = Products(exact, unit=1.0)

    def apply(v: np.ndarray) -> np.ndarray:
        parts = (v.real, v.imag) if np.iscomplexobj(v) else (v,)
        images = [
            products.forward(torch.tensor(part.ravel(), dtype=exact.dtype, device=exact.device)[None])[0]
            .double()
            .cpu()
            .numpy()
            for part in parts
        ]
        return images[0] if len(images) == 1 else images[0] + 1j * images[1]

    status = CONVERGED
    if cols <= max(MAX_DENSE_SIDE, k + 1):
        values, vectors = np.linalg.eig(np.stack([apply(unit) for unit in np.eye(cols)], axis=1))
    else:
        start = torch.randn(cols, generator=generator, dtype=torch.float64).numpy()
        matrix = ScipyOperator((cols, cols), matvec=apply, dtype=np.float64)
        try:
            values, vectors = eigs(matrix, k, v0=start, tol=tol, maxiter=restarts)
        except ArpackNoConvergence as stopped:
            values, vectors, status = stopped.eigenvalues, stopped.eigenvectors, STEP_LIMIT
    order = np.argsort(-np.abs(values), kind="stable")[:k]
    residuals = [
        float(np.linalg.norm(apply(vectors[:, i]) - values[i] * vectors[:, i]) / np.linalg.norm(vectors[:, i]))
        for i in order
    ]
    found = tuple(complex(values[i]) for i in order)
    return Eigenvalues(found, tuple(residuals), status, products.count, seed_used)
