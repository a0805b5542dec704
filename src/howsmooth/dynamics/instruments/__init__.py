"""What to watch along depth: clusters, hulls, hyperplanes, the pattern of P, energy, distances, plateaus."""

from howsmooth.dynamics.instruments.clusters import Clusters, clusters
from howsmooth.dynamics.instruments.distances import diameter, farthest_move, w2
from howsmooth.dynamics.instruments.energy import log_energy
from howsmooth.dynamics.instruments.hull import Hull, hull
from howsmooth.dynamics.instruments.hyperplanes import Hyperplanes, hyperplanes, leading_space
from howsmooth.dynamics.instruments.pattern import PatternOfP, pattern_of_p, probabilities
from howsmooth.dynamics.instruments.plateaus import Plateau, plateaus
from howsmooth.dynamics.instruments.spread import Spread, directions, spread
from howsmooth.dynamics.instruments.view import View, principal_view, view

__all__ = ["Clusters", "Hull", "Hyperplanes", "PatternOfP", "Plateau", "Spread", "View", "clusters", "diameter",
           "directions", "farthest_move", "hull", "hyperplanes", "leading_space", "log_energy", "pattern_of_p",
           "plateaus", "principal_view", "probabilities", "spread", "view", "w2"]
