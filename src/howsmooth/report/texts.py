"""Texts of a figure: broken into lines that fit, with powers and formulas as matplotlib writes them."""

from __future__ import annotations

import re
import textwrap
from functools import lru_cache

from howsmooth.report.chart import Chart

_MAX_NOTE_LINES = 2  # below a panel
_MAX_LINES = 3  # of a title or a note
_MAX_LABEL_LINES, _LABEL_WIDTH = 2, 44  # of a legend entry: longer ones are broken, and end in "…"
_FORMULA = re.compile(r"(\$[^$]*[_^\\{][^$]*\$)")


def characters(width: float, size: float) -> int:
    """Return how many characters of a font size, in points, fit into a width in inches."""
    return max(20, round(width * 72 / (0.62 * size)))


def wrap(text: str, width: float, size: float, most: int = _MAX_LINES) -> str:
    """Break the lines of a text so that they fit into a width in inches, and typeset it.

    Args:
        text: The text.
        width: The width in inches.
        size: Font size in points.
        most: Largest number of lines; a longer text ends in "…".
    """
    room = characters(width, size)
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, room) or [""]]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: room - 1] + "…"]
    return "\n".join(map(typeset, lines))


def typeset(text: str) -> str:
    r"""Write powers and roots in the notation of matplotlib; a dollar sign that starts no formula stays one.

    Names of models and files may have any characters, which must neither fail nor become a formula.

    Example:
        >>> typeset("n^0.25"), typeset("$5 and $6"), typeset("$x^$")
        ('n$^{0.25}$', '\\$5 and \\$6', '\\$x^\\$')
    """
    text = re.sub(r"(?<=\w)\^(-?[\d.]+\d|\d)", r"$^{\1}$", text).replace("√n", "$\\sqrt{n}$")
    if "$" not in text:
        return text
    return "".join(
        part if index % 2 and _is_formula(part) else re.sub(r"\\?\$", r"\\$", part)
        for index, part in enumerate(_FORMULA.split(text))
    )


@lru_cache(maxsize=1024)
def _is_formula(text: str) -> bool:
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def notes_of(chart: Chart, width: float, size: float, *, as_band: bool) -> list[str]:
    """Return the lines below a chart, broken to a width in inches; the short ones if the notes take more than two."""
    found = [wrap(note, width, size) for note in chart.notes]
    if chart.short_notes and sum(note.count("\n") + 1 for note in found) > _MAX_NOTE_LINES:
        found = [wrap(note, width, size) for note in chart.short_notes]
    statistic = chart.statistic(as_band=as_band)
    return [*found, *([wrap(statistic, width, size)] if statistic else [])]


def fit_label(label: str, length: float, size: float) -> str:
    """Break the label of an axis at the double space nearest its middle if it is longer than a length in inches."""

    def shown(text: str) -> int:
        return len(re.sub(r"\$[_^]\{?([^$}]*)\}?\$", r"\1", text))

    parts = label.split("  ")
    if shown(label) <= characters(length, size):
        return typeset(label)
    if len(parts) == 1:
        return wrap(label, 1.4 * length, size, 1)
    broken = ["  ".join(parts[:k]) + "\n" + "  ".join(parts[k:]) for k in range(1, len(parts))]
    return wrap(min(broken, key=lambda text: max(map(shown, text.split("\n")))), 1.5 * length, size, 2)


def shorten(text: str, room: int = _LABEL_WIDTH) -> str:
    """Typeset a text; one that is much longer than some characters is broken into at most two lines.

    Example:
        >>> print(shorten("a " * 40, 20))
        a a a a a a a a a a
        a a a a a a a a a a…
    """
    lines = [
        part for line in text.split("\n") for part in (textwrap.wrap(line, room) if len(line) > 1.5 * room else [line])
    ]
    most = _MAX_LABEL_LINES + text.count("\n")
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: room - 1] + "…"]
    return "\n".join(map(typeset, lines))
