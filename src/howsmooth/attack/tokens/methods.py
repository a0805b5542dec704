"""How edits are searched for: at random, by HotFlip's rule, greedily, and by probes at the end before any slope.

Every method is handed a `Problem`, spends its calls and stops at the first success; the best trial stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from howsmooth.attack.tokens.edits import KINDS, Edit, kept
from howsmooth.attack.tokens.limits import Limits
from howsmooth.attack.tokens.problem import BATCH, Problem, Trial
from howsmooth.attack.tokens.scores import best_substitutions, open_scores
from howsmooth.attack.tokens.shortlist import ranked_edits
from howsmooth.errors import InputError

TRIES = 200  # edits in a row that the limits refuse, before a method gives up
LOST = 4  # a batch is at most a quarter of what was tried before it: more than that is never lost to a success


@dataclass(frozen=True)
class Method:
    """`method(problem, seed)`; settings are fields, and part of every record."""

    name = ""
    kinds = ("substitute",)  # of edits that it makes

    def __call__(self, problem: Problem, seed: int) -> None:
        raise NotImplementedError

    def check(self, limits: Limits) -> None:
        """Refuse limits under which there is nothing for it to do."""
        if not set(self.kinds) & set(limits.allow):
            raise InputError(f"{self.name}: expected limits that allow one of {', '.join(self.kinds)}, got "
                             f"{', '.join(limits.allow)}; allow one, or take another method")

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


Ranking = Callable[[tuple[Edit, ...], Tensor], Iterable[Edit]]  # (edits made, slope there, row i for the original's i)


def follow(problem: Problem, edits: tuple[Edit, ...], ranking: Ranking, seed: int) -> None:
    """Evaluate these edits, and go on edit by edit, each the first in rank by the slope at the text so far.

    An edit costs one call for its trial and one for the slope that leads to the next; the last one needs no slope.
    """
    while len(edits) < problem.limits.edits:
        here = problem.forward(edits)
        if problem.over or problem.left < 2:
            return
        slope = problem.slope(here, seed)[kept(len(problem.ids), edits)]
        longer = ((*edits, edit) for edit in ranking(edits, slope))
        if (found := next(_permitted(problem, longer), None)) is None:
            return
        edits = found
    problem.evaluate([edits])


def drawn(problem: Problem, places: Tensor, kind: str, generator: torch.Generator) -> tuple[Edit, ...] | None:
    """An edit at each place by a token drawn at random, a duplicate by the token there; None where no token may come.
    """
    if kind == "duplicate":
        tokens = problem.ids.cpu()[places]
    else:
        open = problem.room.tokens(problem.ids, places.to(problem.ids.device)).cpu()
        if not open.any(1).all():
            return None
        tokens = torch.multinomial(open.float(), 1, generator=generator)[:, 0]
    return tuple(Edit(int(p), kind, int(t)) for p, t in zip(places, tokens, strict=True))


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
        places = places[problem.room.tokens(problem.ids, places.to(problem.ids.device)).any(1).cpu()]
        while len(places) >= problem.limits.edits:
            chosen = places[torch.randperm(len(places), generator=generator)[: problem.limits.edits]]
            yield drawn(problem, chosen, "substitute", generator)


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
        ranking = partial(self._ranking, problem)
        firsts = ((edit,) for edit in ranking((), problem.slope(problem.original, seed)))
        for first in _permitted(problem, firsts):
            if problem.over:
                return
            follow(problem, first, ranking, seed)

    @staticmethod
    def _ranking(problem: Problem, edits: tuple[Edit, ...], slope: Tensor) -> list[Edit]:
        taken = {edit.position for edit in edits}
        places = torch.tensor([p for p in problem.room.places if p not in taken], device=problem.ids.device)
        scores = open_scores(slope, problem.ids, problem.room, places)
        return best_substitutions(scores, places, max(TRIES, 4 * problem.calls))


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
class Probe(Method):
    """A trial before any slope: random tokens just before the end; then HotFlip's steps, place by place.

    A slope costs as much as a trial, and what counts at finite steps is which token is gone rather than what came for
    it; the nearer to the end, the likelier it matters. So where the end decides (next-token objectives) the first trial
    spends the whole edit budget on the places nearest to it, by tokens drawn at random. It costs one call. If it fails,
    edits follow the slope as in `HotFlip`, a new slope after each edit, with two changes: a restart takes another
    place, not another token at the same one, and insertions and duplicates are ranked beside substitutions
    (`shortlist`).
    """

    name = "probe"
    kinds = KINDS

    def __call__(self, problem: Problem, seed: int) -> None:
        probed = self._probe(problem, seed) if problem.objective.last_only else []
        if problem.over or problem.left < 2:
            return
        ranking = partial(ranked_edits, problem, tried={edit.position for trial in probed for edit in trial.edits})
        firsts = ((edit,) for edit in ranking((), problem.slope(problem.original, seed)))
        if problem.limits.edits == 1:
            stream(problem, firsts)
            return
        for first in _permitted(problem, firsts):
            if problem.over:
                return
            follow(problem, first, ranking, seed)

    @staticmethod
    def _probe(problem: Problem, seed: int) -> list[Trial]:
        nearest = torch.tensor(problem.room.places[-problem.limits.edits :])
        kind = next(kind for kind in KINDS if kind in problem.limits.allow)
        draw = partial(drawn, problem, nearest, kind, torch.Generator().manual_seed(seed))
        return stream(problem, iter(draw, None), calls=1)


METHODS = {kind.name: kind for kind in (Random, HotFlip, Greedy, Probe)}
