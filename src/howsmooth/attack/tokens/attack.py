"""One attack on one text, and what it hands back: edits, what they changed, what they cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from howsmooth.attack.constraints import check_seed
from howsmooth.attack.objectives import Flip, TextObjective
from howsmooth.attack.tokens.edits import Edit, Limits, SentenceJudge
from howsmooth.attack.tokens.methods import Method, Probe
from howsmooth.attack.tokens.problem import TextProblem, Trial, Victim
from howsmooth.models import TokenChunk
from howsmooth.texts.cutting import special_frame, word

if TYPE_CHECKING:
    from howsmooth.models import Model

CALLS = 40


@dataclass(frozen=True)
class TokenAttack:
    """The best edits that a method found within its calls.

    value: the objective at the edited text, evaluated exactly; clean: at the original. calls = forwards + backwards, in
    sequences. ids and attacked_ids are all that `verify` needs beside the model. round_trips: whether the edited text
    is read as these tokens again; None where the original is not either. notes: what a method has to add, such as the
    share of a direction that tokens captured. Where no edit was found that keeps to the limits there are no edits, the
    value is the clean one, and notes["none"] says so.
    """

    model: str
    method: dict
    objective: dict
    limits: dict
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
    words: tuple[str, ...] = field(repr=False)  # of the original, for display
    new_words: tuple[str, ...] = field(repr=False)  # of what each edit brings in
    original: str = field(repr=False)
    attacked: str = field(repr=False)
    says: tuple[str, str] | None = None  # the next token before and after, for objectives that ask for it
    notes: dict = field(default_factory=dict)

    def as_record(self) -> dict:
        """All of it as plain values; `verify` takes this record."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tuples = ("ids", "attacked_ids", "special", "words", "new_words")
        return {
            **record,
            "edits": [edit.as_record() for edit in self.edits],
            "says": self.says and list(self.says),
            **{name: list(getattr(self, name)) for name in tuples},
        }


def attack_text(
    model: Model | Victim,
    text: str | TokenChunk,
    method: Method | None = None,
    *,
    objective: TextObjective | None = None,
    limits: Limits | None = None,
    calls: int = CALLS,
    seed: int = 0,
    judge: SentenceJudge | None = None,
) -> TokenAttack:
    """Attack a text, or a chunk of one, by a method (`Probe` unless given) within `calls` calls of the model.

    Hand over a `Victim` in place of the model to attack many texts: its vocabulary is read once.
    """
    check_seed("attack_text", seed)
    victim = model if isinstance(model, Victim) else Victim(model)
    method, objective, limits = method or Probe(), objective or Flip(), limits or Limits()
    method.check(limits)
    chunk = text if isinstance(text, TokenChunk) else whole_chunk(victim.model, text)
    began = time.perf_counter()
    problem = TextProblem(victim, chunk, objective, limits, calls, judge)
    method(problem, seed)
    clean = float(problem.original.output.detach())
    best = problem.best
    if best is None:  # the text as it is
        best = Trial((), clean, False, problem.objective.says(problem.reference)[0])
        problem.notes["none"] = f"no edit that keeps to the limits was found in {problem.spent} calls"
    tokenizer = problem.tokenizer
    return TokenAttack(
        model=victim.model.name,
        method=method.as_record(),
        objective=objective.as_record(),
        limits=limits.as_record(),
        n=len(chunk),
        seed=seed,
        clean=clean,
        value=best.value,
        success=best.success,
        edits=tuple(sorted(best.edits)),
        calls=problem.spent,
        forwards=problem.forwards,
        backwards=problem.backwards,
        budget=calls,
        seconds=time.perf_counter() - began,
        dtype=str(victim.model.dtype).removeprefix("torch."),
        round_trips=problem.reads_again(best.edits) if problem.round_trips else None,
        ids=tuple(problem.ids.tolist()),
        attacked_ids=tuple(problem.edited(best.edits)),
        special=tuple(problem.special),
        words=chunk.words,
        new_words=tuple(word(tokenizer, edit.token) for edit in sorted(best.edits)),
        original=problem.text(()),
        attacked=problem.text(best.edits),
        notes=problem.notes,
        says=None
        if best.says is None
        else tuple(word(tokenizer, token) for token in (problem.objective.says(problem.reference)[0], best.says)),
    )


def whole_chunk(model: Model, text: str) -> TokenChunk:
    """A whole text as one chunk, with the model's special tokens; refused if it is too short or too long."""
    n = len(model.tokenize(text)) + sum(map(len, special_frame(model._need_tokenizer())))
    (chunk,) = model.chunks(text, n, 1)
    return chunk
