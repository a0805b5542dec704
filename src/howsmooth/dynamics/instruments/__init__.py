"""What to watch along depth: clusters, hulls, hyperplanes, the pattern of P, energy, distances, plateaus."""

from howsmooth.dynamics.instruments.clusters import (
    Clusters,
    Hull,
    Hyperplanes,
    Plateau,
    clusters,
    hull,
    hyperplanes,
    leading_space,
    plateaus,
)
from howsmooth.dynamics.instruments.geometry import (
    PatternOfP,
    Spread,
    View,
    diameter,
    directions,
    farthest_move,
    log_energy,
    pattern_of_p,
    principal_view,
    probabilities,
    spread,
    view,
    w2,
)
from howsmooth.dynamics.instruments.records import drawing, watch

__all__ = ["Clusters", "Hull", "Hyperplanes", "PatternOfP", "Plateau", "Spread", "View", "clusters", "diameter",
           "directions", "drawing", "farthest_move", "hull", "hyperplanes", "leading_space", "log_energy",
           "pattern_of_p", "plateaus", "principal_view", "probabilities", "spread", "view", "w2", "watch"]
