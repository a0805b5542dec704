"""An attack on the tokens of one text, its result, and its verification from the token ids of the record alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attack.checks import Verification, check_seed
from howsmooth.attack.objectives import TEXT_OBJECTIVES, Flip, TextObjective, objective_of
from howsmooth.attack.tokens.edits import Edit, EditLimits, SentenceSimilarity, apply, positions_after
from howsmooth.attack.tokens.inversion import Singular
from howsmooth.attack.tokens.methods import Greedy, HotFlip, Method, Probe, Random
from howsmooth.attack.tokens.problem import Candidate, TargetModel, TextProblem
from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.texts.cutting import TokenChunk, surrounding_special_tokens, word

if TYPE_CHECKING:
    from howsmooth.models.model import Model


METHODS: dict[str, type[Method]] = {method.name: method for method in (Random, HotFlip, Greedy, Probe, Singular)}
DEFAULT_CALLS = 40


@dataclass(frozen=True)
class TokenAttack(Displayed):
    """The best edits that a method found within its calls.

    If no edit within the limits was found, `edits` is empty, the value is the clean one, and `notes["none"]` says so.

    Attributes:
        model: the name of the model.
        method: the record of the method.
        objective: the record of the objective.
        limits: the record of the limits.
        n: the number of tokens of the original.
        seed: the seed of the method.
        clean: the objective at the original text.
        value: the objective at the edited text, by a forward pass on it.
        success: whether the value exceeds the objective's threshold.
        edits: the edits, by position.
        calls: forwards + backwards, in sequences.
        forwards: forward passes.
        backwards: backward passes.
        budget: the largest number of calls allowed.
        seconds: the wall-clock time.
        dtype: the dtype of the model.
        round_trips: whether the edited text is tokenised to the edited tokens; None if the original is not either.
        ids: the token ids of the original; with `attacked_ids` all that `verify` needs besides the model.
        attacked_ids: the token ids of the edited text.
        special: for each token of the original, whether it is a special one.
        words: the tokens of the original, for display.
        new_words: the new token of each edit, for display.
        original: the original text.
        attacked: the edited text.
        next_tokens: the predicted next token before and after, for objectives that have one.
        notes: further results of the method, such as the share of a direction that tokens capture.
    """

    model: str
    method: dict[str, Any]
    objective: dict[str, Any]
    limits: dict[str, Any]
    n: int
    seed: int
    clean: float
    value: float
    success: bool
    edits: tuple[Edit, ...]
    calls: int
    forwards: int
    backwards: int
    budget: int
    seconds: float
    dtype: str
    round_trips: bool | None
    ids: tuple[int, ...] = field(repr=False)
    attacked_ids: tuple[int, ...] = field(repr=False)
    special: tuple[bool, ...] = field(repr=False)
    words: tuple[str, ...] = field(repr=False)
    new_words: tuple[str, ...] = field(repr=False)
    original: str = field(repr=False)
    attacked: str = field(repr=False)
    next_tokens: tuple[str, str] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain values; `verify` takes this record."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tuples = ("ids", "attacked_ids", "special", "words", "new_words")
        return {
            **record,
            "edits": [edit.as_record() for edit in self.edits],
            "next_tokens": self.next_tokens and list(self.next_tokens),
            **{name: list(getattr(self, name)) for name in tuples},
        }


def attack_text(
    model: Model | TargetModel,
    text: str | TokenChunk,
    method: Method | None = None,
    *,
    objective: TextObjective | None = None,
    limits: EditLimits | None = None,
    calls: int = DEFAULT_CALLS,
    seed: int = 0,
    similarity: SentenceSimilarity | None = None,
) -> TokenAttack:
    """Attack a text by edits of its tokens.

    Args:
        model: the model. Give a `TargetModel` to attack many texts: its vocabulary is read only once.
        text: a text, or a chunk of one.
        method: the search method; `Probe` unless given.
        objective: what should change; `Flip` unless given.
        limits: the edits that are allowed; one edit unless given.
        calls: the largest number of calls of the model, which are sequences through it, forwards or backwards.
        seed: seed of all random draws.
        similarity: a limit on the similarity of the edited text to the original.

    Returns:
        The best edits found, with all that is needed to verify them.

    Raises:
        InputError: an argument is invalid, the text is too short or too long, or the model has no language head and
            the objective needs one.
    """
    check_seed("attack_text", seed)
    target = model if isinstance(model, TargetModel) else TargetModel(model)
    method, objective, limits = method or Probe(), objective or Flip(), limits or EditLimits()
    method.check(limits)
    chunk = text if isinstance(text, TokenChunk) else whole_chunk(target.model, text)
    began = time.perf_counter()
    problem = TextProblem(target, chunk, objective, limits, calls, similarity)
    method(problem, seed)
    clean = float(problem.original.output.detach())
    next_token = objective.next_tokens(problem.reference)[0]
    best = problem.best
    if best is None:
        best = Candidate((), clean, False, next_token)
        problem.notes["none"] = f"no edit that keeps to the limits was found in {problem.calls_used} calls"
    tokenizer = problem.tokenizer
    next_tokens = None
    if next_token is not None and best.next_token is not None:
        next_tokens = word(tokenizer, next_token), word(tokenizer, best.next_token)
    return TokenAttack(
        model=target.model.name,
        method=method.as_record(),
        objective=objective.as_record(),
        limits=limits.as_record(),
        n=len(chunk),
        seed=seed,
        clean=clean,
        value=best.value,
        success=best.success,
        edits=tuple(sorted(best.edits)),
        calls=problem.calls_used,
        forwards=problem.forwards,
        backwards=problem.backwards,
        budget=calls,
        seconds=time.perf_counter() - began,
        dtype=str(target.model.dtype).removeprefix("torch."),
        round_trips=problem.retokenises(best.edits) if problem.original_retokenises else None,
        ids=tuple(problem.ids.tolist()),
        attacked_ids=tuple(problem.edited(best.edits)),
        special=tuple(problem.special),
        words=tuple(chunk.words),
        new_words=tuple(word(tokenizer, edit.token) for edit in sorted(best.edits)),
        original=problem.text(()),
        attacked=problem.text(best.edits),
        notes=problem.notes,
        next_tokens=next_tokens,
    )


def whole_chunk(model: Model, text: str) -> TokenChunk:
    """Return a whole text as one chunk, with the model's special tokens; refuse it if it is too short or too long."""
    n = len(model.tokenize(text)) + sum(map(len, surrounding_special_tokens(model.require_tokenizer())))
    (chunk,) = model.chunks(text, n, 1)
    return chunk


TOLERANCE = 1e-3  # relative to max(1, |value|): float32 with another order of summation
REQUIRED_FIELDS = ("ids", "attacked_ids", "edits", "objective", "value", "success")


def verify(model: Model | TargetModel, record: Mapping[str, Any]) -> Verification:
    """Evaluate a saved attack on tokens again, from its token ids alone.

    Args:
        model: the model that was attacked.
        record: `TokenAttack.as_record()`, or its JSON read back.

    Returns:
        What agrees and what does not; the values are those of the objective.

    Raises:
        InputError: a field that is needed is missing from the record.
    """
    missing = [key for key in REQUIRED_FIELDS if key not in record]
    if missing:
        raise InputError(f"expected the record of an attack on tokens, got one without {missing[0]}")
    target = model if isinstance(model, TargetModel) else TargetModel(model)
    objective: TextObjective = objective_of(record["objective"], TEXT_OBJECTIVES)
    embedding, edits = target.embedding, [Edit(**edit) for edit in record["edits"]]
    ids, attacked = (target.model.token_ids(record[key]) for key in ("ids", "attacked_ids"))
    with torch.no_grad():
        before, after = (objective.features(embedding, embedding.matrix[t][None]) for t in (ids, attacked))
        positions = torch.tensor([positions_after(len(ids), edits)], device=ids.device)
        value = float(objective.value(after, before, positions))
    success, wrong = bool(edits) and objective.succeeds(value), []
    if apply(ids.tolist(), edits) != attacked.tolist():
        wrong.append("the edits do not give the attacked tokens")
    if not abs(value - record["value"]) <= TOLERANCE * max(1.0, abs(value)):
        wrong.append(f"value: {record['value']:.6g} reported, {value:.6g} found")
    if success != record["success"]:
        wrong.append(f"success: {record['success']} reported, {success} found")
    return Verification(not wrong, tuple(wrong), value, record["value"])
