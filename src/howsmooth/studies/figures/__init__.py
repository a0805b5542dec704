"""The figures of "How Smooth Is Attention?", each defined by a TOML file, also for other models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.studies.figures.definition import Figure, figure_names, read_figure
    from howsmooth.studies.figures.options import Options
    from howsmooth.studies.figures.panels import correlations_of, laws_of, ratios_of
    from howsmooth.studies.figures.run import Outcome, run_figure

__getattr__, __dir__ = attach(
    __name__,
    {
        "Figure": "howsmooth.studies.figures.definition",
        "figure_names": "howsmooth.studies.figures.definition",
        "read_figure": "howsmooth.studies.figures.definition",
        "Options": "howsmooth.studies.figures.options",
        "Outcome": "howsmooth.studies.figures.run",
        "run_figure": "howsmooth.studies.figures.run",
        "laws_of": "howsmooth.studies.figures.panels",
        "ratios_of": "howsmooth.studies.figures.panels",
        "correlations_of": "howsmooth.studies.figures.panels",
    },
)

__all__ = [
    "Figure",
    "figure_names",
    "read_figure",
    "Options",
    "Outcome",
    "run_figure",
    "laws_of",
    "ratios_of",
    "correlations_of",
]
