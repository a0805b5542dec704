"""The first singular direction of the whole map, met by real tokens: feature space turned into an attack on text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from howsmooth.attack.tokens.inversion import Inversion, invert
from howsmooth.attack.tokens.methods import Method, stream
from howsmooth.attack.tokens.problem import Problem
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.spectral import singular_values


@dataclass(frozen=True)
class Singular(Method):
    """Invert ±U, the first right singular direction at the model's input, into substitutions.

    The map goes from what enters layer 0 to what the objective looks at: the last token's hidden state for next-token
    objectives, all of them for the others. `steps` of Golub–Kahan, each a product with J (two calls: value and tangent)
    and one with Jᵀ (one call), after one forward pass for the graph. Then for k = 1 … edits the tokens nearest to U and
    to −U are evaluated. What remains of the calls goes to the next best places: those used are closed one by one.
    """

    steps: int = 3

    name = "singular"

    def __call__(self, problem: Problem, seed: int) -> None:
        products = 1 + 3 * self.steps
        if problem.left < products + 1:
            raise InputError(f"singular: expected at least {products + 2} calls (a direction takes {products}), got "
                             f"{problem.calls}; allow more calls or fewer steps")
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

    def direction(self, problem: Problem, seed: int = 0) -> Tensor:
        """U (n, d), unit length, at what enters layer 0; its calls are counted."""
        embedding, last = problem.embedding, problem.objective.last_only
        at = problem.victim.model.map_at(problem.ids, kind="model")
        jacobian = AutodiffJacobian(partial(_output, at.f, last), at.x, trusted=True)
        found = singular_values(jacobian, k=1, tol=1e-2, stop="residual", max_steps=self.steps, seed=seed, strict=False)
        problem.forwards += 1 + 2 * self.steps
        problem.backwards += self.steps
        problem.notes["singular_value"] = float(found.value[0])
        return found.v[0].reshape(at.x.shape).to(embedding.matrix)

    @staticmethod
    def _invert(problem: Problem, direction: Tensor, room, edits: int) -> Inversion | None:
        try:
            return invert(problem.embedding, problem.ids, direction, room, edits)
        except InputError:  # no token of the room moves along the direction
            return None


def _output(f, last: bool, x: Tensor) -> Tensor:
    y = f(x)
    return y[-1:] if last else y
