"""Attacks in token space: real tokens substituted, inserted and duplicated, every success evaluated exactly."""

from howsmooth.attack.tokens.attack import TokenAttack, attack_text
from howsmooth.attack.tokens.edits import Edit, apply
from howsmooth.attack.tokens.inversion import Inversion, captured_share, invert
from howsmooth.attack.tokens.judge import SentenceJudge
from howsmooth.attack.tokens.limits import Limits
from howsmooth.attack.tokens.methods import METHODS, Beam, Greedy, HotFlip, Random
from howsmooth.attack.tokens.objectives import KL, OBJECTIVES, Cosine, Flip, Hidden, Objective
from howsmooth.attack.tokens.problem import Problem, Victim
from howsmooth.attack.tokens.singular import Singular
from howsmooth.attack.tokens.verify import Verification, verify

__all__ = ["KL", "METHODS", "OBJECTIVES", "Beam", "Cosine", "Edit", "Flip", "Greedy", "Hidden", "HotFlip", "Inversion",
           "Limits", "Objective", "Problem", "Random", "SentenceJudge", "Singular", "TokenAttack", "Verification",
           "Victim", "apply", "attack_text", "captured_share", "invert", "verify"]
