"""Attacks in token space: real tokens are substituted, inserted and duplicated, and every success is verified."""

from howsmooth.attack.checks import Verification
from howsmooth.attack.objectives import KL, Cosine, Flip, Hidden, TextObjective
from howsmooth.attack.objectives import TEXT_OBJECTIVES as OBJECTIVES
from howsmooth.attack.tokens.attack import METHODS, TokenAttack, attack_text, verify
from howsmooth.attack.tokens.edits import Edit, EditLimits, SearchSpace, SentenceSimilarity, apply
from howsmooth.attack.tokens.inversion import Inversion, Singular, captured_share, invert
from howsmooth.attack.tokens.methods import Greedy, HotFlip, Method, Probe, Random
from howsmooth.attack.tokens.problem import TargetModel, TextProblem

__all__ = [
    "attack_text",
    "TokenAttack",
    "TargetModel",
    "EditLimits",
    "SentenceSimilarity",
    "Edit",
    "apply",
    "TextObjective",
    "Flip",
    "KL",
    "Hidden",
    "Cosine",
    "OBJECTIVES",
    "Method",
    "Probe",
    "HotFlip",
    "Greedy",
    "Random",
    "Singular",
    "METHODS",
    "TextProblem",
    "SearchSpace",
    "invert",
    "Inversion",
    "captured_share",
    "verify",
    "Verification",
]
