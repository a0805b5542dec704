"""A custom attention, measured as a function of tokens, and as a field, with a mean-field limit and a flow."""

import torch

from howsmooth import local_lipschitz
from howsmooth.attention import Field
from howsmooth.dynamics import Velocity, integrate
from howsmooth.lipschitz import mean_field_lipschitz
from howsmooth.transport import TokenMeasure


def relu_attention(x):
    """Attention with weights (⟨x, y⟩)₊ in place of a softmax."""
    scores = torch.relu(x @ x.mT)
    return scores @ x / (1 + scores.sum(-1, keepdim=True))


x = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
found = local_lipschitz(relu_attention, x)
print(f"any map: {found.value:.4f} in [{found.lower:.4f}, {found.upper:.4f}]")
print(f"by finite differences: {found.check():.4f}")


class ReluField(Field):
    """Γ_μ(x) = ∫ (⟨x, y⟩)₊ y dμ(y) / (1 + ∫ (⟨x, y⟩)₊ dμ(y))."""

    name = "ReLU"
    d = d_out = 4

    def velocity(self, x, points, log_weights, times, source_times):
        """Compute the field at x (…, m, 4)."""
        n = points.shape[-2]
        log_weights = x.new_zeros(n) if log_weights is None else log_weights
        scores = torch.relu(x @ points.mT)
        weights = scores * torch.softmax(log_weights, -1).unsqueeze(-2)
        if times is not None:
            weights = weights * (source_times.unsqueeze(-2) <= times.unsqueeze(-1))
        return weights @ points / (1 + weights.sum(-1, keepdim=True))


print(f"as a map of measures: {mean_field_lipschitz(ReluField(), TokenMeasure(x)).value:.4f}")
path = integrate(Velocity(ReluField(), sphere=True), x, 5.0)
print(f"as a flow: {path.status} at depth {path.reached:.0f}")
