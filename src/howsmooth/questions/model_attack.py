"""What does an attacker gain who may perturb the embeddings of a text: in hidden states, next token or embedding?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from howsmooth.questions import layer_attack
from howsmooth.questions.layer_attack import BUDGET_FIELDS, FeatureAttackRecord, FeatureAttackSpec
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, Lengths, Tolerance


class ModelAttackSpec(FeatureAttackSpec):
    """Which samples, what is to change, which attacks, and their budgets."""

    options: ClassVar[tuple[str, ...]] = (*CHUNK_FIELDS, *SOLVER_FIELDS, "objective", *BUDGET_FIELDS)

    question: str = "model-attack"
    map: Literal["model"] = "model"
    lengths: Lengths = (32,)
    tol: Tolerance = 1e-1


class ModelAttack(FeatureAttackRecord, kind="model attack"):
    """An attack on what enters the first layer, through the whole model."""

    positions: int | None = None  # whose next token is compared, with the objective next-token
    flips: int | None = None  # positions at which another token has become the most probable


QUESTION = replace(
    layer_attack.QUESTION,
    spec=ModelAttackSpec,
    records=(ModelAttack,),
    about="Perturb the input of the first layer, to change the last hidden states, the next token or the embedding of "
    "the text.",
)
