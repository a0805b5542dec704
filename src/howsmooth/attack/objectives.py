"""What an attack wants to change, in feature space and in token space.

In feature space each objective is, to first order, a length in coordinates of its own. y is what the map puts out:

    objective       own unit                       coordinates φ(y)       length of the change
    OutputChange    ‖y' − y‖                       y                      ‖y' − y‖
    NextToken       KL(p ‖ p'), nats               2√p                    √(2 KL)
    Similarity      cosine of two embeddings       e/|e|                  √(2 (1 − cos)), the chord

In all three the length of a change is ‖Δφ‖ to first order (the last one exactly), so that the best small perturbation
is the first right singular vector of D(φ∘f), and length/‖E‖ tends to σ₁ of it: KL and cosine have no slope at the clean
input, their root has.

In token space nothing is small. Each objective is one number per text, and larger is a better attack:

    Flip      max_{j≠y} z_j − z_y           the margin of the next token over y, the original's; a flip where positive
    KL        KL(p ‖ p'), nats              of the next-token distributions
    Hidden    ‖H' − H‖ / ‖H‖                the last hidden states, or the attention output of a layer
    Cosine    1 − cos(e, e')                of mean-pooled embeddings, as sentence-transformers pools: over all tokens,
                                            special ones included. Texts in a batch have one length: nothing is padded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models import TokenEmbedding

ROUNDING = 1e-3  # a margin of logits below which float32 cannot tell who wins


class Objective:
    """What all objectives share: a name, and settings, which are the fields of a dataclass."""

    name: str = ""

    def as_record(self) -> dict[str, Any]:
        """The name and every field that `repr` shows; a model's weights are left out of both."""
        shown: list[str] = [each.name for each in fields(self) if each.repr] if is_dataclass(self) else []
        return {"name": self.name} | {name: getattr(self, name) for name in shown}


def objective_of(record: Mapping[str, Any], kinds: Mapping[str, type[Objective]], **parts: Any) -> Any:
    """The objective among these kinds that `as_record` wrote down; `parts` are what no record holds.

    >>> objective_of(Similarity(3).as_record(), FEATURE_OBJECTIVES)
    Similarity(token=3)
    """
    settings = dict(record)
    name = settings.pop("name", None)
    if name not in kinds:
        raise InputError(f"expected an objective among {', '.join(kinds)}, got {name!r}")
    return kinds[name](**settings, **parts)


def _kl_terms(logs: Tensor, others: Tensor) -> Tensor:
    """p_j (log p_j − log q_j) for each j, whose sum is KL(p ‖ q)."""
    return logs.exp() * (logs - others)


class FeatureObjective(Objective):
    """`coordinates(y)`; `length(y, clean)`, differentiable off the clean output; `reading(y, clean)` in its unit."""

    unit: str
    at_rest: float = 0.0  # the reading where nothing has changed

    def coordinates(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self.coordinates(y) - self.coordinates(clean))

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return float(self.length(y, clean))

    def facts(self, y: Tensor, clean: Tensor) -> dict:
        """What else is worth saying about the attacked output."""
        return {}


@dataclass(frozen=True)
class OutputChange(FeatureObjective):
    """‖f(X') − f(X)‖_F: the output of a layer, or the last hidden state of a whole model."""

    name = "output"
    unit = "‖f(X+E) − f(X)‖"

    def coordinates(self, y: Tensor) -> Tensor:
        return y


@dataclass(frozen=True, eq=False)
class NextToken(FeatureObjective):
    """The distribution of the next token at a `position` (None: after every token, KL added up), by a language head.

    >>> moved = NextToken(torch.nn.Identity()).facts(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
    >>> moved["flips"], moved["tokens_before"], moved["tokens_after"]
    (1, [0], [1])
    """

    head: torch.nn.Module = field(repr=False)
    position: int | None = -1

    name = "next-token"
    unit = "KL, nats"

    def coordinates(self, y: Tensor) -> Tensor:
        return 2 * (self._logs(y) / 2).exp()

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        # KL is second order in the change: below its rounding, the root of it is the length in coordinates.
        kl, chord = _kl_terms(self._logs(clean), self._logs(y)).sum(), super().length(y, clean)
        return torch.where(
            kl > 1e3 * torch.finfo(y.dtype).eps, (2 * kl.clamp(min=torch.finfo(y.dtype).tiny)).sqrt(), chord
        )

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return float(self.length(y, clean)) ** 2 / 2

    def facts(self, y: Tensor, clean: Tensor) -> dict:
        before, after = (self._logs(t).argmax(-1) for t in (clean, y))
        return {
            "flips": int((before != after).sum()),
            "positions": len(before),
            "tokens_before": before.tolist(),
            "tokens_after": after.tolist(),
        }

    def _logs(self, y: Tensor) -> Tensor:
        n = len(y)
        if self.position is not None and not -n <= self.position < n:
            raise InputError(f"NextToken: expected a position among {n} tokens, got {self.position}")
        chosen = y if self.position is None else y[self.position].unsqueeze(0)
        return torch.log_softmax(self.head(chosen), -1)


@dataclass(frozen=True)
class Similarity(FeatureObjective):
    """Cosine similarity with the clean embedding: the mean of all outputs, or output `token` alone."""

    token: int | None = None

    name = "cosine"
    unit = "cosine with the clean embedding"
    at_rest = 1.0

    def coordinates(self, y: Tensor) -> Tensor:
        e = y.mean(-2) if self.token is None else y[..., self.token, :]
        return e / torch.linalg.vector_norm(e)

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return 1 - float(self.length(y, clean)) ** 2 / 2


FEATURE_OBJECTIVES: dict[str, type[FeatureObjective]] = {
    kind.name: kind for kind in (OutputChange, NextToken, Similarity)
}


@dataclass(frozen=True)
class TextObjective(Objective):
    """`features` are what the model says of texts (b, n, d); `value` (b,) holds them against the original's.

    flat: the value has no slope at the original itself. last_only: the features depend on the last hidden state alone.
    threshold: an attack succeeds above it; None where only the value counts.
    """

    threshold: float | None = None

    flat = True
    last_only = False

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        raise NotImplementedError

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        """reference: features (1, …) of the original; kept (b, n): where its tokens stand now."""
        raise NotImplementedError

    def says(self, features: Tensor) -> list[int | None]:
        """The next token of each text, for objectives that ask for it."""
        return [None] * len(features)

    def succeeds(self, value: float) -> bool:
        return self.threshold is not None and value > self.threshold


@dataclass(frozen=True)
class _OfNextToken(TextObjective):
    last_only = True

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        return self.of_last(embedding, embedding.hidden(vectors)[:, -1])

    def of_last(self, embedding: TokenEmbedding, last: Tensor) -> Tensor:
        """The features (b, vocabulary) from the last token's hidden state (b, d)."""
        return embedding.model.language_head(last)

    def says(self, features: Tensor) -> list[int | None]:
        return features.argmax(-1).tolist()


@dataclass(frozen=True)
class Flip(_OfNextToken):
    """Another next token than the original's.

    >>> Flip().value(torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.0]]), torch.empty(1, 0))
    tensor([2.])
    """

    threshold: float | None = ROUNDING

    name = "flip"
    flat = False

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        was = reference[0].argmax()
        others = features.index_fill(-1, was, float("-inf")).max(-1).values
        return others - features[:, was]


@dataclass(frozen=True)
class KL(_OfNextToken):
    """The change of the next-token distribution."""

    name = "kl"

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        return _kl_terms(reference.log_softmax(-1), features.log_softmax(-1)).sum(-1)


@dataclass(frozen=True)
class Hidden(TextObjective):
    """The relative change of the last hidden states, or with a `layer` of its attention output.

    Every original token is held against itself, or against what took its place; inserted tokens do not count.
    """

    layer: int | None = None

    name = "hidden"

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        return embedding.hidden(vectors) if self.layer is None else embedding.attention(vectors, self.layer)

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        now = features.gather(1, kept[:, :, None].expand(-1, -1, features.shape[-1]))
        change = torch.linalg.vector_norm((now - reference).flatten(1), dim=-1)
        return change / torch.linalg.vector_norm(reference)


@dataclass(frozen=True)
class Cosine(TextObjective):
    """How far the mean-pooled embedding turns."""

    name = "cosine"

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        return embedding.hidden(vectors).mean(1)

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        # Rounding may put the cosine of a text with itself above 1.
        return (1 - torch.nn.functional.cosine_similarity(features, reference, dim=-1)).clamp(min=0)


TEXT_OBJECTIVES: dict[str, type[TextObjective]] = {kind.name: kind for kind in (Flip, KL, Hidden, Cosine)}
