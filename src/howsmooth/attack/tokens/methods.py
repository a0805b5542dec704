"""How edits are searched for: at random, by HotFlip's rule, greedily, and by exact evaluation of many places at once.

Every method is handed a `Problem`, spends its calls and stops at the first success; the best trial stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor

from howsmooth.attack.refusals import check_count
from howsmooth.attack.tokens.edits import Edit
from howsmooth.attack.tokens.problem import BATCH, Problem, Trial
from howsmooth.attack.tokens.scores import best_substitutions, open_scores
from howsmooth.attack.tokens.shortlist import Ranked, ranked_edits

TRIES = 200  # edits in a row that the limits refuse, before a method gives up
LOST = 4  # a batch is at most a quarter of what was tried before it: more than that is never lost to a success


@dataclass(frozen=True)
class Method:
    """`method(problem, seed)`; settings are fields, and part of every record."""

    name = ""

    def __call__(self, problem: Problem, seed: int) -> None:
        raise NotImplementedError

    def as_record(self) -> dict:
        return {"name": self.name, **asdict(self)}


def stream(problem: Problem, candidates: Iterable[tuple[Edit, ...]], calls: int | None = None) -> list[Trial]:
    """Evaluate candidates that the limits permit, in their order and in batches that grow, until success.

    `calls` is how many to spend at most; what the problem has left is the limit in any case.
    """
    candidates, trials = iter(candidates), []
    while not problem.over and (calls is None or len(trials) < calls):
        size = max(1, min(len(trials) // LOST, BATCH))
        room = min(size, problem.left, problem.left if calls is None else calls - len(trials))
        batch = list(islice(_permitted(problem, candidates), room))
        if not batch:
            break
        trials += problem.evaluate(batch)
    return trials


def _permitted(problem: Problem, candidates: Iterator[tuple[Edit, ...]]) -> Iterator[tuple[Edit, ...]]:
    refused = 0
    for edits in candidates:
        if problem.permits(edits):
            refused = 0
            yield edits
        elif (refused := refused + 1) >= TRIES:
            return


@dataclass(frozen=True)
class Random(Method):
    """Substitutions at random places by random tokens, the whole edit budget in every trial."""

    name = "random"

    def __call__(self, problem: Problem, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        stream(problem, self._draws(problem, generator))

    @staticmethod
    def _draws(problem: Problem, generator: torch.Generator) -> Iterator[tuple[Edit, ...]]:
        places = torch.tensor(problem.room.places)
        while True:
            chosen = places[torch.randperm(len(places), generator=generator)[: problem.limits.edits]]
            open = problem.room.tokens(problem.ids, chosen.to(problem.ids.device)).cpu()
            if not open.any(1).all():
                continue
            tokens = torch.multinomial(open.float(), 1, generator=generator)[:, 0]
            yield tuple(Edit(int(p), "substitute", int(t)) for p, t in zip(chosen, tokens, strict=True))


@dataclass(frozen=True)
class HotFlip(Method):
    """The first-order rule (Ebrahimi et al. 2018): take the substitution of largest ⟨g_i, e_v − e_i⟩, then the next.

    Each edit costs a backward pass and a forward pass, which shows the new value and carries the next slope. Where all
    edits are made without success and calls are left, it starts again from the first edit next in rank.
    """

    name = "hotflip"

    def __call__(self, problem: Problem, seed: int) -> None:
        if problem.left < 2:
            return
        firsts = self._ranking(problem, (), problem.ids, problem.slope(problem.original, seed))
        for first in firsts:
            if problem.over:
                return
            self._follow(problem, (first,), seed)

    def _follow(self, problem: Problem, edits: tuple[Edit, ...], seed: int) -> None:
        """Evaluate, and go on edit by edit along the slope at the text so far."""
        while True:
            here = problem.forward(edits)
            if problem.over or len(edits) == problem.limits.edits or problem.left < 2:
                return
            following = next(self._ranking(problem, edits, here.ids, problem.slope(here, seed)), None)
            if following is None:
                return
            edits += (following,)

    @staticmethod
    def _ranking(problem: Problem, edits: tuple[Edit, ...], ids: Tensor, slope: Tensor) -> Iterator[Edit]:
        # Substitutions alone keep every place where it was.
        taken = {edit.position for edit in edits}
        places = torch.tensor([p for p in problem.room.places if p not in taken], device=ids.device)
        scores = open_scores(slope, ids, problem.room, places)
        ranked = best_substitutions(scores, places, max(TRIES, 4 * problem.calls))
        return (edit for edit in ranked if problem.permits((*edits, edit)))


@dataclass(frozen=True)
class Greedy(Method):
    """Exact evaluation of single substitutions drawn without replacement, the best one kept, edit by edit.

    With calls for all of them it is a search by brute force.
    """

    name = "greedy"

    def __call__(self, problem: Problem, seed: int) -> None:
        generator, edits = torch.Generator().manual_seed(seed), ()
        for made in range(problem.limits.edits):
            if problem.over:
                return
            share = problem.left // (problem.limits.edits - made)
            tried = stream(problem, self._singles(problem, edits, generator), max(1, share))
            if not tried:
                return
            edits = max(tried, key=lambda trial: trial.value).edits

    @staticmethod
    def _singles(problem: Problem, edits: tuple[Edit, ...], generator: torch.Generator) -> Iterator[tuple[Edit, ...]]:
        taken = {edit.position for edit in edits}
        places = torch.tensor([p for p in problem.room.places if p not in taken])
        if not len(places):
            return
        open = problem.room.tokens(problem.ids, places.to(problem.ids.device)).cpu()
        rows, tokens = open.nonzero(as_tuple=True)
        for i in torch.randperm(len(rows), generator=generator).tolist():
            yield (*edits, Edit(int(places[rows[i]]), "substitute", int(tokens[i])))


@dataclass(frozen=True)
class Beam(Method):
    """One slope for a ranking of places and tokens, then exact evaluation: the project's own search.

    Finite steps are far from first order: what a token does depends on its place more than on what comes instead
    (`shortlist` says how places are ranked). So single edits are measured exactly at many places, one token each before
    a second one, substitutions beside insertions and duplicates. With a budget of several edits all are made at once:
    first those that first order ranks highest, then, whenever singles have been measured, the `width` best sets of
    those that moved the objective most.
    """

    width: int = 2
    batch: int = 4

    name = "beam"

    def __post_init__(self) -> None:
        check_count("Beam", "width", self.width, least=1)
        check_count("Beam", "batch", self.batch, least=1)

    def __call__(self, problem: Problem, seed: int) -> None:
        if problem.left < 2:
            return
        ranked = ranked_edits(problem, problem.slope(problem.original, seed))
        edits = problem.limits.edits
        if edits == 1:
            stream(problem, ((each.edit,) for each in ranked))
            return
        seen: set[frozenset[Edit]] = set()
        self._together(problem, [each.edit for each in _one_per_place(ranked, edits)], seen, sets=1)
        singles, measured = iter(ranked), []
        while not problem.over:
            tried = stream(problem, ((each.edit,) for each in islice(singles, self.batch)))
            if not tried:
                return
            measured += tried
            best = sorted(measured, key=lambda trial: trial.value, reverse=True)
            self._together(problem, [trial.edits[0] for trial in best], seen, sets=self.width)

    @staticmethod
    def _together(problem: Problem, best: list[Edit], seen: set[frozenset[Edit]], sets: int) -> None:
        """The first of `best` at different places, up to the budget; then the same with its last one exchanged."""
        apart = list({edit.position: edit for edit in reversed(best)}.values())
        apart.sort(key=best.index)
        whole = problem.limits.edits
        for last in range(whole - 1, min(whole - 1 + sets, len(apart))):
            chosen = (*apart[: whole - 1], apart[last])
            if problem.over:
                return
            if frozenset(chosen) not in seen and problem.permits(chosen):
                seen.add(frozenset(chosen))
                problem.evaluate([chosen])


def _one_per_place(ranked: list[Ranked], count: int) -> list[Ranked]:
    return list({each.edit.position: each for each in reversed(ranked)}.values())[::-1][:count]


METHODS = {kind.name: kind for kind in (Random, HotFlip, Greedy, Beam)}
