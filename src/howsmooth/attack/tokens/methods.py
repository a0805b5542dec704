"""How edits are searched for: at random, by HotFlip's rule, greedily, and by probes at the end before any slope.

Every method is handed a `TextProblem`, spends its calls and stops at the first success; the best trial stays there.

First-order scores say what the slope at a text tells about every token at every place, in one product. The order in
which `Probe` tries edits along a slope has every place once before any place again. Seen in SmolLM2 on pieces of
AG_NEWS: whether the next token flips depends on which token is gone, much less on what came instead, and the nearer to
the end the likelier. The slope knows little of that, as softmax and norms bend long before an embedding has become
another. So the rank of an edit is its first-order score, damped a little with the distance to the end where the end is
what counts, and much for every trial at the same place before it. The weights were chosen on those texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from howsmooth.attack.tokens.edits import KINDS, Edit, Limits, Room, kept
from howsmooth.attack.tokens.problem import BATCH, TextProblem, Trial
from howsmooth.errors import InputError

PER_PLACE = 8  # tokens kept for each place
AGAIN = 0.25  # what another token at the same place is worth
DAMPING = 0.25  # the power of the distance to the end
# A copy that moves shares its token's weight in every row of attention, and the token itself stays.
WORTH = {"substitute": 1.0, "insert": 0.3, "duplicate": 0.1}
TRIES = 200  # edits in a row that the limits refuse, before a method gives up
LOST = 4  # a batch is at most a quarter of what was tried before it: more than that is never lost to a success


def substitution_scores(slope: Tensor, matrix: Tensor, ids: Tensor) -> Tensor:
    """⟨g_i, e_v − e_i⟩ for every place i and token v, (n, vocabulary): HotFlip's estimate of what v in place of i adds.

    >>> import torch
    >>> slope, matrix = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 5.0]])
    >>> substitution_scores(slope, matrix, torch.tensor([0]))
    tensor([[0., 2.]])
    """
    return slope @ matrix.T - (slope * matrix[ids]).sum(-1, keepdim=True)


def open_scores(slope: Tensor, ids: Tensor, room: Room, places: Tensor) -> Tensor:
    """The scores (len(places), vocabulary) of what may be written at these places; −∞ for the rest."""
    scores = substitution_scores(slope[places], room.matrix, ids[places])
    return scores.masked_fill(~room.tokens(ids, places), float("-inf"))


def best_substitutions(scores: Tensor, places: Tensor, count: int) -> list[Edit]:
    """The `count` best by score, whatever their places: the order in which HotFlip's rule would take them."""
    size = scores.shape[1]
    top = scores.flatten().topk(min(count, scores.numel()))
    return [
        Edit(int(places[i // size]), "substitute", i % size)
        for value, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        if value > float("-inf")
    ]


def ranked_edits(
    problem: TextProblem, edits: tuple[Edit, ...], slope: Tensor, tried: Collection[int] = ()
) -> list[Edit]:
    """All edits worth trying beside those made, the best first.

    slope (n, d): at the text with the edits made, its rows those of the original's tokens. tried: places at which a
    token was exchanged before, without success.
    """
    ids, room, allow = problem.ids, problem.room, problem.limits.allow
    taken = {edit.position for edit in edits}
    free = [place for place in room.places if place not in taken]
    places = torch.tensor(free, device=ids.device)
    scores = open_scores(slope, ids, room, places)
    top = scores.topk(min(PER_PLACE, scores.shape[1]), dim=1)
    weights = _nearness(problem, places)
    found = []
    for kind in (kind for kind in ("substitute", "insert") if kind in allow):
        for row, place in enumerate(free):
            best = zip(top.values[row].tolist(), top.indices[row].tolist(), strict=True)
            found += [
                (
                    WORTH[kind] * weights[row] * max(score, 0.0) * AGAIN ** (rank + (place in tried)),
                    Edit(place, kind, token),
                )
                for rank, (score, token) in enumerate(best)
                if score > float("-inf")
            ]
    if "duplicate" in allow:
        sizes = slope[places].norm(dim=-1) * room.matrix[ids[places]].norm(dim=-1)
        found += [
            (WORTH["duplicate"] * weights[row] * size, Edit(place, "duplicate", int(ids[place])))
            for row, (place, size) in enumerate(zip(free, sizes.tolist(), strict=True))
        ]
    return [edit for _, edit in sorted(found, key=lambda each: -each[0])]


def _nearness(problem: TextProblem, places: Tensor) -> list[float]:
    """Weights that fall with the distance to the end where the end is what counts, else 1."""
    if not problem.objective.last_only:
        return [1.0] * len(places)
    return (len(problem.ids) - places).double().pow(-DAMPING).tolist()


@dataclass(frozen=True)
class Method:
    """`method(problem, seed)`; settings are fields, and part of every record."""

    name = ""
    kinds = ("substitute",)  # of edits that it makes

    def __call__(self, problem: TextProblem, seed: int) -> None:
        raise NotImplementedError

    def check(self, limits: Limits) -> None:
        """Refuse limits under which there is nothing for it to do."""
        if not set(self.kinds) & set(limits.allow):
            raise InputError(
                f"{self.name}: expected limits that allow one of {', '.join(self.kinds)}, got "
                f"{', '.join(limits.allow)}; allow one, or take another method"
            )

    def as_record(self) -> dict:
        return {"name": self.name, **asdict(self)}


def stream(problem: TextProblem, candidates: Iterable[tuple[Edit, ...]], calls: int | None = None) -> list[Trial]:
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


def _permitted(problem: TextProblem, candidates: Iterator[tuple[Edit, ...]]) -> Iterator[tuple[Edit, ...]]:
    refused = 0
    for edits in candidates:
        if problem.permits(edits):
            refused = 0
            yield edits
        elif (refused := refused + 1) >= TRIES:
            return


Ranking = Callable[[tuple[Edit, ...], Tensor], Iterable[Edit]]  # (edits made, slope there, row i for the original's i)


def follow(problem: TextProblem, edits: tuple[Edit, ...], ranking: Ranking, seed: int) -> None:
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


def drawn(problem: TextProblem, places: Tensor, kind: str, generator: torch.Generator) -> tuple[Edit, ...] | None:
    """An edit at each place by a token drawn at random, a duplicate by the token there; None where no token may come."""
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

    def __call__(self, problem: TextProblem, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        stream(problem, self._draws(problem, generator))

    @staticmethod
    def _draws(problem: TextProblem, generator: torch.Generator) -> Iterator[tuple[Edit, ...]]:
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

    def __call__(self, problem: TextProblem, seed: int) -> None:
        if problem.left < 2:
            return
        ranking = partial(self._ranking, problem)
        firsts = ((edit,) for edit in ranking((), problem.slope(problem.original, seed)))
        for first in _permitted(problem, firsts):
            if problem.over:
                return
            follow(problem, first, ranking, seed)

    @staticmethod
    def _ranking(problem: TextProblem, edits: tuple[Edit, ...], slope: Tensor) -> list[Edit]:
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

    def __call__(self, problem: TextProblem, seed: int) -> None:
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
    def _singles(
        problem: TextProblem, edits: tuple[Edit, ...], generator: torch.Generator
    ) -> Iterator[tuple[Edit, ...]]:
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
    (`ranked_edits`).
    """

    name = "probe"
    kinds = KINDS

    def __call__(self, problem: TextProblem, seed: int) -> None:
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
    def _probe(problem: TextProblem, seed: int) -> list[Trial]:
        nearest = torch.tensor(problem.room.places[-problem.limits.edits :])
        kind = next(kind for kind in KINDS if kind in problem.limits.allow)
        draw = partial(drawn, problem, nearest, kind, torch.Generator().manual_seed(seed))
        return stream(problem, iter(draw, None), calls=1)


METHODS = {kind.name: kind for kind in (Random, HotFlip, Greedy, Probe)}
