"""Fields of every kind on one width, for tests that want all of them."""

from __future__ import annotations

import torch

from howsmooth.attention import L2Field, LinearField, SelfAttention, SigmoidField, SinkhornField, SoftmaxField


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def every_kind(d: int) -> dict:
    """Return fields from width d to width d, with weights of size about one half."""
    A, V, Q, K = (0.5 * normal(d, d, seed=seed) for seed in range(4))
    two_heads = SelfAttention(
        *(0.5 * normal(2 * d, d, seed=seed) for seed in (4, 5, 6)),
        0.5 * normal(d, 2 * d, seed=7),
        bq=normal(2 * d, seed=8),
        heads=2,
    )
    masked = SelfAttention(A, K, V, causal=True)
    return {
        "softmax": SoftmaxField.of(A, V),
        "masked": SoftmaxField(masked),
        "two heads": SoftmaxField(two_heads),
        "l2": L2Field(Q, K, V),
        "sinkhorn": SinkhornField(A, V),
        "linear": LinearField(A, V),
        "sigmoid": SigmoidField(A, V, bias=0.3),
    }
