"""An attack on one text: its model, objective and limits, with a count of all calls of the model.

A call is one sequence through the model, forwards or backwards: a batch of eight counts as eight, a gradient as two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attack.checks import check_count
from howsmooth.attack.objectives import TextObjective
from howsmooth.attack.tokens.edits import (
    Edit,
    EditLimits,
    SearchSpace,
    apply,
    positions_after,
    retokenises,
    shared_prefix,
    writable_tokens,
)
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.attack.tokens.edits import SentenceSimilarity
    from howsmooth.models.embedding import PrefixCache
    from howsmooth.models.model import Model
    from howsmooth.texts.cutting import TokenChunk

MAX_BATCH = 8  # sequences in one forward pass
GRADIENT_NOISE = 1e-2  # relative to the root mean square of the embeddings, where the gradient at the text is zero


@dataclass(frozen=True)
class Candidate:
    """A set of edits with its value, computed by a forward pass on the edited text.

    Attributes:
        edits: the edits.
        value: the objective at the edited text.
        success: whether the value exceeds the objective's threshold.
        next_token: the predicted next token, for objectives that have one.
    """

    edits: tuple[Edit, ...]
    value: float
    success: bool
    next_token: int | None = None


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass with its autograd graph; `TextProblem.gradient` differentiates it.

    Attributes:
        edits: the edits of the text.
        vectors: the embedding vectors (1, m, d), which require a gradient.
        output: the objective, a scalar.
        candidate: the evaluated edits; None for the original text and for noisy embeddings.
    """

    edits: tuple[Edit, ...]
    vectors: Tensor
    output: Tensor
    candidate: Candidate | None


class TargetModel:
    """A model under attack, with what all attacks on it share: its embedding, and the tokens that may be written.

    Args:
        model: a text model with a tokenizer.
    """

    def __init__(self, model: Model) -> None:
        """Read the embedding; the vocabulary is read when it is first needed."""
        from howsmooth.models.embedding import TokenEmbedding

        self.model, self.embedding = model, TokenEmbedding(model)

    @cached_property
    def writable(self) -> Tensor:
        """Which tokens may be written, True or False, (vocabulary,)."""
        return writable_tokens(self.model).to(self.model.device)


class TextProblem:
    """A text, an objective and limits, with a given number of calls of the model.

    Args:
        target: the model.
        chunk: the text.
        objective: what should change.
        limits: the edits that are allowed.
        calls: the largest number of calls; the forward pass of the original is the first one.
        similarity: a limit on the similarity of the edited text to the original.

    Attributes:
        original: the forward pass of the original text.
        best: the best candidate so far.
        notes: further results of a method, for the record.
    """

    def __init__(
        self,
        target: TargetModel,
        chunk: TokenChunk,
        objective: TextObjective,
        limits: EditLimits,
        calls: int,
        similarity: SentenceSimilarity | None = None,
    ) -> None:
        """Check the limits, and evaluate the original text."""
        check_count("attack on tokens", "calls", calls, least=2)
        self.target, self.embedding, self.objective, self.limits = target, target.embedding, objective, limits
        self.tokenizer = target.model.require_tokenizer()
        self.ids: Tensor = target.model.token_ids(chunk)
        self.special: list[bool] = chunk.special.tolist()
        positions = limits.editable_positions(self.special, target.model.positions)
        self.search_space = SearchSpace(positions, target.writable, self.embedding.matrix, limits.similarity)
        self.calls, self.forwards, self.backwards = calls, 0, 0
        self.similarity = similarity
        self.original_retokenises = retokenises(self.tokenizer, self.ids.tolist(), self.special)
        self.best: Candidate | None = None
        self.notes: dict[str, Any] = {}
        self._prefix: PrefixCache | None = None
        self.original = self._forward_original()

    @property
    def calls_used(self) -> int:
        """How many calls were made."""
        return self.forwards + self.backwards

    @property
    def calls_left(self) -> int:
        """How many calls may still be made."""
        return self.calls - self.calls_used

    @property
    def succeeded(self) -> bool:
        """Whether the best candidate is a success."""
        return self.best is not None and self.best.success

    @property
    def finished(self) -> bool:
        """Whether the attack has succeeded or no call is left."""
        return self.succeeded or self.calls_left < 1

    def edited(self, edits: Iterable[Edit]) -> list[int]:
        """Return the token ids of the edited text."""
        return apply(self.ids.tolist(), edits)

    def permits(self, edits: Sequence[Edit]) -> bool:
        """Return whether the edited text as a whole is within the limits: its tokenisation and its similarity."""
        if self.limits.retokenise and self.original_retokenises and not self.retokenises(edits):
            return False
        return self.similarity is None or self.similarity.accepts(self.text(()), self.text(edits))

    def retokenises(self, edits: Sequence[Edit]) -> bool:
        """Return whether the edited text is tokenised to the edited tokens."""
        positions = positions_after(len(self.ids), edits)
        ids = self.edited(edits)
        special = [False] * len(ids)
        for i, is_special in enumerate(self.special):
            special[positions[i]] = is_special
        return retokenises(self.tokenizer, ids, special)

    def text(self, edits: Sequence[Edit]) -> str:
        """Return the edited text without special tokens."""
        return self.tokenizer.decode(self.edited(edits), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def evaluate(self, edit_sets: Sequence[tuple[Edit, ...]]) -> list[Candidate]:
        """Evaluate as many sets of edits as there are calls left, in their order, several per forward pass."""
        edit_sets = list(edit_sets)[: max(0, self.calls_left)]
        outcomes = self._outcomes(edit_sets)
        self.forwards += len(edit_sets)
        return [self._add_candidate(edits, *outcome) for edits, outcome in zip(edit_sets, outcomes, strict=True)]

    @torch.no_grad()
    def _outcomes(self, edit_sets: Sequence[tuple[Edit, ...]]) -> list[tuple[float, int | None]]:
        """Return (value, next token) of each set; texts of equal length are batched, shared prefixes are cached."""
        texts = [self.edited(edits) for edits in edit_sets]
        shared = [
            min(shared_prefix(edits, len(self.ids)), len(text) - 1)  # the last token is always computed
            for edits, text in zip(edit_sets, texts, strict=True)
        ]
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), shared[i]))
        outcomes: list[tuple[float, int | None]] = [(0.0, None)] * len(texts)
        for _, same_length in groupby(order, key=lambda i: len(texts[i])):
            group = list(same_length)
            for start in range(0, len(group), MAX_BATCH):
                batch = group[start : start + MAX_BATCH]
                ids = torch.tensor([texts[i] for i in batch], device=self.ids.device)
                features = self._features(ids, shared[batch[0]])
                values = self.objective.value(features, self.reference, self._positions([edit_sets[i] for i in batch]))
                next_tokens = self.objective.next_tokens(features)
                for i, value, next_token in zip(batch, values.tolist(), next_tokens, strict=True):
                    outcomes[i] = value, next_token
        return outcomes

    def forward(self, edits: tuple[Edit, ...]) -> ForwardPass:
        """Evaluate one set of edits and keep the autograd graph, for one call; its gradient takes one more."""
        output, vectors, next_token = self._forward(edits, self._vectors(edits))
        candidate = self._add_candidate(edits, float(output.detach()), next_token)
        return ForwardPass(edits, vectors, output, candidate)

    def gradient(self, at: ForwardPass, seed: int = 0) -> Tensor:
        """Return the gradient (m, d) of the objective in the embeddings of a text, for one call.

        At the original text most objectives have zero gradient. There it is taken at slightly noisy embeddings, with
        the noise drawn from the seed. This is one step of power iteration on JᵀJ, and costs one more forward pass.
        """
        if self.objective.has_zero_gradient and not at.edits:
            vectors = self._vectors(())
            noise = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(seed)).to(vectors)
            noise = GRADIENT_NOISE * vectors.square().mean().sqrt() * noise
            output, vectors, _ = self._forward((), vectors + noise)
            at = ForwardPass((), vectors, output, None)
        if self.calls_left < 1:
            raise InputError(f"expected a call for a backward pass, got none left of {self.calls}; allow more calls")
        self.backwards += 1
        (gradient,) = torch.autograd.grad(at.output, at.vectors)
        return gradient[0]

    def _forward_original(self) -> ForwardPass:
        """Evaluate the original text, and keep its features and, for causal models, its keys and values."""
        vectors = self._vectors(()).requires_grad_()
        with torch.enable_grad():
            if self.objective.uses_last_token:
                hidden, self._prefix = self.embedding.hidden_and_prefix(vectors)
                features = self.objective.features_of_last(self.embedding, hidden[-1:])
            else:
                features = self.objective.features(self.embedding, vectors)
            self.reference = features.detach()
            output = self.objective.value(features, self.reference, self._positions([()])).sum()
        self.forwards += 1
        return ForwardPass((), vectors, output, None)

    def _forward(self, edits: tuple[Edit, ...], vectors: Tensor) -> tuple[Tensor, Tensor, int | None]:
        """Return the objective at embedding vectors, these vectors with a graph, and the next token, for one call."""
        if self.calls_left < 1:
            raise InputError(f"expected a call for a forward pass, got none left of {self.calls}; allow more calls")
        vectors = vectors.detach().requires_grad_()
        with torch.enable_grad():
            features = self.objective.features(self.embedding, vectors)
            output = self.objective.value(features, self.reference, self._positions([edits])).sum()
        self.forwards += 1
        return output, vectors, self.objective.next_tokens(features)[0]

    def _add_candidate(self, edits: tuple[Edit, ...], value: float, next_token: int | None) -> Candidate:
        """Return the candidate, and keep it if it is the best so far."""
        candidate = Candidate(edits, value, self.objective.succeeds(value), next_token)
        if self.best is None or (candidate.success, candidate.value) > (self.best.success, self.best.value):
            self.best = candidate
        return candidate

    def _vectors(self, edits: tuple[Edit, ...]) -> Tensor:
        """Return the embedding vectors (1, m, d) of the edited text."""
        return self.embedding.matrix[torch.tensor(self.edited(edits), device=self.ids.device)][None]

    def _positions(self, edit_sets: Sequence[tuple[Edit, ...]]) -> Tensor:
        """Return where the original's tokens are after each set of edits, (b, n)."""
        return torch.tensor([positions_after(len(self.ids), edits) for edits in edit_sets], device=self.ids.device)

    def _features(self, ids: Tensor, shared: int) -> Tensor:
        """Return the features of texts (b, m) that share a prefix with the original."""
        if self._prefix is None:
            return self.objective.features(self.embedding, self.embedding.matrix[ids])
        return self.objective.features_of_last(self.embedding, self._prefix.last_hidden(ids, shared))
