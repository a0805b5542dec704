"""The class of all figures of the package; it needs matplotlib, so that it is imported when a figure is drawn."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

FONT_SETTINGS = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}  # 42: TrueType; none: text as text


class StyledFigure(Figure):
    """A matplotlib figure that embeds its fonts in files as `FONT_SETTINGS` says, whoever saves it."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Write the figure to a file, as `matplotlib.figure.Figure.savefig`."""
        with rc_context(FONT_SETTINGS):
            super().savefig(*args, **kwargs)
