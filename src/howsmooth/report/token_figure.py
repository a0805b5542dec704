"""Draw a text with matplotlib, its tokens coloured by one number each on a logarithmic scale, with the scale above.

`Colouring` is what such a text shows: the share of the worst direction, or the gain of each token. The explorer shows
the same colourings on its page.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howsmooth.report.colours import GAIN_DECADES, SHARE_DECADES, intensities
from howsmooth.report.figure import THEMES, Theme
from howsmooth.report.rows import number, token

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = "DejaVu Sans Mono"  # comes with matplotlib; its characters have one width, by which tokens are laid out
FONT_SIZE = 9.0  # points
_CHARACTER = 0.602 * FONT_SIZE / 72  # inches
_WIDTH, _LINE, _MARGIN = 10.0, 0.24, 0.25  # inches
_LEAST_DECADES = math.log10(2)  # of the scale of gains: equal ones must not look different
_SCALE = (0.9, 2.4)  # left end and width of the colour scale in inches


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


def token_figure(
    words: Sequence[str], colourings: Sequence[Colouring], *, title: str = "", theme: str = "light"
) -> Figure:
    """Draw the text once for each colouring.

    Args:
        words: The tokens.
        colourings: What colours show, each with one number for each token.
        title: A line above all of it.
        theme: Key of `THEMES`: "light" or "dark".

    Example:
        >>> figure = token_figure(["the", "bridge"], [share_colouring([0.9, 0.1])], title="layer 0")
        >>> [text.get_text() for text in figure.axes[0].texts][:2]
        ['layer 0', 'Share of the worst direction']
    """
    from matplotlib.figure import Figure

    shown = [_in_font(token(word, 30)) for word in words]
    places = list(_places(shown))
    lines = places[-1][1] + 1 if places else 1
    height = _LINE * (1.5 * bool(title) + len(colourings) * (lines + 3.2)) + 2 * _MARGIN
    colours = THEMES[theme]
    figure = Figure(figsize=(_WIDTH, height), dpi=160, facecolor=colours["background"])
    panel = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
    panel.axis("off")
    y = _MARGIN + _LINE / 2
    if title:
        _write(panel, _MARGIN, y, title, colours, size=11, weight="bold")
        y += 1.5 * _LINE
    for colouring in colourings:
        _write(panel, _MARGIN, y, colouring.title, colours, size=10, weight="bold")
        _draw_scale(panel, y + 1.05 * _LINE, colouring, colours)
        y += 2.3 * _LINE
        for text, (x, line), shade in zip(shown, places, colouring.intensities, strict=True):
            _draw_cell(panel, x - _CHARACTER / 3, y + line * _LINE, _cells(text) * _CHARACTER, shade, colours)
            _write(panel, x, y + line * _LINE, text, colours, family=FONT)
        y += (lines + 0.9) * _LINE
    return figure


def _places(words: Sequence[str]) -> Iterator[tuple[float, int]]:
    """Yield the left end in inches and the line of each token."""
    x, line = _MARGIN, 0
    for word in words:
        width = _cells(word) * _CHARACTER
        if x > _MARGIN and x + width > _WIDTH - _MARGIN:
            x, line = _MARGIN, line + 1
        yield x, line
        x += width + _CHARACTER


def _cells(word: str) -> int:
    """Return the width of a word in characters; wide characters count twice."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in word)


def _in_font(word: str) -> str:
    """Return a word in which characters that the font lacks are replaced."""
    from matplotlib.font_manager import findfont, get_font

    characters = get_font(findfont(FONT)).get_charmap()
    return "".join(char if ord(char) in characters else "�" for char in word)


def _draw_scale(panel: Axes, y: float, colouring: Colouring, colours: Theme) -> None:
    """Draw the colours from the smallest to the largest number, with the ends in words."""
    left, width = _SCALE
    low, high = colouring.ends
    steps = 48
    for i in range(steps):
        _draw_cell(panel, left + i * width / steps, y, width / steps, i / (steps - 1), colours, pad=0.0)
    _write(panel, left - 0.08, y, low, colours, ha="right", size=8)
    _write(panel, left + width + 0.08, y, f"{high}, log scale", colours, size=8)


def _draw_cell(panel: Axes, x: float, y: float, width: float, shade: float, colours: Theme, pad: float = 0.66) -> None:
    from matplotlib.patches import Rectangle

    red, green, blue = (int(colours["palette"][1][i : i + 2], 16) / 255 for i in (1, 3, 5))
    size = (width + pad * _CHARACTER, 0.8 * _LINE)
    face = (red, green, blue, 0.04 + 0.72 * shade)
    panel.add_patch(Rectangle((x, y - 0.4 * _LINE), *size, facecolor=face, linewidth=0))


def _write(panel: Axes, x: float, y: float, text: str, colours: Theme, size: float = FONT_SIZE, **options: Any) -> None:
    """Write text as it is: a dollar sign starts no formula."""
    panel.text(
        x, y, text, color=colours["foreground"], fontsize=size, va="center", **{"ha": "left", **options}
    ).set_parse_math(False)
