"""What is attacked in feature space: a map and the tokens that enter it, one objective, within a budget.

A target is a map by itself or a part of a model, at any length. A budget says how much an attacker may change: in
total, per token, in a number of tokens. A problem is a target with an objective: values, slopes, and how many were
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attack.constraints import check_count, check_size
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import in_float64
from howsmooth.lipschitz.local import single_at_least

if TYPE_CHECKING:
    from howsmooth.models import Model

NORMS = ("frobenius", "token")


@dataclass(frozen=True)
class Budget:
    """Perturbations E (n, d) with ‖E‖_F ≤ size, or |ε_i| ≤ size for every token, on at most `tokens` tokens.

    >>> Budget(1.0, "token", tokens=1).fill(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    size: float
    norm: str = "frobenius"
    tokens: int | None = None

    def __post_init__(self):
        check_size("Budget", "size", self.size)
        if self.norm not in NORMS:
            raise InputError(f"Budget: expected norm to be one of {', '.join(NORMS)}, got {self.norm!r}")
        if self.tokens is not None:
            check_count("Budget", "tokens", self.tokens, least=1)

    def __str__(self) -> str:
        what = "‖E‖" if self.norm == "frobenius" else "|ε_i|"
        return f"{what} ≤ {self.size:.4g}" + ("" if self.tokens is None else f" on {self.tokens} tokens")

    def check(self, n: int) -> None:
        """Refuse more tokens than there are."""
        if self.tokens is not None and self.tokens > n:
            raise InputError(
                f"Budget: expected tokens up to the length n = {n}, got {self.tokens}; touch fewer, or "
                "leave tokens out to touch all"
            )

    def of(self, e: Tensor) -> float:
        """The size of a perturbation in the budget's norm."""
        rows = torch.linalg.vector_norm(e.detach(), dim=-1, dtype=torch.float64)
        return float(rows.max() if self.norm == "token" else torch.linalg.vector_norm(rows))

    def allows(self, e: Tensor, slack: float = 1e-6) -> bool:
        """Whether a perturbation stays within the budget, but for rounding."""
        return self.of(e) <= self.size * (1 + slack) and (self.tokens is None or touched(e) <= self.tokens)

    def places(self, e: Tensor) -> Tensor | None:
        """The tokens that weigh most in e, as many as may be touched, in order; None for all of them."""
        if self.tokens is None or self.tokens >= len(e):
            return None
        return torch.linalg.vector_norm(e, dim=-1).topk(self.tokens).indices.sort().values

    def scale(self, e: Tensor) -> Tensor:
        """E in its direction, as large as the budget allows, on the tokens that weigh most in it."""
        e = self.sparse(e)
        size = self.of(e)
        return e * (self.size / size) if size > 0 else e

    def fill(self, gradient: Tensor) -> Tensor:
        """The perturbation within the budget with the largest product with a gradient."""
        if self.norm == "frobenius":
            return self.scale(gradient)
        gradient = self.sparse(gradient)
        rows = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        return self.size * gradient / torch.where(rows > 0, rows, 1)

    def project(self, e: Tensor) -> Tensor:
        """The nearest perturbation within the budget."""
        e = self.sparse(e)
        size = torch.linalg.vector_norm(e, dim=-1 if self.norm == "token" else None, keepdim=True)
        return e * (self.size / torch.clamp(size, min=self.size))

    def sparse(self, e: Tensor) -> Tensor:
        places = self.places(e)
        return e if places is None else torch.zeros_like(e).index_copy(0, places, e[places])

    def as_record(self) -> dict:
        return {"size": self.size, "norm": self.norm, "tokens": self.tokens}


def touched(e: Tensor) -> int:
    """How many tokens a perturbation moves.

    >>> touched(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    1
    """
    return int((e != 0).any(-1).sum())


@dataclass(frozen=True, eq=False)
class Target:
    """A map f and its tokens x (n, d). `origin` says where they come from, in plain values, enough to find them again.

    `of_length(n)` is the same map for another number of tokens: masks and positions of a real model depend on it.

    >>> Target.of(lambda x: 2 * x, torch.zeros(3, 2)).n
    3
    """

    f: SelfAttention | Callable[[Tensor], Tensor]
    x: Tensor
    of_length: Callable[[int], Callable] | None = field(default=None, repr=False)
    origin: dict = field(default_factory=dict)

    @classmethod
    def of(cls, f: SelfAttention | Callable[[Tensor], Tensor], x: Tensor) -> Target:
        """A layer or any torch map that takes tokens in any number."""
        if not isinstance(x, Tensor) or x.dim() != 2 or not len(x) or not x.dtype.is_floating_point:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"Target: expected tokens (n, d) of a floating dtype with n ≥ 1, got {got}")
        if not callable(f):
            raise InputError(f"Target: expected a SelfAttention or another map, got {type(f).__name__}")
        f, x = single_at_least(f, x.detach())
        return cls(f, x, lambda n: f)

    @classmethod
    def in_model(
        cls, model: Model, input, layer: int | None = None, kind: str = "attention", *, head: int | None = None
    ) -> Target:
        """A map of a model (the kinds of `Model.map`) and what enters it on an input: a chunk, or n token numbers."""
        at = model.map_at(input, layer, kind, head=head)
        f, x = single_at_least(at.f, at.x)

        def of_length(n: int) -> Callable:
            if model.modality != "text":
                raise InputError(
                    f"expected a text model to change the number of tokens, got one that takes {model.modality}"
                )
            made = model.map(layer, kind, head=head, n=n)
            return made.to(x.dtype) if isinstance(made, SelfAttention) else made  # modules share the model's weights

        ids = getattr(input, "ids", input)
        origin = {
            "model": model.name,
            "dtype": str(model.dtype).removeprefix("torch."),
            "source": model.source,
            "layer": layer,
            "kind": kind,
            "head": head,
            "ids": ids.tolist() if isinstance(ids, Tensor) else list(ids) if not isinstance(ids, dict) else None,
        }
        return cls(f, x.detach(), of_length, origin)

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    def rows(self, x: Tensor) -> Target:
        """The same map at other tokens, which may be more or fewer."""
        if len(x) == self.n:
            return replace(self, x=x)
        if self.of_length is None:
            raise InputError(
                f"expected a map of any number of tokens to insert or duplicate some, got one of {self.n} only"
            )
        return replace(self, f=self.of_length(len(x)), x=x)

    def double(self) -> Target:
        """The same in float64: a layer or module is copied, a function has to take it."""
        if self.dtype == torch.float64:
            return self
        single = self.of_length
        of_length = None if single is None else lambda n: _doubled(single(n))
        return replace(self, f=_doubled(self.f), x=self.x.double(), of_length=of_length)


def _doubled(f):
    return f.to(torch.float64) if isinstance(f, SelfAttention) else in_float64(f)


class FeatureProblem:
    """calls: evaluations of the map, with a gradient or without one; a product with its derivative counts as one."""

    def __init__(self, target: Target, objective: FeatureObjective):
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

    def __init__(self, objective: FeatureObjective, f):
        super().__init__()
        self.objective, self.f = objective, f
        self.parts = torch.nn.ModuleList(
            [m for m in (f, getattr(objective, "head", None)) if isinstance(m, torch.nn.Module)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.objective.coordinates(self.f(x))
