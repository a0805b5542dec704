"""Animations: a sequence of panels, each drawn as in a figure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from howsmooth.report.chart import Chart, HeatMap
from howsmooth.report.style import ANIMATION, THEMES, new_figure

_FRAMES_PER_SECOND = 12
_LAST_FRAME_REPEATS = 12
_SIZE = (5.6, 5.2)  # inches


def save_animation(path: str | Path, frames: Iterable[Chart | HeatMap], *, theme: str = "light") -> None:
    """Write a gif with a frame for each panel; the last one is repeated. Animations are for screens, in every style.

    Args:
        path: The file.
        frames: The panels; their axes have the same limits.
        theme: Key of `THEMES`.
    """
    from matplotlib import animation
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from howsmooth.report.figure import draw_panel
    from howsmooth.report.panels import Canvas

    colours = THEMES[theme]
    figure = new_figure(*_SIZE, colours, style=ANIMATION)
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    canvas = Canvas(colours, ANIMATION, "chart-0", _SIZE[0], _SIZE[0])
    writer = animation.PillowWriter(_FRAMES_PER_SECOND)
    with writer.saving(figure, str(path), figure.dpi):
        for index, frame in enumerate(frames):
            panel.clear()
            draw_panel(panel, frame, canvas, _SIZE[1])
            if not index:  # the layout of the first frame is that of all
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
            writer.grab_frame(facecolor=figure.get_facecolor())
        for _ in range(_LAST_FRAME_REPEATS):
            writer.grab_frame(facecolor=figure.get_facecolor())
