"""From a direction in feature space to real tokens: which edits move what enters layer 0 along it, and how nearly.

A direction U (n, d) at the model's input, embeddings and positions included, is met by k substitutions that change it
by D, the rows of D being e(v, i) − e(x_i, i) at the places edited and 0 elsewhere. The best multiple of D misses U by

    min_c ‖U − cD‖² / ‖U‖²  =  1 − ⟨U, D⟩² / (‖U‖² ‖D‖²)        c ≥ 0

so cos²(U, D) is the share of the direction that real tokens capture; the rest is the error of the inversion.

`Singular` inverts the first singular direction of the whole map: feature space turned into an attack on text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from howsmooth.attack.constraints import check_count
from howsmooth.attack.tokens.edits import Edit, Room, apply
from howsmooth.attack.tokens.methods import Method, stream, substitution_scores
from howsmooth.attack.tokens.problem import TextProblem
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.models import TokenEmbedding
from howsmooth.spectral import FunctionOperator, singular_values

SHORTLIST = 32  # tokens for each place that are tried exactly, where positions do not simply add
SCAN = tuple(2.0 ** (power / 3) for power in range(-3, 10))  # η, in that of the best single token
ROUNDS = 20  # of the fixed point from there, which rises at every step and arrives in a few


@dataclass(frozen=True)
class Inversion:
    """Edits whose change of the model's input is nearest to a direction, up to a positive factor.

    share: cos² of the two; error: 1 − share; size: the length of the change that the tokens make.
    """

    edits: tuple[Edit, ...]
    share: float
    size: float

    @property
    def error(self) -> float:
        return 1 - self.share

    def as_record(self) -> dict:
        return {
            "edits": [edit.as_record() for edit in self.edits],
            "share": self.share,
            "error": self.error,
            "size": self.size,
        }


def captured_share(direction: Tensor, change: Tensor) -> float:
    """The largest share of ‖U‖² that a positive multiple of a change explains: cos², or 0 where it points away.

    >>> captured_share(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    0.36
    """
    u, change = direction.double().flatten(), change.double().flatten()
    along, sizes = float(u @ change), float(u @ u) * float(change @ change)
    return along**2 / sizes if along > 0 and sizes > 0 else 0.0


def realised(embedding: TokenEmbedding, ids: Tensor, edits: tuple[Edit, ...]) -> Tensor:
    """How substitutions change what enters layer 0, (n, d)."""
    if any(edit.kind != "substitute" for edit in edits):
        raise InputError("expected substitutions, got an edit that changes the number of tokens")
    pair = torch.stack([torch.tensor(apply(ids.tolist(), edits), device=ids.device), ids])
    with torch.no_grad():
        after, before = embedding.entering(embedding.matrix[pair])
    return after - before


def invert(embedding: TokenEmbedding, ids: Tensor, direction: Tensor, room: Room, edits: int = 1) -> Inversion:
    """The `edits` substitutions within the room whose change captures the largest share of a direction (n, d).

    One substitution is the best of all where positions simply add to embeddings (GPT-2, Llama), and the best of a
    shortlist by first-order scores for each place where a normalisation follows (BERT). Several are found by a scan and
    a fixed point: with a = ⟨u_i, d_i⟩ and b = |d_i|², cos² = (Σa)²/Σb = max over η of Σ(2ηa − b)/η², reached at
    η = Σb/Σa, and for a given η each place decides for itself.
    """
    check_count("invert", "edits", edits, least=1)
    if direction.shape != (len(ids), embedding.matrix.shape[1]) or not torch.isfinite(direction).all():
        raise InputError(
            f"invert: expected a finite direction of shape ({len(ids)}, {embedding.matrix.shape[1]}), got "
            f"{tuple(direction.shape)}"
        )
    places = torch.tensor(room.places, device=ids.device)
    along, sizes, tokens = _changes(embedding, ids, direction.to(embedding.matrix), room, places)
    single = torch.where(along > 0, along.square() / sizes, along.new_zeros(())).flatten()
    best = int(single.argmax())
    if not single[best] > 0:
        raise InputError("invert: expected a token that moves along the direction, got none; widen the limits")
    chosen = [divmod(best, along.shape[1])]
    if edits > 1:
        chosen = _best_set(along, sizes, edits, start=float(sizes.flatten()[best] / along.flatten()[best]))
    made = tuple(Edit(int(places[row]), "substitute", int(tokens[row, column])) for row, column in chosen)
    change = realised(embedding, ids, made)
    return Inversion(made, captured_share(direction, change), float(torch.linalg.vector_norm(change)))


def _best_set(along: Tensor, sizes: Tensor, count: int, start: float) -> list[tuple[int, int]]:
    """(row, column) of up to `count` rows that make (Σa)²/Σb large: the fixed point from each η of a scan."""

    def at(eta: float) -> list[tuple[int, int]]:
        gain, which = (2 * eta * along - sizes).max(1)
        return sorted(
            (row, int(which[row])) for row in gain.topk(min(count, len(gain))).indices.tolist() if gain[row] > 0
        )

    def sums(chosen: list[tuple[int, int]]) -> tuple[float, float]:
        index = tuple(torch.tensor(chosen, device=along.device).T)
        return float(along[index].double().sum()), float(sizes[index].double().sum())

    share: dict[tuple[tuple[int, int], ...], float] = {}
    for factor in SCAN:
        chosen = at(start * factor)
        for _ in range(ROUNDS):
            if not chosen or tuple(chosen) in share:
                break
            a, b = sums(chosen)
            share[tuple(chosen)] = a * a / b
            chosen = at(b / a)
    best: tuple[tuple[int, int], ...] = max(share, key=share.__getitem__)
    return list(best)


def _changes(embedding: TokenEmbedding, ids: Tensor, direction: Tensor, room: Room, places: Tensor):
    """(⟨u_i, d⟩, |d|², token) for every place and candidate; what may not be written has 0 and ∞."""
    matrix, closed = embedding.matrix, ~room.tokens(ids, places)
    there = matrix[ids[places]]
    if embedding.additive:
        u = direction[places]
        sizes = (matrix.square().sum(-1) - 2 * there @ matrix.T + there.square().sum(-1, keepdim=True)).clamp_min(1e-12)
        tokens = torch.arange(len(matrix), device=ids.device).expand(len(places), -1)
        return (
            substitution_scores(u, matrix, ids[places]).masked_fill(closed, 0.0),
            sizes.masked_fill(closed, float("inf")),
            tokens,
        )
    # What becomes of a token depends on its place: a shortlist by first order, then the true changes.
    vectors = matrix[ids][None].clone().requires_grad_()
    with torch.enable_grad():
        (pulled_back,) = torch.autograd.grad(embedding.entering(vectors), vectors, direction[None])
    scores = substitution_scores(pulled_back[0, places], matrix, ids[places]).masked_fill(closed, float("-inf"))
    count = min(SHORTLIST, scores.shape[1])
    best = scores.topk(count)
    swapped = ids.repeat(count, 1)
    swapped[:, places] = best.indices.T  # every place at once: a token's vector does not depend on its neighbours
    with torch.no_grad():
        change = (embedding.entering(matrix[swapped]) - embedding.entering(matrix[ids][None]))[:, places]
    shut = best.values == float("-inf")
    along = (change * direction[places]).sum(-1).T.masked_fill(shut, 0.0)
    return along, change.square().sum(-1).T.clamp_min(1e-12).masked_fill(shut, float("inf")), best.indices


@dataclass(frozen=True)
class Singular(Method):
    """Invert ±U, the first right singular direction at the model's input, into substitutions.

    The map goes from what enters layer 0 to what the objective looks at: the last token's hidden state for next-token
    objectives, all of them for the others. `steps` of Golub–Kahan, each a product with J (two calls: value and tangent)
    and one with Jᵀ (one call), a last pair to evaluate what was found, and two forward passes before. Then the tokens
    nearest to U and to −U are evaluated; what remains of the calls goes to the next best places, those used being
    closed.
    """

    steps: int = 2

    name = "singular"

    def __call__(self, problem: TextProblem, seed: int) -> None:
        products = 2 + 3 * (self.steps + 1)
        if problem.left < products + 1:
            raise InputError(
                f"singular: expected at least {products + 2} calls (a direction takes {products}), got "
                f"{problem.calls}; allow more calls or fewer steps"
            )
        direction = self.direction(problem, seed)
        room, edits = problem.room, problem.limits.edits
        while not problem.over and len(room.places) >= edits:
            found = [inverted for u in (direction, -direction) if (inverted := self._invert(problem, u, room, edits))]
            if not found:
                break
            problem.notes.setdefault("inversion", max(found, key=lambda i: i.share).as_record())
            stream(problem, (i.edits for i in found))
            used = {edit.position for inverted in found for edit in inverted.edits}
            room = replace(room, places=[place for place in room.places if place not in used])

    def direction(self, problem: TextProblem, seed: int = 0) -> Tensor:
        """U (n, d), unit length, at what enters layer 0; its calls are counted."""
        at = problem.victim.model.map_at(problem.ids, kind="model")
        whole = AutodiffJacobian(partial(_output, at.f, problem.objective.last_only), at.x, trusted=True)
        problem.forwards += 2  # one to capture what enters layer 0, one for the graph

        def forward(v: Tensor) -> Tensor:
            problem.forwards += 2
            return whole.matvec(v)

        def backward(u: Tensor) -> Tensor:
            problem.backwards += 1
            return whole.rmatvec(u)

        counted = FunctionOperator(forward, backward, whole.shape, dtype=whole.dtype, device=whole.device)
        found = singular_values(counted, k=1, tol=1e-2, stop="residual", max_steps=self.steps, seed=seed, strict=False)
        problem.notes["singular_value"] = float(found.value[0])
        return found.v[0].reshape(at.x.shape).to(problem.embedding.matrix)

    @staticmethod
    def _invert(problem: TextProblem, direction: Tensor, room, edits: int) -> Inversion | None:
        try:
            return invert(problem.embedding, problem.ids, direction, room, edits)
        except InputError:  # no token of the room moves along the direction
            return None


def _output(f, last: bool, x: Tensor) -> Tensor:
    y = f(x)
    return y[-1:] if last else y
