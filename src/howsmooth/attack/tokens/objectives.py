"""What an attack on tokens wants to change, as one number per text; larger is a better attack.

    flip      max_{j≠y} z_j − z_y           the margin of the next token over y, the original's; a flip where positive
    kl        KL(p ‖ p'), nats              of the next-token distributions
    hidden    ‖H' − H‖ / ‖H‖                the last hidden states, or the attention output of a layer
    cosine    1 − cos(e, e')                of mean-pooled embeddings, as sentence-transformers pools: over all tokens,
                                            special ones included. Texts in a batch have one length: nothing is padded
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.embedding import TokenEmbedding

ROUNDING = 1e-3  # a margin of logits below which float32 cannot tell who wins


@dataclass(frozen=True)
class Objective:
    """`features` are what the model says of texts (b, n, d); `value` (b,) holds them against the original's.

    flat: the value has no slope at the original itself. last_only: the features depend on the last hidden state alone.
    threshold: an attack succeeds above it; None where only the value counts.
    """

    threshold: float | None = None

    name = ""
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

    def as_record(self) -> dict:
        return {"name": self.name, "threshold": self.threshold}


@dataclass(frozen=True)
class _NextToken(Objective):
    last_only = True

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        return self.of_last(embedding, embedding.hidden(vectors)[:, -1])

    def of_last(self, embedding: TokenEmbedding, last: Tensor) -> Tensor:
        """The features (b, vocabulary) from the last token's hidden state (b, d)."""
        return embedding.model.language_head(last)

    def says(self, features: Tensor) -> list[int | None]:
        return features.argmax(-1).tolist()


@dataclass(frozen=True)
class Flip(_NextToken):
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
class KL(_NextToken):
    """The change of the next-token distribution."""

    name = "kl"

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        p, q = reference.log_softmax(-1), features.log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True)
class Hidden(Objective):
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

    def as_record(self) -> dict:
        return {**super().as_record(), "layer": self.layer}


@dataclass(frozen=True)
class Cosine(Objective):
    """How far the mean-pooled embedding turns."""

    name = "cosine"

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        return embedding.hidden(vectors).mean(1)

    def value(self, features: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        return 1 - torch.nn.functional.cosine_similarity(features, reference, dim=-1)


OBJECTIVES = {kind.name: kind for kind in (Flip, KL, Hidden, Cosine)}


def objective_of(record: dict) -> Objective:
    """The objective that `as_record` wrote down."""
    settings = dict(record)
    name = settings.pop("name", None)
    if name not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}, got {name!r}")
    return OBJECTIVES[name](**settings)
