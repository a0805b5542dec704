"""The setting of an attack in feature space: a map and its input tokens, a budget, and an objective.

A `Target` is a map on its own or a part of a model, for any number of tokens. A `Budget` limits the perturbation: in
total, per token, and in the number of tokens. A `FeatureProblem` is a target with an objective; it evaluates values
and gradients and counts the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attack.checks import check_count, check_size, describe
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import in_float64
from howsmooth.lipschitz.local import Map, promote_half
from howsmooth.norms import NORMS

if TYPE_CHECKING:
    from howsmooth.models.model import Model


@dataclass(frozen=True)
class Budget:
    """A set of perturbations E (n, d): ‖E‖_F ≤ size, or |ε_i| ≤ size for every token, on at most `tokens` tokens.

    Attributes:
        size: the largest norm.
        norm: a key of `howsmooth.attack.NORMS`: "frobenius" for ‖E‖_F, "token" for max_i |ε_i|.
        tokens: how many tokens may be perturbed; None for all.

    Example:
        >>> Budget(1.0, "token", tokens=1).maximise(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    size: float
    norm: str = "frobenius"
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_size("Budget", "size", self.size)
        if self.norm not in NORMS:
            raise InputError(f"Budget: expected norm to be one of {', '.join(NORMS)}, got {self.norm!r}")
        if self.tokens is not None:
            check_count("Budget", "tokens", self.tokens, least=1)

    def __str__(self) -> str:
        """Return the inequality."""
        return f"{NORMS[self.norm].symbol} ≤ {self.size:.4g}" + (
            "" if self.tokens is None else f" on {self.tokens} tokens"
        )

    def check(self, n: int) -> None:
        """Refuse a number of tokens larger than the length n."""
        if self.tokens is not None and self.tokens > n:
            raise InputError(
                f"Budget: expected tokens up to the length n = {n}, got {self.tokens}; perturb fewer tokens, or leave "
                "`tokens` out to perturb all"
            )

    def norm_of(self, e: Tensor) -> float:
        """Return the size of a perturbation in the budget's norm."""
        return NORMS[self.norm].size(e)

    def allows(self, e: Tensor, slack: float = 1e-6) -> bool:
        """Return whether a perturbation is within the budget, up to a relative slack for rounding."""
        within = self.norm_of(e) <= self.size * (1 + slack)
        return within and (self.tokens is None or count_perturbed_tokens(e) <= self.tokens)

    def positions(self, e: Tensor) -> Tensor | None:
        """Return the positions of the longest rows of e, as many as may be perturbed, in order; None for all."""
        if self.tokens is None or self.tokens >= len(e):
            return None
        return torch.linalg.vector_norm(e, dim=-1).topk(self.tokens).indices.sort().values

    def rescale(self, e: Tensor) -> Tensor:
        """Return e restricted to its longest rows and rescaled to the size of the budget."""
        return NORMS[self.norm].rescale(self.restrict(e), self.size)

    def maximise(self, gradient: Tensor) -> Tensor:
        """Return the perturbation within the budget with the largest inner product with a gradient."""
        return NORMS[self.norm].maximise(self.restrict(gradient), self.size)

    def project(self, e: Tensor) -> Tensor:
        """Return the nearest perturbation within the budget."""
        return NORMS[self.norm].project(self.restrict(e), self.size)

    def restrict(self, e: Tensor) -> Tensor:
        """Set all rows of e to zero but the longest ones, as many as may be perturbed."""
        positions = self.positions(e)
        return e if positions is None else torch.zeros_like(e).index_copy(0, positions, e[positions])

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {"size": self.size, "norm": self.norm, "tokens": self.tokens}


def count_perturbed_tokens(e: Tensor) -> int:
    """Return the number of non-zero rows of a perturbation.

    Example:
        >>> count_perturbed_tokens(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        1
    """
    return int((e != 0).any(-1).sum())


@dataclass(frozen=True, eq=False)
class Target:
    """A map and its input tokens.

    Attributes:
        f: the map, from (n, d) to any shape.
        x: the tokens (n, d).
        map_of_length: returns the map for another number of tokens (masks and positions of a model depend on it); None
            if the map is for n tokens only.
        origin: where the map and the tokens come from, as plain values from which they can be computed again.

    Example:
        >>> Target.of(lambda x: 2 * x, torch.zeros(3, 2)).n
        3
    """

    f: Map
    x: Tensor
    map_of_length: Callable[[int], Map] | None = field(default=None, repr=False)
    origin: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, f: Map, x: Tensor) -> Target:
        """Return the target of a layer, or of any torch map that takes any number of tokens."""
        if not isinstance(x, Tensor) or x.dim() != 2 or not len(x) or not x.dtype.is_floating_point:
            raise InputError(f"Target: expected tokens (n, d) of a floating dtype with n ≥ 1, got {describe(x)}")
        if not callable(f):
            raise InputError(f"Target: expected a SelfAttention or another map, got {type(f).__name__}")
        f, x = promote_half(f, x.detach())
        return cls(f, x, lambda n: f)

    @classmethod
    def in_model(
        cls, model: Model, input: Any, layer: int | None = None, map: str = "attention", *, head: int | None = None
    ) -> Target:
        """Return the target of a map in a model.

        Args:
            model: the model.
            input: a chunk of text, n token ids, or another input of the model.
            layer: the layer; None with map="model".
            map: a key of `MAPS`.
            head: one head of the layer.
        """
        at = model.map_at(input, layer, map, head=head)
        f, x = promote_half(at.f, at.x)

        def map_of_length(n: int) -> Map:
            if model.modality != "text":
                raise InputError(
                    f"expected a text model to change the number of tokens, got one that takes {model.modality}"
                )
            made = model.map(layer, map, head=head, n=n)
            return (
                made.converted(dtype=x.dtype) if isinstance(made, SelfAttention) else made
            )  # modules share the model's weights

        ids = getattr(input, "ids", input)
        origin = {
            "model": model.name,
            "dtype": str(model.dtype).removeprefix("torch."),
            "source": model.source,
            "layer": layer,
            "map": map,
            "head": head,
            "ids": ids.tolist() if isinstance(ids, Tensor) else list(ids) if not isinstance(ids, dict) else None,
        }
        return cls(f, x.detach(), map_of_length, origin)

    @property
    def n(self) -> int:
        """The number of tokens."""
        return len(self.x)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tokens."""
        return self.x.dtype

    def with_tokens(self, x: Tensor) -> Target:
        """Return the same map at other tokens, of which there may be more or fewer."""
        if len(x) == self.n:
            return replace(self, x=x)
        if self.map_of_length is None:
            raise InputError(
                f"expected a map of any number of tokens to insert or duplicate some, got one of {self.n} only"
            )
        return replace(self, f=self.map_of_length(len(x)), x=x)

    def double(self) -> Target:
        """Return the target in float64: a layer or module is copied, a function has to accept float64."""
        if self.dtype == torch.float64:
            return self
        single = self.map_of_length
        map_of_length = None if single is None else lambda n: _to_float64(single(n))
        return replace(self, f=_to_float64(self.f), x=self.x.double(), map_of_length=map_of_length)


def _to_float64(f: Map) -> Map:
    return f.converted(dtype=torch.float64) if isinstance(f, SelfAttention) else in_float64(f)


class FeatureProblem:
    """A target with an objective.

    Attributes:
        target: the map and its tokens.
        objective: what should change.
        x: the clean tokens (n, d).
        clean: the output at the clean tokens.
        calls: evaluations of the map so far, with or without a gradient; a product with its derivative counts as one.
    """

    def __init__(self, target: Target, objective: FeatureObjective) -> None:
        """Evaluate the map at the clean tokens."""
        self.target, self.objective, self.x = target, objective, target.x
        self.calls = 1
        with torch.no_grad():
            self.clean = target.f(self.x)
            if not isinstance(self.clean, Tensor) or not torch.isfinite(self.clean).all():
                raise InputError("expected a map with a finite output at the clean tokens, got NaN, ∞ or no tensor")
            objective.coordinates(self.clean)  # an objective that does not fit the output raises here

    @property
    def map(self) -> Map:
        """φ∘f, whose derivative determines the effect of small perturbations; f itself where φ is the identity."""
        if isinstance(self.objective, OutputChange):
            return self.target.f
        return ObjectiveMap(self.objective, self.target.f)

    def value(self, e: Tensor) -> float:
        """Return the length of the change that a perturbation makes."""
        self.calls += 1
        with torch.no_grad():
            return float(self.objective.length(self.target.f(self.x + e), self.clean))

    def value_and_gradient(self, e: Tensor) -> tuple[float, Tensor]:
        """Return the length of the change, and its gradient with respect to the perturbation."""
        self.calls += 1
        e = e.detach().requires_grad_()
        with torch.enable_grad():
            value = self.objective.length(self.target.f(self.x + e), self.clean)
        return float(value.detach()), torch.autograd.grad(value, e)[0]

    def best(self, perturbations: Sequence[Tensor]) -> Tensor:
        """Return the perturbation of largest value."""
        return max(perturbations, key=self.value)


class ObjectiveMap(torch.nn.Module):
    """x ↦ φ(f(x)) as a module, so that it can be converted to float64."""

    def __init__(self, objective: FeatureObjective, f: Map) -> None:
        """Register the map and the language head, where they are modules."""
        super().__init__()
        self.objective, self.f = objective, f
        self.parts = torch.nn.ModuleList(
            [m for m in (f, getattr(objective, "head", None)) if isinstance(m, torch.nn.Module)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(f(x))."""
        return self.objective.coordinates(self.f(x))
