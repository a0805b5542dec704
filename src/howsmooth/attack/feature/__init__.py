"""Feature-space attacks: perturb the tokens that enter a map, within a budget, to change its output."""

from howsmooth.attack.checks import Verification
from howsmooth.attack.feature.attacks import (
    Attack,
    Duplicate,
    Edited,
    EditSequence,
    FeatureEdit,
    GradientSign,
    Insert,
    Noise,
    ProjectedGradient,
    SingularDirection,
)
from howsmooth.attack.feature.problem import Budget, FeatureProblem, Target
from howsmooth.attack.feature.result import FeatureAttack, load_attack, run, save_attack, verify
from howsmooth.attack.objectives import FeatureObjective, NextToken, OutputChange, Similarity

__all__ = [
    "run",
    "Target",
    "Budget",
    "FeatureAttack",
    "Attack",
    "Noise",
    "GradientSign",
    "SingularDirection",
    "ProjectedGradient",
    "FeatureEdit",
    "Duplicate",
    "Insert",
    "EditSequence",
    "Edited",
    "FeatureObjective",
    "OutputChange",
    "NextToken",
    "Similarity",
    "FeatureProblem",
    "save_attack",
    "load_attack",
    "verify",
    "Verification",
]
