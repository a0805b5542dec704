"""What is attacked: a map and the tokens that enter it, by itself or as a part of a model, at any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import in_float64
from howsmooth.lipschitz.local import single_at_least

if TYPE_CHECKING:
    from howsmooth.models import Model


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
    def in_model(cls, model: Model, input, layer: int | None = None, kind: str = "attention", *,
                 head: int | None = None) -> Target:
        """A map of a model (the kinds of `Model.map`) and what enters it on an input: a chunk, or n token numbers."""
        at = model.map_at(input, layer, kind, head=head)
        f, x = single_at_least(at.f, at.x)

        def of_length(n: int) -> Callable:
            if model.modality != "text":
                raise InputError(f"expected a text model to change the number of tokens, got one that takes "
                                 f"{model.modality}")
            made = model.map(layer, kind, head=head, n=n)
            return made.to(x.dtype) if isinstance(made, SelfAttention) else made  # modules share the model's weights

        ids = getattr(input, "ids", input)
        origin = {"model": model.name, "dtype": str(model.dtype).removeprefix("torch."), "source": model.source,
                  "layer": layer, "kind": kind, "head": head,
                  "ids": ids.tolist() if isinstance(ids, Tensor) else list(ids) if not isinstance(ids, dict) else None}
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
            raise InputError("expected a map of any number of tokens to insert or duplicate some, got one of "
                             f"{self.n} only")
        return replace(self, f=self.of_length(len(x)), x=x)

    def double(self) -> Target:
        """The same in float64: a layer or module is copied, a function has to take it."""
        if self.dtype == torch.float64:
            return self
        of_length = None if self.of_length is None else lambda n: _doubled(self.of_length(n))
        return replace(self, f=_doubled(self.f), x=self.x.double(), of_length=of_length)


def _doubled(f):
    return f.to(torch.float64) if isinstance(f, SelfAttention) else in_float64(f)
