"""Singular values attained on given right vectors, and how far those are from singular vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.spectral.bidiagonal import Products, scaled

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    Numbers = NDArray[np.float64]
    Triplets = tuple[Numbers, Numbers, Float[Tensor, "b k rows"], Float[Tensor, "b k cols"]]


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
