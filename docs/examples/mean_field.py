"""Compute the Lipschitz constant for very many tokens, and its limit."""

import math

import torch

from howsmooth.attention import SoftmaxField
from howsmooth.lipschitz import mean_field_lipschitz, plateau, regime_curve
from howsmooth.transport import TokenMeasure

one = torch.ones(1, 1, dtype=torch.float64)
mu = TokenMeasure([[2.0], [-2.0]], log_weights=[0.0, 8.0], normalise=True)  # masses 1 : e⁸
found = mean_field_lipschitz(SoftmaxField.of(-one, one), mu)  # scores −xy, values y
print(f"two points, masses 1 : e⁸: {found.value:.1f}")

lengths = (1e1, 1e3, 1e6, 1e9, 1e12)
curve = regime_curve(8.0, [math.log(n) for n in lengths])  # γR² = 8
for n, point in zip(lengths, curve, strict=True):
    print(f"n = {n:.0e}: at most {math.exp(point.log_value):10,.1f} with tokens at two points")
top = plateau(8.0)
print(f"never more than {math.exp(top.log_value):,.0f}, reached at n* = {math.exp(top.log_crossover):.1e}")
