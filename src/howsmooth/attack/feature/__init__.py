"""Feature-space attacks: perturb the tokens that enter a map, within a budget, to change what comes out."""

from howsmooth.attack.feature.artefact import Verification, load_attack, save_attack, verify
from howsmooth.attack.feature.attacks import Attack, Edited, GradientSign, Noise, ProjectedGradient, SingularDirection
from howsmooth.attack.feature.budget import Budget
from howsmooth.attack.feature.edits import Duplicate, Edit, Insert
from howsmooth.attack.feature.objectives import NextToken, Objective, OutputChange, Similarity
from howsmooth.attack.feature.result import FeatureAttack, run
from howsmooth.attack.feature.targets import Target

__all__ = ["Attack", "Budget", "Duplicate", "Edit", "Edited", "FeatureAttack", "GradientSign", "Insert", "NextToken",
           "Noise", "Objective", "OutputChange", "ProjectedGradient", "Similarity", "SingularDirection", "Target",
           "Verification", "load_attack", "run", "save_attack", "verify"]
