"""The base of results that notebooks show as HTML.

`howsmooth.report.notebook` renders them. It is in a later layer than the packages that define the results, so they do
not import it: it is imported when a notebook shows the first result.
"""

from __future__ import annotations

import importlib


class Displayed:
    """Base class of results with a rich display in Jupyter, VS Code, Colab and marimo."""

    def _repr_html_(self) -> str | None:
        """Return the HTML that a notebook shows; None, for the plain repr, if a package of the report is missing."""
        try:
            notebook = importlib.import_module("howsmooth.report.notebook")
        except ImportError:
            return None
        return str(notebook.render(self))
