"""Colours that the report, the explorer and notebooks share: the themes and the scale of tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

SHARE_DECADES = 4  # range of the logarithmic scale below the largest share, as in assets/report.js
GAIN_DECADES = SHARE_DECADES / 2  # a share is of a squared norm, a gain is a norm


def intensities(values: Sequence[float], decades: float = SHARE_DECADES) -> list[float]:
    """Return the position of each value on the logarithmic colour scale: 1 for the largest, 0 from `decades` below.

    Example:
        >>> intensities([0.5, 0.005, 0.0])
        [1.0, 0.5, 0.0]
    """
    top = max(values, default=0.0)
    if not 0 < top < math.inf:
        return [0.0] * len(values)
    return [max(0.0, 1 + math.log10(value / top) / decades) if value > 0 else 0.0 for value in values]


@cache
def theme_variables() -> dict[str, str]:
    """Return the CSS variables of the report in its "light" and "dark" theme, as declarations without braces."""
    css = files("howsmooth.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    found = {
        "light": re.search(r"^:root \{([^}]*)\}", css, re.M),
        "dark": re.search(r'^:root\[data-theme="dark"\] \{([^}]*)\}', css, re.M),
    }
    missing = [theme for theme, block in found.items() if block is None]
    if missing:
        raise ValueError(f"expected the variables of the {missing[0]} theme in assets/report.css, got none")
    return {theme: " ".join(block[1].split()) for theme, block in found.items() if block is not None}
