"""Checks of the names of output files before anything is computed; none of them imports matplotlib or torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from howsmooth.errors import InputError
from howsmooth.extras import require

# File types that matplotlib writes without a display, as its Agg canvas lists them.
FIGURE_SUFFIXES = (
    ".eps", ".jpeg", ".jpg", ".pdf", ".pgf", ".png", ".ps", ".raw", ".rgba", ".svg", ".svgz", ".tif", ".tiff", ".webp",
)  # fmt: skip


def check_plot_path(path: str, option: str = "--plot") -> None:
    """Raise InputError if matplotlib is not installed or cannot write this file type.

    Example:
        >>> check_plot_path("growth.svg")
    """
    require("matplotlib", purpose=f"for {option}")
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURE_SUFFIXES:
        raise InputError(f"expected a plot file ending in .png, .svg or .pdf for {option}, got {path!r}")
    if suffix == ".pgf":
        from matplotlib import rcParams

        if shutil.which(rcParams["pgf.texsystem"]) is None:
            raise InputError(
                f"expected {rcParams['pgf.texsystem']} for a .pgf file, got none installed; install TeX, or name a "
                f".pdf for {option}"
            )


def check_animation_path(path: str, option: str = "--animate") -> None:
    """Raise InputError if this animation cannot be written.

    Example:
        >>> check_animation_path("flow.gif")
    """
    require("matplotlib", purpose=f"for {option}")
    if Path(path).suffix.lower() != ".gif":
        raise InputError(f"expected a file ending in .gif for {option}, got {path!r}")


def check_page_path(path: str, option: str = "--report") -> None:
    """Raise InputError if the file name does not end in .html or .htm.

    Example:
        >>> check_page_path("flow.html")
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"expected a file ending in .html for {option}, got {path!r}")
