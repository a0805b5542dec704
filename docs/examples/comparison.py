"""The constant of an attention map, by torch.func with SciPy and by howsmooth."""

import torch
from scipy.sparse.linalg import LinearOperator, svds

import howsmooth

generator = torch.Generator().manual_seed(0)
wq, wk, wv = torch.randn(3, 32, 32, generator=generator, dtype=torch.float64) / 32**0.5
x = 2 * torch.randn(40, 32, generator=generator, dtype=torch.float64)


def attention(x: torch.Tensor) -> torch.Tensor:
    """Return single-head self-attention of the tokens x, (n, d)."""
    return torch.softmax((x @ wq) @ (x @ wk).T / 32**0.5, -1) @ x @ wv


_, transposed = torch.func.vjp(attention, x)
jacobian = LinearOperator(
    (x.numel(), x.numel()),
    matvec=lambda v: torch.func.jvp(attention, (x,), (torch.from_numpy(v).view_as(x),))[1].numpy().ravel(),
    rmatvec=lambda u: transposed(torch.from_numpy(u).view_as(x))[0].numpy().ravel(),
    dtype="float64",
)
print(f"svds       {svds(jacobian, k=1, return_singular_vectors=False)[0]:.6f}")

estimate = howsmooth.local_lipschitz(attention, x, tol=1e-4)
print(f"howsmooth  {estimate.value:.6f}, certified: {estimate.lower:.4f} to {estimate.upper:.4f}")
