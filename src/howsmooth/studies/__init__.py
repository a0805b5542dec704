"""Studies: what to measure, and the loop that measures it."""

from __future__ import annotations

from howsmooth.studies.attacking import balls, worst_cases
from howsmooth.studies.bounding import bound
from howsmooth.studies.growth import growth_of
from howsmooth.studies.measuring import Settings, Text, measure, memory_plan, resolve

__all__ = ["Settings", "Text", "balls", "bound", "growth_of", "measure", "memory_plan", "resolve", "worst_cases"]
