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
from howsmooth.spectral import FunctionOperator, singular_values


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

    def __call__(self, problem: Problem, seed: int) -> None:
        products = 2 + 3 * (self.steps + 1)
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
    def _invert(problem: Problem, direction: Tensor, room, edits: int) -> Inversion | None:
        try:
            return invert(problem.embedding, problem.ids, direction, room, edits)
        except InputError:  # no token of the room moves along the direction
            return None


def _output(f, last: bool, x: Tensor) -> Tensor:
    y = f(x)
    return y[-1:] if last else y
