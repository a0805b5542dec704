"""First-order scores of edits: what the slope at a text says about every token at every place, in one product."""

from __future__ import annotations

from torch import Tensor

from howsmooth.attack.tokens.edits import Edit
from howsmooth.attack.tokens.limits import Room


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
    return [Edit(int(places[i // size]), "substitute", i % size)
            for value, i in zip(top.values.tolist(), top.indices.tolist(), strict=True) if value > float("-inf")]
