"""The figure of the study: the AUROC of each signal with its interval, for both horizons, and the leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.alarm.evaluation import BASELINE, HORIZONS
from experiments.alarm.runs import SIGNALS
from howsmooth.report.chart import Axis, Chart, Picture, Series
from howsmooth.report.figure import draw as draw_picture

_SHORT = ("attention", "layer", "all layers", "logit", "κ", "entropy", "gradient", "loss")


def draw(runs: Sequence[dict[str, Any]], found: dict[str, Any]) -> Figure:
    """Draw the intervals of each signal; the line is the gradient norm."""
    steps = found["size"][3]
    axis = Axis("signal", tick_labels=_SHORT)
    places = list(range(len(SIGNALS)))
    panels = []
    for horizon in HORIZONS:
        numbers = [found["signals"][signal][f"{horizon}"] for signal in SIGNALS]
        baseline = found["signals"][BASELINE][f"{horizon}"]["auroc"]
        panels.append(
            Chart(
                f"Diverges within {round(horizon * steps)} steps",
                axis,
                Axis("AUROC", lower_limit=0.0, upper_limit=1.02),
                [
                    Series(
                        places,
                        [one["auroc"] for one in numbers],
                        [one["interval"][0] for one in numbers],
                        [one["interval"][1] for one in numbers],
                        label="signal, 95 % interval over runs",
                        show_markers=True,
                    ),
                    Series(
                        [places[0], places[-1]],
                        [baseline, baseline],
                        label="gradient norm",
                        linestyle="dashed",
                        colour="muted",
                    ),
                ],
            )
        )
    leads = [found["signals"][signal] for signal in SIGNALS]
    panels.append(
        Chart(
            "Lead at 5 % false alarms",
            axis,
            Axis("steps before the divergence, median", lower_limit=0.0),
            [
                Series(
                    places,
                    [one["lead"] for one in leads],
                    [one["lead_interval"][0] for one in leads],
                    [one["lead_interval"][1] for one in leads],
                    label="0: no alarm",
                    show_markers=True,
                )
            ],
        )
    )
    return draw_picture(Picture(panels, columns=3, width=6.6, height=4.4))
