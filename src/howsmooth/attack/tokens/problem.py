"""One text under attack: its model, objective and limits, and a count of every call of the model.

A call is one sequence through the model, forwards or backwards: a batch of eight counts as eight, a gradient as two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attack.constraints import check_count
from howsmooth.attack.objectives import TextObjective
from howsmooth.attack.tokens.edits import Edit, Limits, Room, apply, first_change, kept, round_trips, writable
from howsmooth.errors import InputError
from howsmooth.models import Prefix, TokenEmbedding

if TYPE_CHECKING:
    from howsmooth.attack.tokens.edits import SentenceJudge
    from howsmooth.models import Model, TokenChunk

BATCH = 8  # sequences in one forward pass
ASIDE = 1e-2  # of an embedding's root mean square: how far aside a slope is taken where there is none


@dataclass(frozen=True)
class Trial:
    """A set of edits and what it does, by a forward pass on the edited text itself."""

    edits: tuple[Edit, ...]
    value: float
    success: bool
    says: int | None = None  # the next token, for objectives that ask for it


@dataclass(frozen=True, eq=False)
class Pass:
    """A text on its way through the model, with the graph behind its value; a slope is taken from it by `slope`."""

    edits: tuple[Edit, ...]
    ids: Tensor
    vectors: Tensor
    output: Tensor
    trial: Trial | None  # None for the original


class Victim:
    """A model with what all attacks on it share: its embedding, and the tokens that may be written."""

    def __init__(self, model: Model):
        self.model, self.embedding = model, TokenEmbedding(model)

    @cached_property
    def writable(self) -> Tensor:
        return writable(self.model).to(self.model.device)


class TextProblem:
    """A text (a `TokenChunk`), an objective and limits, with `calls` calls of the model to spend.

    The original's own forward pass, `original`, is the first call. `best` is the best trial so far.
    """

    def __init__(
        self,
        victim: Victim,
        chunk: TokenChunk,
        objective: TextObjective,
        limits: Limits,
        calls: int,
        judge: SentenceJudge | None = None,
    ):
        check_count("attack on tokens", "calls", calls, least=2)
        self.victim, self.embedding, self.objective, self.limits = victim, victim.embedding, objective, limits
        self.tokenizer = victim.model._need_tokenizer()
        self.ids = victim.model._ids(chunk)
        self.special = chunk.special.tolist()
        places = limits.places(self.special, victim.model.positions)
        self.room = Room(places, victim.writable, self.embedding.matrix, limits.similarity)
        self.calls, self.forwards, self.backwards = calls, 0, 0
        self.judge = judge
        self.round_trips = round_trips(self.tokenizer, self.ids.tolist(), self.special)
        self.best: Trial | None = None
        self.notes: dict = {}
        self._prefix: Prefix | None = None
        self.original = self._read_original()

    @property
    def spent(self) -> int:
        return self.forwards + self.backwards

    @property
    def left(self) -> int:
        return self.calls - self.spent

    @property
    def solved(self) -> bool:
        return self.best is not None and self.best.success

    @property
    def over(self) -> bool:
        """Nothing is left to do, or nothing to do it with."""
        return self.solved or self.left < 1

    def edited(self, edits: Iterable[Edit]) -> list[int]:
        return apply(self.ids.tolist(), edits)

    def permits(self, edits: Sequence[Edit]) -> bool:
        """Whether a set of edits keeps to what can only be said of the whole text: re-tokenising, and the judge."""
        if self.limits.retokenise and self.round_trips and not self.reads_again(edits):
            return False
        return self.judge is None or self.judge.accepts(self.text(()), self.text(edits))

    def reads_again(self, edits: Sequence[Edit]) -> bool:
        """Whether the edited text is read as the same tokens again."""
        where = kept(len(self.ids), edits)
        ids = self.edited(edits)
        special = [False] * len(ids)
        for i, is_special in enumerate(self.special):
            special[where[i]] = is_special
        return round_trips(self.tokenizer, ids, special)

    def text(self, edits: Sequence[Edit]) -> str:
        return self.tokenizer.decode(self.edited(edits), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def evaluate(self, candidates: Sequence[tuple[Edit, ...]]) -> list[Trial]:
        """Exact values of as many candidates as there are calls left, in their order, several per forward pass."""
        candidates = list(candidates)[: max(0, self.left)]
        found = self._measured(candidates)
        self.forwards += len(candidates)
        return [self._tried(edits, *outcome) for edits, outcome in zip(candidates, found, strict=True)]

    @torch.no_grad()
    def _measured(self, candidates: Sequence[tuple[Edit, ...]]) -> list[tuple[float, int | None]]:
        """(value, next token) of each: texts of one length together, beginnings shared with the original read once."""
        texts = [self.edited(edits) for edits in candidates]
        shared = [
            min(first_change(edits, len(self.ids)), len(text) - 1)  # the last token is always read
            for edits, text in zip(candidates, texts, strict=True)
        ]
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), shared[i]))
        outcomes: list[tuple[float, int | None]] = [(0.0, None)] * len(texts)
        for _, group in groupby(order, key=lambda i: len(texts[i])):
            group = list(group)
            for start in range(0, len(group), BATCH):
                batch = group[start : start + BATCH]
                ids = torch.tensor([texts[i] for i in batch], device=self.ids.device)
                features = self._features(ids, shared[batch[0]])
                found = self.objective.value(features, self.reference, self._kept([candidates[i] for i in batch]))
                for i, value, says in zip(batch, found.tolist(), self.objective.says(features), strict=True):
                    outcomes[i] = value, says
        return outcomes

    def forward(self, edits: tuple[Edit, ...]) -> Pass:
        """One text through the model with a graph behind it: a trial for one call, its slope for one more."""
        return self._pass(edits, self._vectors(edits), aside=False)

    def slope(self, at: Pass, seed: int = 0) -> Tensor:
        """The slope (m, d) of the objective in the embeddings of a text that was read, for one call.

        At the original most objectives have no slope. There it is taken a little aside, in a direction drawn from the
        seed, which is one step of power iteration on JᵀJ and costs a forward pass more.
        """
        if self.objective.flat and not at.edits:
            vectors = self._vectors(())
            noise = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(seed)).to(vectors)
            at = self._pass((), vectors + ASIDE * vectors.square().mean().sqrt() * noise, aside=True)
        if self.left < 1:
            raise InputError(f"expected a call for a backward pass, got none left of {self.calls}; allow more calls")
        self.backwards += 1
        (found,) = torch.autograd.grad(at.output, at.vectors)
        return found[0]

    def _read_original(self) -> Pass:
        vectors = self._vectors(()).requires_grad_()
        with torch.enable_grad():
            if self.objective.last_only:
                hidden, self._prefix = self.embedding.read(vectors)
                features = self.objective.of_last(self.embedding, hidden[-1:])
            else:
                features = self.objective.features(self.embedding, vectors)
            self.reference = features.detach()
            output = self.objective.value(features, self.reference, self._kept([()])).sum()
        self.forwards += 1
        return Pass((), self.ids, vectors, output, None)

    def _pass(self, edits: tuple[Edit, ...], vectors: Tensor, aside: bool) -> Pass:
        if self.left < 1:
            raise InputError(f"expected a call for a forward pass, got none left of {self.calls}; allow more calls")
        vectors = vectors.detach().requires_grad_()
        with torch.enable_grad():
            features = self.objective.features(self.embedding, vectors)
            output = self.objective.value(features, self.reference, self._kept([edits])).sum()
        self.forwards += 1
        trial = None if aside else self._tried(edits, float(output.detach()), self.objective.says(features)[0])
        return Pass(edits, torch.tensor(self.edited(edits), device=self.ids.device), vectors, output, trial)

    def _tried(self, edits: tuple[Edit, ...], value: float, says: int | None) -> Trial:
        trial = Trial(edits, value, self.objective.succeeds(value), says)
        if self.best is None or (trial.success, trial.value) > (self.best.success, self.best.value):
            self.best = trial
        return trial

    def _vectors(self, edits: tuple[Edit, ...]) -> Tensor:
        return self.embedding.matrix[torch.tensor(self.edited(edits), device=self.ids.device)][None]

    def _kept(self, candidates: Sequence[tuple[Edit, ...]]) -> Tensor:
        return torch.tensor([kept(len(self.ids), edits) for edits in candidates], device=self.ids.device)

    def _features(self, ids: Tensor, shared: int) -> Tensor:
        if self._prefix is None:
            return self.objective.features(self.embedding, self.embedding.matrix[ids])
        return self.objective.of_last(self.embedding, self._prefix.last_hidden(ids, shared))
