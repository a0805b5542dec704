"""Inversion of a direction in feature space into real tokens.

Let U (n, d) be a direction at the input of layer 0, which consists of embeddings and positions. Substitutions change
that input by D, whose rows are e(v, i) − e(x_i, i) at the edited positions and 0 elsewhere. The relative error of the
best positive multiple of D is

    min_c ‖U − cD‖² / ‖U‖²  =  1 − ⟨U, D⟩² / (‖U‖² ‖D‖²)        c ≥ 0

so cos²(U, D) is the share of the direction that real tokens capture; the rest is the error of the inversion.

`Singular` inverts the first singular direction of the whole model, which turns it into an attack on text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth import choices
from howsmooth.attack.checks import check_count
from howsmooth.attack.tokens.edits import Edit, SearchSpace, apply
from howsmooth.attack.tokens.methods import Method, evaluate_until_success, substitution_scores
from howsmooth.attack.tokens.problem import TextProblem
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import FunctionOperator

if TYPE_CHECKING:
    from howsmooth.models.embedding import TokenEmbedding

SHORTLIST_SIZE = 32  # tokens per position whose change is computed exactly, where positions are not simply added
ETA_GRID = tuple(2.0 ** (power / 3) for power in range(-3, 10))  # relative to η of the best single token
MAX_ITERATIONS = 20  # of the fixed point, which increases at every step and converges in a few


@dataclass(frozen=True)
class Inversion:
    """Edits whose change of the model's input is nearest to a direction, up to a positive factor.

    Attributes:
        edits: the substitutions.
        share: cos² of the change and the direction.
        size: the norm of the change.
    """

    edits: tuple[Edit, ...]
    share: float
    size: float

    @property
    def error(self) -> float:
        """1 − share, the relative error of the inversion."""
        return 1 - self.share

    def as_record(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return {
            "edits": [edit.as_record() for edit in self.edits],
            "share": self.share,
            "error": self.error,
            "size": self.size,
        }


def captured_share(direction: Tensor, change: Tensor) -> float:
    """Return the largest share of ‖U‖² that a positive multiple of a change captures.

    Args:
        direction: U, (n, d).
        change: D, (n, d).

    Returns:
        cos²(U, D), or 0 where their inner product is negative.

    Example:
        >>> captured_share(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        0.36
    """
    u, change = direction.double().flatten(), change.double().flatten()
    along, sizes = float(u @ change), float(u @ u) * float(change @ change)
    return along**2 / sizes if along > 0 and sizes > 0 else 0.0


def input_change(embedding: TokenEmbedding, ids: Tensor, edits: tuple[Edit, ...]) -> Tensor:
    """Return the change of the input of layer 0 by substitutions, (n, d)."""
    if any(edit.operation != "substitute" for edit in edits):
        raise InputError("expected substitutions, got an edit that changes the number of tokens")
    pair = torch.stack([torch.tensor(apply(ids.tolist(), edits), device=ids.device), ids])
    with torch.no_grad():
        after, before = embedding.first_layer_input(embedding.matrix[pair])
    return after - before


def invert(embedding: TokenEmbedding, ids: Tensor, direction: Tensor, space: SearchSpace, edits: int = 1) -> Inversion:
    """Find the substitutions whose change of the model's input captures the largest share of a direction.

    One substitution is the best of all where positions are added to embeddings (GPT-2, Llama), and the best of a
    shortlist by first-order scores for each position where a normalisation follows (BERT). Several substitutions are
    found by a grid of η and a fixed-point iteration: with a = ⟨u_i, d_i⟩ and b = |d_i|²,

        cos² = (Σa)²/Σb = max over η of Σ(2ηa − b)/η²,  attained at η = Σb/Σa

    and for a given η the maximum is taken separately at each position.

    Args:
        embedding: the model's embedding.
        ids: the token ids (n,).
        direction: U, (n, d), at the input of layer 0.
        space: the substitutions that are allowed.
        edits: the largest number of substitutions.

    Returns:
        The substitutions and the share that they capture.

    Raises:
        InputError: the direction is not finite or has the wrong shape, or no allowed token moves along it.
    """
    check_count("invert", "edits", edits, least=1)
    if direction.shape != (len(ids), embedding.matrix.shape[1]) or not torch.isfinite(direction).all():
        raise InputError(
            f"invert: expected a finite direction of shape ({len(ids)}, {embedding.matrix.shape[1]}), got "
            f"{tuple(direction.shape)}"
        )
    positions = torch.tensor(space.positions, device=ids.device)
    along, sizes, tokens = _changes(embedding, ids, direction.to(embedding.matrix), space, positions)
    single = torch.where(along > 0, along.square() / sizes, along.new_zeros(())).flatten()
    best = int(single.argmax())
    if not single[best] > 0:
        raise InputError("invert: expected a token that moves along the direction, got none; widen the limits")
    chosen = [divmod(best, along.shape[1])]
    if edits > 1:
        chosen = _best_subset(along, sizes, edits, start=float(sizes.flatten()[best] / along.flatten()[best]))
    found = tuple(Edit(int(positions[row]), "substitute", int(tokens[row, column])) for row, column in chosen)
    change = input_change(embedding, ids, found)
    return Inversion(found, captured_share(direction, change), float(torch.linalg.vector_norm(change)))


def _best_subset(along: Tensor, sizes: Tensor, count: int, start: float) -> list[tuple[int, int]]:
    """Return (row, column) of up to `count` rows that make (Σa)²/Σb large: the best fixed point from a grid of η."""

    def best_at(eta: float) -> list[tuple[int, int]]:
        gain, which = (2 * eta * along - sizes).max(1)
        return sorted(
            (row, int(which[row])) for row in gain.topk(min(count, len(gain))).indices.tolist() if gain[row] > 0
        )

    def sums(chosen: list[tuple[int, int]]) -> tuple[float, float]:
        index = tuple(torch.tensor(chosen, device=along.device).T)
        return float(along[index].double().sum()), float(sizes[index].double().sum())

    share: dict[tuple[tuple[int, int], ...], float] = {}
    for factor in ETA_GRID:
        chosen = best_at(start * factor)
        for _ in range(MAX_ITERATIONS):
            if not chosen or tuple(chosen) in share:
                break
            a, b = sums(chosen)
            share[tuple(chosen)] = a * a / b
            chosen = best_at(b / a)
    best: tuple[tuple[int, int], ...] = max(share, key=share.__getitem__)
    return list(best)


def _changes(
    embedding: TokenEmbedding, ids: Tensor, direction: Tensor, space: SearchSpace, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (⟨u_i, d⟩, |d|², token) for every position and candidate; 0 and ∞ for tokens that are not allowed."""
    matrix, forbidden = embedding.matrix, ~space.allowed_tokens(ids, positions)
    current = matrix[ids[positions]]
    if embedding.additive:
        sizes = matrix.square().sum(-1) - 2 * current @ matrix.T + current.square().sum(-1, keepdim=True)
        return (
            substitution_scores(direction[positions], matrix, ids[positions]).masked_fill(forbidden, 0.0),
            sizes.clamp_min(1e-12).masked_fill(forbidden, float("inf")),
            torch.arange(len(matrix), device=ids.device).expand(len(positions), -1),
        )
    # The change depends on the position in a non-linear way: a shortlist by first order, then the exact changes.
    vectors = matrix[ids][None].clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(embedding.first_layer_input(vectors), vectors, direction[None])
    scores = substitution_scores(gradient[0, positions], matrix, ids[positions]).masked_fill(forbidden, float("-inf"))
    count = min(SHORTLIST_SIZE, scores.shape[1])
    best = scores.topk(count)
    substituted = ids.repeat(count, 1)
    substituted[:, positions] = best.indices.T  # all positions at once: a token's vector does not depend on the others
    with torch.no_grad():
        change = (embedding.first_layer_input(matrix[substituted]) - embedding.first_layer_input(matrix[ids][None]))[
            :, positions
        ]
    excluded = best.values == float("-inf")
    along = (change * direction[positions]).sum(-1).T.masked_fill(excluded, 0.0)
    return along, change.square().sum(-1).T.clamp_min(1e-12).masked_fill(excluded, float("inf")), best.indices


@dataclass(frozen=True)
class Singular(Method):
    """Inverts ±U, the first right singular direction at the model's input, into substitutions.

    The map is from the input of layer 0 to the hidden states that the objective uses: that of the last token for
    next-token objectives, all of them for the others. U takes two forward passes, then `steps` Golub–Kahan steps and
    one more pair of products for the result. A product with J costs two calls (value and tangent), one with Jᵀ costs
    one. Then the tokens nearest to U and to −U are evaluated. The remaining calls are used for the next best positions,
    without those used before.

    Attributes:
        steps: the number of Golub–Kahan steps.
    """

    steps: int = 2

    name = choices.SINGULAR

    def __call__(self, problem: TextProblem, seed: int) -> None:
        """Compute the direction, and evaluate its inversions."""
        products = 2 + 3 * (self.steps + 1)
        if problem.calls_left < products + 1:
            raise InputError(
                f"singular: expected at least {products + 2} calls (a direction takes {products}), got "
                f"{problem.calls}; allow more calls or fewer steps"
            )
        direction = self.direction(problem, seed)
        space, edits = problem.search_space, problem.limits.edits
        while not problem.finished and len(space.positions) >= edits:
            inversions = [
                inversion for u in (direction, -direction) if (inversion := self._invert(problem, u, space, edits))
            ]
            if not inversions:
                break
            problem.notes.setdefault("inversion", max(inversions, key=lambda i: i.share).as_record())
            evaluate_until_success(problem, (inversion.edits for inversion in inversions))
            used = {edit.position for inversion in inversions for edit in inversion.edits}
            space = replace(space, positions=[position for position in space.positions if position not in used])

    def direction(self, problem: TextProblem, seed: int = 0) -> Tensor:
        """Return the unit vector U (n, d) at the input of layer 0; its calls are counted."""
        at = problem.target.model.map_at(problem.ids, map="model")
        jacobian = AutodiffJacobian(partial(_output, at.f, problem.objective.uses_last_token), at.x, check=False)
        problem.forwards += 2  # one to capture the input of layer 0, one for the graph

        def matvec(v: Tensor) -> Tensor:
            problem.forwards += 2
            return jacobian.matvec(v)

        def rmatvec(u: Tensor) -> Tensor:
            problem.backwards += 1
            return jacobian.rmatvec(u)

        counted = FunctionOperator(matvec, rmatvec, jacobian.shape, dtype=jacobian.dtype, device=jacobian.device)
        found = singular_values(counted, k=1, tol=1e-2, stop="residual", max_steps=self.steps, seed=seed, strict=False)
        problem.notes["singular_value"] = float(found.value[0])
        return found.v[0].reshape(at.x.shape).to(problem.embedding.matrix)

    @staticmethod
    def _invert(problem: TextProblem, direction: Tensor, space: SearchSpace, edits: int) -> Inversion | None:
        try:
            return invert(problem.embedding, problem.ids, direction, space, edits)
        except InputError:  # no allowed token moves along the direction
            return None


def _output(f: Callable[[Tensor], Tensor], last: bool, x: Tensor) -> Tensor:
    """Return the hidden states (n, d), or that of the last token (1, d)."""
    y = f(x)
    return y[-1:] if last else y
