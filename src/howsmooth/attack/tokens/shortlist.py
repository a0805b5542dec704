"""The order in which edits are tried along a slope: every place once before any place again.

Seen in SmolLM2 on pieces of AG_NEWS: whether the next token flips depends on which token is gone, much less on what
came instead, and the nearer to the end the likelier. The slope knows little of that, as softmax and norms bend long
before an embedding has become another. So the rank of an edit is its first-order score, damped a little with the
distance to the end where the end is what counts, and much for every trial at the same place before it. The weights were
chosen on those texts.
"""

from __future__ import annotations

from collections.abc import Collection

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


def ranked_edits(problem: Problem, edits: tuple[Edit, ...], slope: Tensor, tried: Collection[int] = ()) -> list[Edit]:
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
            found += [(WORTH[kind] * weights[row] * max(score, 0.0) * AGAIN ** (rank + (place in tried)),
                       Edit(place, kind, token)) for rank, (score, token) in enumerate(best) if score > float("-inf")]
    if "duplicate" in allow:
        sizes = slope[places].norm(dim=-1) * room.matrix[ids[places]].norm(dim=-1)
        found += [(WORTH["duplicate"] * weights[row] * size, Edit(place, "duplicate", int(ids[place])))
                  for row, (place, size) in enumerate(zip(free, sizes.tolist(), strict=True))]
    return [edit for _, edit in sorted(found, key=lambda each: -each[0])]


def _nearness(problem: Problem, places: Tensor) -> list[float]:
    """Weights that fall with the distance to the end where the end is what counts, else 1."""
    if not problem.objective.last_only:
        return [1.0] * len(places)
    return (len(problem.ids) - places).double().pow(-DAMPING).tolist()
