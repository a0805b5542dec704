"""In which order edits are tried: every place once before any place again.

Measured on SmolLM2: whether the next token flips depends on which token is gone, much less on what came instead, and
the nearer to the end the likelier. The slope knows little of that, as softmax and norms bend long before an embedding
has become another. So the rank of an edit is its first-order score, damped a little with the distance to the end where
the end is what counts, and much for every better token at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attack.tokens.edits import Edit
from howsmooth.attack.tokens.problem import Problem
from howsmooth.attack.tokens.scores import open_scores

PER_PLACE = 8  # tokens kept for each place
AGAIN = 0.25  # what another token at the same place is worth
DAMPING = 0.25  # the power of the distance to the end
# A copy that moves shares its token's weight in every row of attention, and the token itself stays.
WORTH = {"substitute": 1.0, "insert": 0.3, "duplicate": 0.1}


@dataclass(frozen=True)
class Ranked:
    """An edit and the worth it is tried by."""

    edit: Edit
    worth: float


def ranked_edits(problem: Problem, slope: Tensor) -> list[Ranked]:
    """All edits worth trying at the original text, the best first."""
    ids, room, allow = problem.ids, problem.room, problem.limits.allow
    places = torch.tensor(room.places, device=ids.device)
    scores = open_scores(slope, ids, room, places)
    top = scores.topk(min(PER_PLACE, scores.shape[1]), dim=1)
    weights = _nearness(problem, places)
    found = []
    for kind in (kind for kind in ("substitute", "insert") if kind in allow):
        for row, place in enumerate(room.places):
            best = zip(top.values[row].tolist(), top.indices[row].tolist(), strict=True)
            found += [Ranked(Edit(place, kind, token), WORTH[kind] * weights[row] * max(score, 0.0) * AGAIN**rank)
                      for rank, (score, token) in enumerate(best) if score > float("-inf")]
    if "duplicate" in allow:
        sizes = slope[places].norm(dim=-1) * room.matrix[ids[places]].norm(dim=-1)
        found += [Ranked(Edit(place, "duplicate", int(ids[place])), WORTH["duplicate"] * weights[row] * size)
                  for row, (place, size) in enumerate(zip(room.places, sizes.tolist(), strict=True))]
    return sorted(found, key=lambda each: -each.worth)


def _nearness(problem: Problem, places: Tensor) -> list[float]:
    """Weights that fall with the distance to the end where the end is what counts, else 1."""
    if not problem.objective.last_only:
        return [1.0] * len(places)
    return (len(problem.ids) - places).double().pow(-DAMPING).tolist()
