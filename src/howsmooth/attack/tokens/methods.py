"""Search methods of attacks on tokens: random, HotFlip's rule, greedy, and probes before any gradient.

Every method gets a `TextProblem`, uses its calls, and stops at the first success; the problem keeps the best candidate.

First-order scores estimate the effect of every token at every position from one gradient, by one matrix product.
`Probe` tries one edit at every position before a second one at any of them. The reason was observed in SmolLM2 on
pieces of AG_NEWS: whether the next token flips depends on which token is replaced, much less on its substitute, and
tokens near the end matter most. The gradient shows little of that: softmax and normalisations are far from linear
between two embeddings. So edits are ranked by their first-order score, damped slightly with the distance to the end
where only the last token's prediction counts, and strongly for every earlier trial at the same position. The weights
were chosen on those texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from howsmooth import choices
from howsmooth.attack.tokens.edits import Edit, EditLimits, SearchSpace, positions_after
from howsmooth.attack.tokens.problem import MAX_BATCH, Candidate, TextProblem
from howsmooth.errors import InputError

TOKENS_PER_POSITION = 8  # tokens that are ranked at each position
REPEAT_WEIGHT = 0.25  # factor on the score of another token at the same position
DISTANCE_EXPONENT = 0.25  # of the distance to the end, by which scores are divided
# A duplicate that is moved shares its token's attention weight in every row, and the token itself remains.
OPERATION_WEIGHTS = {"substitute": 1.0, "insert": 0.3, "duplicate": 0.1}
MAX_REJECTIONS = 200  # edits in a row outside the limits before a method stops
BATCH_DIVISOR = 4  # a batch is at most a quarter of the candidates before it, which bounds the calls after a success


def substitution_scores(gradient: Tensor, matrix: Tensor, ids: Tensor) -> Tensor:
    """Return ⟨g_i, e_v − e_i⟩ for every position i and token v: HotFlip's estimate of the effect of a substitution.

    Args:
        gradient: of the objective in the embeddings, (n, d).
        matrix: the embedding matrix (vocabulary, d).
        ids: the token ids (n,).

    Returns:
        Scores (n, vocabulary).

    Example:
        >>> import torch
        >>> gradient, matrix = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 5.0]])
        >>> substitution_scores(gradient, matrix, torch.tensor([0]))
        tensor([[0., 2.]])
    """
    return gradient @ matrix.T - (gradient * matrix[ids]).sum(-1, keepdim=True)


def allowed_scores(gradient: Tensor, ids: Tensor, space: SearchSpace, positions: Tensor) -> Tensor:
    """Return the scores (positions, vocabulary) of the substitutions at these positions, −∞ for those not allowed."""
    scores = substitution_scores(gradient[positions], space.matrix, ids[positions])
    return scores.masked_fill(~space.allowed_tokens(ids, positions), float("-inf"))


def best_substitutions(scores: Tensor, positions: Tensor, count: int) -> list[Edit]:
    """Return the `count` substitutions of largest score, at whatever positions, best first."""
    size = scores.shape[1]
    top = scores.flatten().topk(min(count, scores.numel()))
    return [
        Edit(int(positions[i // size]), "substitute", i % size)
        for value, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        if value > float("-inf")
    ]


def ranked_edits(
    problem: TextProblem, edits: tuple[Edit, ...], gradient: Tensor, tried: Collection[int] = ()
) -> list[Edit]:
    """Rank the edits that may be added to some edits, best first.

    Args:
        problem: the text with its limits.
        edits: the edits made so far.
        gradient: at the text with these edits, (n, d), one row for each token of the original.
        tried: positions at which a token was replaced before, without success.
    """
    ids, space, allow = problem.ids, problem.search_space, problem.limits.allow
    free = _free_positions(problem, edits)
    positions = torch.tensor(free, device=ids.device)
    scores = allowed_scores(gradient, ids, space, positions)
    top = scores.topk(min(TOKENS_PER_POSITION, scores.shape[1]), dim=1)
    weights = _distance_weights(problem, positions)
    found = []
    for change in (change for change in (choices.SUBSTITUTE, choices.INSERT) if change in allow):
        for row, position in enumerate(free):
            best = zip(top.values[row].tolist(), top.indices[row].tolist(), strict=True)
            weight = OPERATION_WEIGHTS[change] * weights[row]
            found += [
                (
                    weight * max(score, 0.0) * REPEAT_WEIGHT ** (rank + (position in tried)),
                    Edit(position, change, token),
                )
                for rank, (score, token) in enumerate(best)
                if score > float("-inf")
            ]
    if "duplicate" in allow:
        sizes = gradient[positions].norm(dim=-1) * space.matrix[ids[positions]].norm(dim=-1)
        found += [
            (OPERATION_WEIGHTS["duplicate"] * weights[row] * size, Edit(position, "duplicate", int(ids[position])))
            for row, (position, size) in enumerate(zip(free, sizes.tolist(), strict=True))
        ]
    return [edit for _, edit in sorted(found, key=lambda each: -each[0])]


def _free_positions(problem: TextProblem, edits: Iterable[Edit]) -> list[int]:
    """Return the positions that may be edited and are not edited yet."""
    taken = {edit.position for edit in edits}
    return [position for position in problem.search_space.positions if position not in taken]


def _distance_weights(problem: TextProblem, positions: Tensor) -> list[float]:
    """Return weights that decrease with the distance to the end if only the last token counts, else 1."""
    if not problem.objective.uses_last_token:
        return [1.0] * len(positions)
    return (len(problem.ids) - positions).double().pow(-DISTANCE_EXPONENT).tolist()


@dataclass(frozen=True)
class Method:
    """A search method: `method(problem, seed)`. Settings are fields, and part of every record.

    Attributes:
        name: the name in records and on the command line.
        operations: the operations that it edits by.
    """

    name = ""
    operations: ClassVar[tuple[str, ...]] = (choices.SUBSTITUTE,)

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Search until a success, or until no call is left."""
        raise NotImplementedError

    def check(self, limits: EditLimits) -> None:
        """Refuse limits that allow none of the operations of this method."""
        if not set(self.operations) & set(limits.allow):
            raise InputError(
                f"{self.name}: expected limits that allow one of {', '.join(self.operations)}, got "
                f"{', '.join(limits.allow)}; allow one, or use another method"
            )

    def as_record(self) -> dict[str, Any]:
        """Return the name and every setting."""
        return {"name": self.name, **asdict(self)}


def evaluate_until_success(
    problem: TextProblem, edit_sets: Iterable[tuple[Edit, ...]], calls: int | None = None
) -> list[Candidate]:
    """Evaluate the sets of edits that the limits permit, in their order and in growing batches, until a success.

    Args:
        problem: the text; the calls that it has left are a limit in any case.
        edit_sets: the sets of edits.
        calls: how many calls to use at most.
    """
    permitted, candidates = iter(edit_sets), list[Candidate]()
    while not problem.finished and (calls is None or len(candidates) < calls):
        size = max(1, min(len(candidates) // BATCH_DIVISOR, MAX_BATCH))
        left = problem.calls_left if calls is None else min(problem.calls_left, calls - len(candidates))
        batch = list(islice(_permitted(problem, permitted), min(size, left)))
        if not batch:
            break
        candidates += problem.evaluate(batch)
    return candidates


def _permitted(problem: TextProblem, edit_sets: Iterator[tuple[Edit, ...]]) -> Iterator[tuple[Edit, ...]]:
    """Yield the sets of edits that the limits permit; stop after too many rejections in a row."""
    rejections = 0
    for edits in edit_sets:
        if problem.permits(edits):
            rejections = 0
            yield edits
        elif (rejections := rejections + 1) >= MAX_REJECTIONS:
            return


# Ranks further edits, given the edits made and the gradient there, one row for each token of the original.
Ranking = Callable[[tuple[Edit, ...], Tensor], Iterable[Edit]]


def follow_gradient(problem: TextProblem, edits: tuple[Edit, ...], ranking: Ranking, seed: int) -> None:
    """Evaluate some edits, and add edits one by one: each is the first in rank by the gradient at the text so far.

    An edit costs one call for its value and one for the gradient that ranks the next; the last needs no gradient.
    """
    while len(edits) < problem.limits.edits:
        forward_pass = problem.forward(edits)
        if problem.finished or problem.calls_left < 2:
            return
        gradient = problem.gradient(forward_pass, seed)[positions_after(len(problem.ids), edits)]
        extended = ((*edits, edit) for edit in ranking(edits, gradient))
        if (found := next(_permitted(problem, extended), None)) is None:
            return
        edits = found
    problem.evaluate([edits])


def draw_edits(
    problem: TextProblem, positions: Tensor, operation: str, generator: torch.Generator
) -> tuple[Edit, ...] | None:
    """Draw one edit at each position, with a random token; None if no token is allowed at one of them."""
    if operation == "duplicate":
        tokens = problem.ids.cpu()[positions]
    else:
        allowed = problem.search_space.allowed_tokens(problem.ids, positions.to(problem.ids.device)).cpu()
        if not allowed.any(1).all():
            return None
        tokens = torch.multinomial(allowed.float(), 1, generator=generator)[:, 0]
    return tuple(Edit(int(p), operation, int(t)) for p, t in zip(positions, tokens, strict=True))


@dataclass(frozen=True)
class Random(Method):
    """Substitutions at random positions by random tokens; every candidate uses the whole edit budget."""

    name = choices.RANDOM

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Evaluate random candidates."""
        generator = torch.Generator().manual_seed(seed)
        evaluate_until_success(problem, self._draws(problem, generator))

    @staticmethod
    def _draws(problem: TextProblem, generator: torch.Generator) -> Iterator[tuple[Edit, ...]]:
        positions = torch.tensor(problem.search_space.positions)
        allowed = problem.search_space.allowed_tokens(problem.ids, positions.to(problem.ids.device))
        positions = positions[allowed.any(1).cpu()]
        while len(positions) >= problem.limits.edits:
            chosen = positions[torch.randperm(len(positions), generator=generator)[: problem.limits.edits]]
            if (edits := draw_edits(problem, chosen, "substitute", generator)) is None:
                return
            yield edits


@dataclass(frozen=True)
class HotFlip(Method):
    """The first-order rule of Ebrahimi et al. (2018): the substitution of largest ⟨g_i, e_v − e_i⟩, then the next.

    Each edit costs a backward pass and a forward pass, which gives the new value and the next gradient. If all edits
    are made without success and calls are left, the search restarts from the first edit that is next in rank.
    """

    name = choices.HOTFLIP

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Follow the gradient from each of the best first edits."""
        if problem.calls_left < 2:
            return
        ranking = partial(self._ranking, problem)
        first_edits = ((edit,) for edit in ranking((), problem.gradient(problem.original, seed)))
        for edits in _permitted(problem, first_edits):
            if problem.finished:
                return
            follow_gradient(problem, edits, ranking, seed)

    @staticmethod
    def _ranking(problem: TextProblem, edits: tuple[Edit, ...], gradient: Tensor) -> list[Edit]:
        positions = torch.tensor(_free_positions(problem, edits), device=problem.ids.device)
        scores = allowed_scores(gradient, problem.ids, problem.search_space, positions)
        return best_substitutions(scores, positions, max(MAX_REJECTIONS, 4 * problem.calls))


@dataclass(frozen=True)
class Greedy(Method):
    """Evaluates random single substitutions, drawn without replacement, and keeps the best one, edit by edit.

    With enough calls it evaluates all substitutions.
    """

    name = choices.GREEDY

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Make one edit after the other, each with an equal number of calls."""
        generator = torch.Generator().manual_seed(seed)
        edits: tuple[Edit, ...] = ()
        for made in range(problem.limits.edits):
            if problem.finished:
                return
            calls = max(1, problem.calls_left // (problem.limits.edits - made))
            candidates = evaluate_until_success(problem, self._extensions(problem, edits, generator), calls)
            if not candidates:
                return
            edits = max(candidates, key=lambda candidate: candidate.value).edits

    @staticmethod
    def _extensions(
        problem: TextProblem, edits: tuple[Edit, ...], generator: torch.Generator
    ) -> Iterator[tuple[Edit, ...]]:
        """Yield the edits with one more substitution, in random order."""
        positions = torch.tensor(_free_positions(problem, edits))
        if not len(positions):
            return
        allowed = problem.search_space.allowed_tokens(problem.ids, positions.to(problem.ids.device)).cpu()
        rows, tokens = allowed.nonzero(as_tuple=True)
        for i in torch.randperm(len(rows), generator=generator).tolist():
            yield (*edits, Edit(int(positions[rows[i]]), "substitute", int(tokens[i])))


@dataclass(frozen=True)
class Probe(Method):
    """One candidate of random tokens just before the end; then HotFlip's steps, each restart at another position.

    A gradient costs as much as evaluating a candidate. At the size of a substitution, which token is replaced matters
    more than its substitute, and the nearer to the end it is, the more likely it matters. So for next-token objectives
    the first candidate spends the whole edit budget on the positions nearest to the end, with random tokens, for one
    call. If it fails, edits follow the gradient as in `HotFlip`, with a new gradient after each edit, and with two
    differences: a restart uses another position, not another token at the same one, and insertions and duplicates are
    ranked together with substitutions (`ranked_edits`).
    """

    name = choices.PROBE
    operations = choices.OPERATIONS

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Evaluate the probe, then follow the gradient."""
        probed = self._probe(problem, seed) if problem.objective.uses_last_token else []
        if problem.finished or problem.calls_left < 2:
            return
        tried = {edit.position for candidate in probed for edit in candidate.edits}
        ranking = partial(ranked_edits, problem, tried=tried)
        first_edits = ((edit,) for edit in ranking((), problem.gradient(problem.original, seed)))
        if problem.limits.edits == 1:
            evaluate_until_success(problem, first_edits)
            return
        for edits in _permitted(problem, first_edits):
            if problem.finished:
                return
            follow_gradient(problem, edits, ranking, seed)

    @staticmethod
    def _probe(problem: TextProblem, seed: int) -> list[Candidate]:
        """Evaluate random tokens at the positions nearest to the end."""
        nearest = torch.tensor(problem.search_space.positions[-problem.limits.edits :])
        operation = next(operation for operation in choices.OPERATIONS if operation in problem.limits.allow)
        draw = partial(draw_edits, problem, nearest, operation, torch.Generator().manual_seed(seed))
        return evaluate_until_success(problem, iter(draw, None), calls=1)
