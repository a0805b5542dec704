"""Colours that the report, the explorer and notebooks share: the themes and the scale of tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from howsmooth.report.rows import number

SHARE_DECADES = 4  # range of the logarithmic scale below the largest share, as in assets/report.js
_LEAST_DECADES = math.log10(2)  # of the scale of gains: equal ones must not look different
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


@dataclass(frozen=True)
class Colouring:
    """Numbers of the tokens of a text, and the logarithmic scale of their colours.

    Attributes:
        title: What the numbers are.
        values: One number for each token.
        whole: The number that is 100 %: 1 for shares, the constant for gains.
        decades: Range of the scale below the largest number.
    """

    title: str
    values: tuple[float, ...]
    whole: float
    decades: float

    @property
    def intensities(self) -> list[float]:
        """The position of each token on the scale, from 0 to 1."""
        return intensities(self.values, self.decades)

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the scale as percentages of the whole."""
        top = max(self.values, default=0.0)
        return self.percent(top / 10**self.decades), self.percent(top)

    def percent(self, value: float) -> str:
        """Return a number as a percentage of the whole.

        Example:
            >>> Colouring("gain", (2.0, 0.001), 4.0, 2).percent(2.0)
            '50 %'
        """
        share = 100 * value / self.whole if self.whole > 0 else 0.0
        return f"{share:.0f} %" if share >= 10 else f"{number(share, 2)} %" if share > 0 else "0 %"


def share_colouring(shares: Sequence[float]) -> Colouring:
    """Return the colouring by the share of each token in the worst direction; shares add up to one."""
    return Colouring("Share of the worst direction", tuple(shares), 1.0, SHARE_DECADES)


def gain_colouring(gains: Sequence[float], constant: float) -> Colouring:
    """Return the colouring by the constant when only that token moves, relative to that when all move.

    The scale begins at the smallest gain, since gains often differ by a small factor only; it has at most two decades.

    Args:
        gains: Norms of the block columns of J, as `howsmooth.token_gains` returns them.
        constant: The norm of J.

    Example:
        >>> gain_colouring([1.0, 2.0, 4.0], 5.0).ends
        ('20 %', '80 %')
    """
    positive = [gain for gain in gains if gain > 0]
    spread = math.log10(max(positive) / min(positive)) if positive else 0.0
    decades = min(max(spread, _LEAST_DECADES), GAIN_DECADES)
    return Colouring("Constant when only this token moves, of that when all move", tuple(gains), constant, decades)


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
