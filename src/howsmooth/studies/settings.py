"""What to measure, and how surely: every choice of a measurement, resolved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

LONGEST_TWIN = 4096  # tokens up to which rounding on a GPU is measured against float64, unless told otherwise


@dataclass(frozen=True)
class Settings:
    """What to measure, resolved against one model and one text: nothing is left to be looked up.

    `heads` None measures whole layers, a tuple measures each of those heads alone.
    """

    layers: tuple[int, ...]
    lengths: tuple[int, ...]
    samples: int
    heads: tuple[int, ...] | None = None
    kind: str | None = None  # "normed", "block" or "layer" in place of attention
    tokens: str = "all"
    special_tokens: bool = True
    tol: float = 1e-3
    confidence: float = 0.999
    max_memory: int | None = None
    products: str | None = None  # the dtype of products, see `local_lipschitz`; "auto" chooses by length and device
    stop: str = "interval"
    max_steps: int | None = None
    seed: int = 0

    @property
    def map(self) -> str:
        return self.kind or ("attention" if self.heads is None else "head")

    @property
    def product_dtype(self) -> torch.dtype | None:
        return None if self.products is None else getattr(torch, self.products)

    def at(self, n: int, device: torch.device) -> Settings:
        """The same with products that suit a length: on a GPU a float64 twin takes longer than the solve from some."""
        if self.products != "auto":
            return self
        return replace(self, products="float32" if device.type == "cuda" and n > LONGEST_TWIN else None)

    @property
    def estimates(self) -> int:
        """How many records `measure` will yield."""
        heads = 1 if self.heads is None else len(self.heads)
        return len(self.lengths) * self.samples * len(self.layers) * heads
