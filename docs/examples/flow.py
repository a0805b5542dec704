"""Integrate tokens on a sphere along depth: they form clusters, and perturbations grow."""

import torch

from howsmooth.attention import SoftmaxField
from howsmooth.dynamics import Velocity, integrate, perturbation_growth
from howsmooth.dynamics.instruments import clusters

eye = torch.eye(3, dtype=torch.float64)
x = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
gamma = Velocity(SoftmaxField.of(A=6 * eye, V=eye), sphere=True)  # layer normalisation: |x| = 1
x = x / x.norm(dim=1, keepdim=True)

path = integrate(gamma, x, 12.0, frames=[3.0, 6.0, 12.0])
for depth, tokens in zip(path.times, path.tokens, strict=True):
    print(f"depth {float(depth):4.1f}: {len(clusters(tokens, tol=0.1).sizes):2} clusters")

for grown in perturbation_growth(gamma, x, 6.0, steps=60, depths=3):
    print(
        f"depth {grown.depth:4.1f}: a perturbation grows by {grown.value:5.2f} at most, "
        f"by the layers' product {grown.product:5.1f}"
    )
