"""Matrices with prescribed singular values in float64, among them hard ones for a Krylov method."""

from __future__ import annotations

import numpy as np
import torch

SPECTRA = {
    "separated": 10.0 * 0.8 ** np.arange(60),
    "clustered": np.concatenate([1 - 1e-4 * np.arange(8), np.linspace(0.9, 0.01, 52)]),
    "flat": np.linspace(1.0, 0.05, 80),
    "repeated top": np.concatenate([np.full(3, 2.0), np.linspace(1.9, 0.1, 57)]),
    "rank deficient": np.concatenate([[5.0, 3.0, 2.0, 1.0, 0.5], np.zeros(55)]),
    "rank one": np.concatenate([[7.0], np.zeros(39)]),
    "all equal": np.full(50, 3.0),
    "single": np.array([4.0]),
    "tiny": 1e-30 * 0.8 ** np.arange(60),
    "huge": 1e30 * 0.8 ** np.arange(60),
    "zero": np.zeros(30),
}


def orthonormal(rows: int, cols: int, generator: torch.Generator) -> torch.Tensor:
    """Return a uniformly random (rows, cols) matrix with orthonormal columns, float64."""
    q, r = torch.linalg.qr(torch.randn(rows, cols, dtype=torch.float64, generator=generator))
    return q * torch.sign(torch.diagonal(r))


def matrix_with(values: np.ndarray, *, rows: int | None = None, cols: int | None = None, seed: int = 0) -> torch.Tensor:
    """Return a random (rows, cols) matrix, square by default, with these singular values (and zeros)."""
    generator = torch.Generator().manual_seed(seed)
    rank = len(values)
    rows, cols = rows or rank, cols or rank
    left, right = orthonormal(rows, rank, generator), orthonormal(cols, rank, generator)
    return (left * torch.from_numpy(np.asarray(values, dtype=np.float64))) @ right.mT


def largest(matrix: torch.Tensor, k: int = 1) -> torch.Tensor:
    """Return the k largest singular values (*batch, k) by a dense SVD in float64."""
    return torch.linalg.svdvals(matrix.to(torch.float64))[..., :k]
