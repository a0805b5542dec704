"""Verification of saved attacks on tokens: two forward passes on whole texts, from the token ids of a record alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attack.checks import Verification
from howsmooth.attack.objectives import TEXT_OBJECTIVES, TextObjective, objective_of
from howsmooth.attack.tokens.edits import Edit, apply, positions_after
from howsmooth.attack.tokens.problem import TargetModel
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models.model import Model

TOLERANCE = 1e-3  # relative to max(1, |value|): float32 with another order of summation
REQUIRED_FIELDS = ("ids", "attacked_ids", "edits", "objective", "value", "success")


def verify(model: Model | TargetModel, record: Mapping[str, Any]) -> Verification:
    """Evaluate a saved attack on tokens again, from its token ids alone.

    Args:
        model: the model that was attacked.
        record: `TokenAttack.as_record()`, or its JSON read back.

    Returns:
        What agrees and what does not; the values are those of the objective.

    Raises:
        InputError: a field that is needed is missing from the record.
    """
    missing = [key for key in REQUIRED_FIELDS if key not in record]
    if missing:
        raise InputError(f"expected the record of an attack on tokens, got one without {missing[0]}")
    target = model if isinstance(model, TargetModel) else TargetModel(model)
    objective: TextObjective = objective_of(record["objective"], TEXT_OBJECTIVES)
    embedding, edits = target.embedding, [Edit(**edit) for edit in record["edits"]]
    ids, attacked = (target.model.token_ids(record[key]) for key in ("ids", "attacked_ids"))
    with torch.no_grad():
        before, after = (objective.features(embedding, embedding.matrix[t][None]) for t in (ids, attacked))
        positions = torch.tensor([positions_after(len(ids), edits)], device=ids.device)
        value = float(objective.value(after, before, positions))
    success, wrong = bool(edits) and objective.succeeds(value), []
    if apply(ids.tolist(), edits) != attacked.tolist():
        wrong.append("the edits do not give the attacked tokens")
    if not abs(value - record["value"]) <= TOLERANCE * max(1.0, abs(value)):
        wrong.append(f"value: {record['value']:.6g} reported, {value:.6g} found")
    if success != record["success"]:
        wrong.append(f"success: {record['success']} reported, {success} found")
    return Verification(not wrong, tuple(wrong), value, record["value"])
