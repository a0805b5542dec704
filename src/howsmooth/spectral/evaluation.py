"""Singular values attained on given right vectors, and how far those are from singular vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.spectral.bidiagonal import Products

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor


def rayleigh_ritz(
    products: Products, found: Float[Tensor, "b k cols"]
) -> tuple[NDArray[np.float64], NDArray[np.float64], Float[Tensor, "b k rows"], Float[Tensor, "b k cols"]]:
    """The singular values of J on the span of `found`, residuals ‖Jᵀu − σv‖, u and v; 2k products.

    By interlacing the i-th of them never exceeds σ_i of J. J v_i = σ_i u_i holds by construction.
    """
    basis, _ = torch.linalg.qr(found.to(products.operator.dtype).mT)
    images = torch.stack([products.forward(v.contiguous()) for v in basis.unbind(-1)], dim=-1)
    for image in images.unbind(-1):
        products.norm(image, "J v")
    directions, triangle = torch.linalg.qr(images)
    left, value, right = torch.linalg.svd(triangle.double())
    u = (directions @ left.to(directions)).mT
    v = (basis @ right.mT.to(basis)).mT
    value = value.cpu().numpy()
    residuals = []
    for i in range(value.shape[1]):
        defect = products.adjoint(u[:, i].contiguous()) - torch.from_numpy(value[:, i]).to(v)[:, None] * v[:, i]
        residuals.append(products.norm(defect, "Jᵀ u"))
    return value, np.stack(residuals, axis=1), u, v
