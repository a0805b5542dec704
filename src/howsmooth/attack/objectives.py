"""Objectives of attacks: what should change, in feature space and in token space.

In feature space each objective is, to first order, a distance in coordinates φ of its own. With y the output of the
map:

    objective       unit                           coordinates φ(y)       length of the change
    OutputChange    ‖y' − y‖                       y                      ‖y' − y‖
    NextToken       KL(p ‖ p'), nats               2√p                    √(2 KL)
    Similarity      cosine of two embeddings       e/|e|                  √(2 (1 − cos)), the chord

For all three the length of a change is ‖Δφ‖ to first order (for the last one exactly). So the best small perturbation
is the first right singular vector of D(φ∘f), and length/‖E‖ tends to its σ₁. KL and cosine themselves have zero
gradient at the clean input; their square roots do not.

In token space changes are not small. Each objective is one number per text, and a larger one is a better attack:

    Flip      max_{j≠y} z_j − z_y           the margin of another next token over the original's, y; positive is a flip
    KL        KL(p ‖ p'), nats              of the next-token distributions
    Hidden    ‖H' − H‖ / ‖H‖                the last hidden states, or the attention output of a layer
    Cosine    1 − cos(e, e')                of mean-pooled embeddings, pooled over all tokens, special ones included, as
                                            in sentence-transformers. Texts in a batch have equal length: no padding
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth import choices
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models.embedding import TokenEmbedding

FLIP_MARGIN = 1e-3  # smaller margins between logits may be rounding of float32


class Objective:
    """What all objectives share: a name, and settings, which are the fields of a dataclass."""

    name: str = ""

    def as_record(self) -> dict[str, Any]:
        """Return the name and every field that `repr` shows; a model's weights are in neither."""
        shown: list[str] = [each.name for each in fields(self) if each.repr] if is_dataclass(self) else []
        return {"name": self.name} | {name: getattr(self, name) for name in shown}


def objective_of(record: Mapping[str, Any], kinds: Mapping[str, type[Objective]], **parts: Any) -> Any:
    """Return the objective that a record of `as_record` describes.

    Args:
        record: the name and the settings.
        kinds: the objectives to choose from, by name.
        **parts: fields that records do not contain, such as a language head.

    Example:
        >>> objective_of(Similarity(3).as_record(), FEATURE_OBJECTIVES)
        Similarity(token=3)
    """
    settings = dict(record)
    name = settings.pop("name", None)
    if name not in kinds:
        raise InputError(f"expected an objective among {', '.join(kinds)}, got {name!r}")
    return kinds[name](**settings, **parts)


def _kl_terms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return p_j (log p_j − log q_j) for each j, whose sum is KL(p ‖ q)."""
    return log_p.exp() * (log_p - log_q)


class FeatureObjective(Objective):
    """An objective of attacks in feature space.

    Attributes:
        name: the name in records and on the command line.
        unit: the unit of `measure`.
        clean_value: the value of `measure` where nothing has changed.
    """

    unit: str
    clean_value: float = 0.0

    def coordinates(self, y: Tensor) -> Tensor:
        """Return φ(y), in which the length of a small change is the Euclidean distance."""
        raise NotImplementedError

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        """Return the length of the change from the clean output to y; differentiable except at the clean output."""
        return torch.linalg.vector_norm(self.coordinates(y) - self.coordinates(clean))

    def measure(self, y: Tensor, clean: Tensor) -> float:
        """Return the change in the objective's unit."""
        return float(self.length(y, clean))

    def details(self, y: Tensor, clean: Tensor) -> dict[str, Any]:
        """Return further facts about the attacked output, for the record."""
        return {}


@dataclass(frozen=True)
class OutputChange(FeatureObjective):
    """‖f(X') − f(X)‖_F: the change of a layer's output, or of the last hidden states of a model."""

    name = choices.OUTPUT
    unit = "‖f(X+E) − f(X)‖"

    def coordinates(self, y: Tensor) -> Tensor:
        """Return y."""
        return y


@dataclass(frozen=True, eq=False)
class NextToken(FeatureObjective):
    """KL divergence of the next-token distribution.

    Attributes:
        head: the language head, from hidden states (…, d) to logits (…, vocabulary).
        position: the position after which the next token is predicted; None adds up KL over all positions.

    Example:
        >>> details = NextToken(torch.nn.Identity()).details(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
        >>> details["flips"], details["tokens_before"], details["tokens_after"]
        (1, [0], [1])
    """

    head: torch.nn.Module = field(repr=False)
    position: int | None = -1

    name = choices.NEXT_TOKEN
    unit = "KL, nats"

    def coordinates(self, y: Tensor) -> Tensor:
        """Return 2√p."""
        return 2 * (self._log_probabilities(y) / 2).exp()

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        """Return √(2 KL)."""
        # KL is of second order in the change. Where it is below its rounding, the distance in coordinates replaces it.
        kl = _kl_terms(self._log_probabilities(clean), self._log_probabilities(y)).sum()
        chord, precision = super().length(y, clean), torch.finfo(y.dtype)
        return torch.where(kl > 1e3 * precision.eps, (2 * kl.clamp(min=precision.tiny)).sqrt(), chord)

    def measure(self, y: Tensor, clean: Tensor) -> float:
        """Return KL(p ‖ p') in nats."""
        return float(self.length(y, clean)) ** 2 / 2

    def details(self, y: Tensor, clean: Tensor) -> dict[str, Any]:
        """Return the most probable tokens before and after, and how many of them differ."""
        before, after = (self._log_probabilities(t).argmax(-1) for t in (clean, y))
        return {
            "flips": int((before != after).sum()),
            "positions": len(before),
            "tokens_before": before.tolist(),
            "tokens_after": after.tolist(),
        }

    def _log_probabilities(self, y: Tensor) -> Tensor:
        """Return the log probabilities (positions, vocabulary)."""
        n = len(y)
        if self.position is not None and not -n <= self.position < n:
            raise InputError(f"NextToken: expected a position among {n} tokens, got {self.position}")
        chosen = y if self.position is None else y[self.position].unsqueeze(0)
        return torch.log_softmax(self.head(chosen), -1)


@dataclass(frozen=True)
class Similarity(FeatureObjective):
    """Cosine similarity with the clean embedding.

    Attributes:
        token: the position whose output is the embedding; None for the mean of all outputs.
    """

    token: int | None = None

    name = choices.COSINE
    unit = "cosine with the clean embedding"
    clean_value = 1.0

    def coordinates(self, y: Tensor) -> Tensor:
        """Return the embedding, normalised."""
        e = y.mean(-2) if self.token is None else y[..., self.token, :]
        return e / torch.linalg.vector_norm(e)

    def measure(self, y: Tensor, clean: Tensor) -> float:
        """Return the cosine with the clean embedding."""
        return 1 - float(self.length(y, clean)) ** 2 / 2


FEATURE_OBJECTIVES: dict[str, type[FeatureObjective]] = {
    known.name: known for known in (OutputChange, NextToken, Similarity)
}


@dataclass(frozen=True)
class TextObjective(Objective):
    """An objective of attacks in token space.

    Attributes:
        threshold: an attack succeeds if the value exceeds it; None if there is no such threshold.
        has_zero_gradient: whether the gradient vanishes at the original text.
        uses_last_token: whether the features depend only on the hidden state of the last token.
    """

    threshold: float | None = None

    has_zero_gradient = True
    uses_last_token = False

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        """Return the model's features (b, …) of texts, given as embedding vectors (b, n, d)."""
        raise NotImplementedError

    def features_of_last(self, embedding: TokenEmbedding, last: Tensor) -> Tensor:
        """Return the features (b, …) from the last token's hidden states (b, d), where they suffice."""
        raise NotImplementedError

    def value(self, features: Tensor, reference: Tensor, positions: Tensor) -> Tensor:
        """Compare the features of b texts with those of the original.

        Args:
            features: of the edited texts, (b, …).
            reference: of the original text, (1, …).
            positions: where the original's tokens are in each edited text, (b, n).

        Returns:
            One value for each text, (b,).
        """
        raise NotImplementedError

    def next_tokens(self, features: Tensor) -> list[int | None]:
        """Return the predicted next token of each text; None for objectives that do not predict one."""
        return [None] * len(features)

    def succeeds(self, value: float) -> bool:
        """Return whether a value exceeds the threshold."""
        return self.threshold is not None and value > self.threshold


@dataclass(frozen=True)
class _NextTokenObjective(TextObjective):
    """An objective on the logits of the next token."""

    uses_last_token = True

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        """Return the logits (b, vocabulary)."""
        return self.features_of_last(embedding, embedding.hidden(vectors)[:, -1])

    def features_of_last(self, embedding: TokenEmbedding, last: Tensor) -> Tensor:
        """Return the logits (b, vocabulary) from the last token's hidden states (b, d)."""
        return embedding.model.language_head(last)

    def next_tokens(self, features: Tensor) -> list[int | None]:
        """Return the most probable tokens."""
        return features.argmax(-1).tolist()


@dataclass(frozen=True)
class Flip(_NextTokenObjective):
    """A next token other than the original's.

    Attributes:
        threshold: the least margin of a flip, in logits.

    Example:
        >>> Flip().value(torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.0]]), torch.empty(1, 0))
        tensor([2.])
    """

    threshold: float | None = FLIP_MARGIN

    name = choices.FLIP
    has_zero_gradient = False

    def value(self, features: Tensor, reference: Tensor, positions: Tensor) -> Tensor:
        """Return the margin of the best other token over the original's, in logits."""
        original = reference[0].argmax()
        others = features.index_fill(-1, original, float("-inf")).max(-1).values
        return others - features[:, original]


@dataclass(frozen=True)
class KL(_NextTokenObjective):
    """The change of the next-token distribution."""

    name = choices.KL

    def value(self, features: Tensor, reference: Tensor, positions: Tensor) -> Tensor:
        """Return KL(p ‖ p') in nats."""
        return _kl_terms(reference.log_softmax(-1), features.log_softmax(-1)).sum(-1)


@dataclass(frozen=True)
class Hidden(TextObjective):
    """The relative change of the last hidden states, or of the attention output of a layer.

    Every original token is compared with itself or its substitute; inserted tokens do not count.

    Attributes:
        layer: the layer whose attention output is compared; None for the last hidden states.
    """

    layer: int | None = None

    name = choices.HIDDEN

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        """Return the hidden states or attention outputs (b, n, d)."""
        return embedding.hidden(vectors) if self.layer is None else embedding.attention(vectors, self.layer)

    def value(self, features: Tensor, reference: Tensor, positions: Tensor) -> Tensor:
        """Return ‖H' − H‖/‖H‖."""
        aligned = features.gather(1, positions[:, :, None].expand(-1, -1, features.shape[-1]))
        change = torch.linalg.vector_norm((aligned - reference).flatten(1), dim=-1)
        return change / torch.linalg.vector_norm(reference)


@dataclass(frozen=True)
class Cosine(TextObjective):
    """The cosine distance of mean-pooled embeddings."""

    name = choices.COSINE

    def features(self, embedding: TokenEmbedding, vectors: Tensor) -> Tensor:
        """Return the mean of the last hidden states, (b, d)."""
        return embedding.hidden(vectors).mean(1)

    def value(self, features: Tensor, reference: Tensor, positions: Tensor) -> Tensor:
        """Return 1 − cos."""
        # Rounding may make the cosine of a text with itself larger than 1.
        return (1 - torch.nn.functional.cosine_similarity(features, reference, dim=-1)).clamp(min=0)


TEXT_OBJECTIVES: dict[str, type[TextObjective]] = {known.name: known for known in (Flip, KL, Hidden, Cosine)}
