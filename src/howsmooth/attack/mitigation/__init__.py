"""Mitigations: attention made smoother, each with its price."""

from howsmooth.attack.mitigation.changes import L2, Cap, Mitigation, Temperature
from howsmooth.attack.mitigation.distances import DistanceAttention

__all__ = ["Cap", "DistanceAttention", "L2", "Mitigation", "Temperature"]
