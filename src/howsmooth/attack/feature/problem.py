"""One target with one objective, as an attack sees it: values, slopes, and how many were asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsmooth.attack.feature.objectives import Objective, OutputChange
from howsmooth.attack.feature.targets import Target
from howsmooth.errors import InputError


class Problem:
    """calls: evaluations of the map, with a gradient or without one; a product with its derivative counts as one."""

    def __init__(self, target: Target, objective: Objective):
        self.target, self.objective, self.x = target, objective, target.x
        self.calls = 1
        with torch.no_grad():
            self.clean = target.f(self.x)
            if not isinstance(self.clean, Tensor) or not torch.isfinite(self.clean).all():
                raise InputError("expected a map with a finite output at the clean tokens, got NaN, ∞ or no tensor")
            objective.coordinates(self.clean)

    @property
    def map(self):
        """φ∘f, whose derivative decides small perturbations; a layer stays what it is, and has its formulas."""
        return self.target.f if isinstance(self.objective, OutputChange) else Composed(self.objective, self.target.f)

    def value(self, e: Tensor) -> float:
        self.calls += 1
        with torch.no_grad():
            return float(self.objective.length(self.target.f(self.x + e), self.clean))

    def slope(self, e: Tensor) -> tuple[float, Tensor]:
        """The length of the change, and its gradient in the perturbation."""
        self.calls += 1
        e = e.detach().requires_grad_()
        with torch.enable_grad():
            value = self.objective.length(self.target.f(self.x + e), self.clean)
        return float(value.detach()), torch.autograd.grad(value, e)[0]

    def best(self, perturbations: Sequence[Tensor]) -> Tensor:
        return max(perturbations, key=self.value)


class Composed(torch.nn.Module):
    """x ↦ φ(f(x)) as a module, so that a twin in float64 can be had."""

    def __init__(self, objective: Objective, f):
        super().__init__()
        self.objective, self.f = objective, f
        self.parts = torch.nn.ModuleList([m for m in (f, getattr(objective, "head", None))
                                          if isinstance(m, torch.nn.Module)])

    def forward(self, x: Tensor) -> Tensor:
        return self.objective.coordinates(self.f(x))
