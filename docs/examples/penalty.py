"""Train with a penalty on the Lipschitz constant: a smoother layer, at the cost of accuracy."""

import torch

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.lipschitz import LipschitzPenalty

d, n = 8, 12


def weights(seed: int, size: float) -> list[torch.Tensor]:
    """Return random matrices for queries, keys, values and output."""
    generator = torch.Generator().manual_seed(seed)
    size = size / d**0.5
    return [size * torch.randn(d, d, generator=generator, dtype=torch.float64) for _ in range(4)]


teacher = SelfAttention(*weights(0, 1.5))  # with a large constant, to be imitated
x = torch.randn(24, n, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
training, test = x[:16], x[16:]


def largest(layer: SelfAttention) -> float:
    """Return the largest local constant on the test inputs."""
    return max(local_lipschitz(layer, tokens).value for tokens in test)


def train(weight: float) -> tuple[float, float]:
    """Return the relative squared error and the largest constant of a student trained with a penalty."""
    parameters = [w.requires_grad_() for w in weights(2, 1.0)]
    student = SelfAttention(*parameters)
    optimiser = torch.optim.Adam(parameters, lr=0.03)
    penalty = LipschitzPenalty(above=2.0)  # keeps its singular vectors, so that few steps suffice
    for _ in range(80):
        optimiser.zero_grad()
        loss = (student(training) - teacher(training)).square().mean()
        (loss + weight * penalty(student, training[:4])).backward()
        optimiser.step()
    student = SelfAttention(*(w.detach() for w in parameters))
    error = (student(test) - teacher(test)).square().mean() / teacher(test).square().mean()
    return float(error), largest(student)


print(f"teacher: largest constant {largest(teacher):.1f}")
for weight in (0.0, 0.01, 0.1):
    error, constant = train(weight)
    print(f"penalty × {weight:<4}: largest constant {constant:4.1f}, relative squared error {error:.2f}")
