"""Measures on tokens, attention as a map of measures, and distances between them."""

from howsmooth.transport.conditional import ConditionalTransport, conditional_distance
from howsmooth.transport.files import read_measure
from howsmooth.transport.measures import TimedMeasure, TokenMeasure, push_forward
from howsmooth.transport.wasserstein import Transport, TransportPlan, gaussian_wasserstein, wasserstein

__all__ = [
    "TokenMeasure",
    "TimedMeasure",
    "push_forward",
    "wasserstein",
    "conditional_distance",
    "gaussian_wasserstein",
    "read_measure",
    "Transport",
    "ConditionalTransport",
    "TransportPlan",
]
