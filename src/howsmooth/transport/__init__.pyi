from howsmooth.transport.measures import (
    TokenMeasure as TokenMeasure,
    TimedMeasure as TimedMeasure,
    push_forward as push_forward,
)
from howsmooth.transport.distances import wasserstein as wasserstein
from howsmooth.transport.conditional import conditional_distance as conditional_distance
from howsmooth.transport.distances import gaussian_wasserstein as gaussian_wasserstein
from howsmooth.transport.files import read_measure as read_measure
from howsmooth.transport.distances import Transport as Transport
from howsmooth.transport.conditional import ConditionalTransport as ConditionalTransport
from howsmooth.transport.distances import TransportPlan as TransportPlan
