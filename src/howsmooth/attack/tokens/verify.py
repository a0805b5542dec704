"""Every reported success again, from what was saved: two plain forward passes on whole texts, nothing shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from howsmooth.attack.tokens.edits import Edit, apply, kept
from howsmooth.attack.tokens.objectives import objective_of
from howsmooth.attack.tokens.problem import Victim
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models import Model

AGREE = 1e-3  # relative to 1 and the value: float32, other orders of summation


@dataclass(frozen=True)
class Verification:
    """`holds` if the edits give the saved tokens, the value comes out again, and success with it."""

    holds: bool
    value: float
    success: bool
    why: str = ""


def verify(model: Model | Victim, record: dict) -> Verification:
    """Evaluate a saved attack (`TokenAttack.as_record`, or its JSON read back) from its token numbers alone."""
    missing = [key for key in ("ids", "attacked_ids", "edits", "objective", "value", "success") if key not in record]
    if missing:
        raise InputError(f"expected the record of an attack on tokens, got one without {missing[0]}")
    victim = model if isinstance(model, Victim) else Victim(model)
    objective, embedding = objective_of(record["objective"]), victim.embedding
    edits = [Edit(**edit) for edit in record["edits"]]
    ids, attacked = (victim.model._ids(record[key]) for key in ("ids", "attacked_ids"))
    with torch.no_grad():
        before, after = (objective.features(embedding, embedding.matrix[t][None]) for t in (ids, attacked))
        where = torch.tensor([kept(len(ids), edits)], device=ids.device)
        value = float(objective.value(after, before, where))
    success = objective.succeeds(value)
    if apply(ids.tolist(), edits) != attacked.tolist():
        return Verification(False, value, success, "the edits do not give the attacked tokens")
    if abs(value - record["value"]) > AGREE * max(1.0, abs(value)):
        return Verification(False, value, success, f"the value is {value:.6g}, not {record['value']:.6g}")
    if success != record["success"]:
        return Verification(False, value, success, "success does not come out again")
    return Verification(True, value, success)
