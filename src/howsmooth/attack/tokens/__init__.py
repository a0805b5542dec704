"""Attacks in token space: real tokens substituted, inserted and duplicated, every success evaluated exactly."""

from howsmooth.attack.objectives import KL, Cosine, Flip, Hidden, TextObjective
from howsmooth.attack.objectives import TEXT_OBJECTIVES as OBJECTIVES
from howsmooth.attack.tokens.attack import TokenAttack, attack_text
from howsmooth.attack.tokens.edits import Edit, Limits, SentenceJudge, apply
from howsmooth.attack.tokens.inversion import Inversion, Singular, captured_share, invert
from howsmooth.attack.tokens.methods import METHODS, Greedy, HotFlip, Probe, Random
from howsmooth.attack.tokens.problem import TextProblem, Victim
from howsmooth.attack.verification import Verification
from howsmooth.attack.verification import verify_text as verify

__all__ = [
    "KL",
    "METHODS",
    "OBJECTIVES",
    "Cosine",
    "Edit",
    "Flip",
    "Greedy",
    "Hidden",
    "HotFlip",
    "Inversion",
    "Limits",
    "Probe",
    "Random",
    "SentenceJudge",
    "Singular",
    "TextObjective",
    "TextProblem",
    "TokenAttack",
    "Verification",
    "Victim",
    "apply",
    "attack_text",
    "captured_share",
    "invert",
    "verify",
]
