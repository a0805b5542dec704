"""Feature-space attacks: perturb the tokens that enter a map, within a budget, to change what comes out."""

from howsmooth.attack.feature.attacks import (
    Attack,
    Duplicate,
    Edited,
    FeatureEdit,
    GradientSign,
    Insert,
    Noise,
    ProjectedGradient,
    SingularDirection,
)
from howsmooth.attack.feature.problem import Budget, FeatureProblem, Target
from howsmooth.attack.feature.result import FeatureAttack, load_attack, run, save_attack
from howsmooth.attack.objectives import FeatureObjective, NextToken, OutputChange, Similarity
from howsmooth.attack.verification import Verification
from howsmooth.attack.verification import verify_features as verify

__all__ = [
    "Attack",
    "Budget",
    "Duplicate",
    "Edited",
    "FeatureAttack",
    "FeatureEdit",
    "FeatureObjective",
    "FeatureProblem",
    "GradientSign",
    "Insert",
    "NextToken",
    "Noise",
    "OutputChange",
    "ProjectedGradient",
    "Similarity",
    "SingularDirection",
    "Target",
    "Verification",
    "load_attack",
    "run",
    "save_attack",
    "verify",
]
