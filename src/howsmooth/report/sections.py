"""Sections of the page for questions whose tables and figures are drawn here, not by the script of the page.

A figure is matplotlib's SVG. Its colours become variables of the style sheet, so that it follows the light and the dark
theme, and its ids get a prefix, since a page may have several.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from markupsafe import Markup
from rich.console import Group
from rich.text import Text

from howsmooth.extras import MissingPackage
from howsmooth.questions import QUESTIONS, find_question, question_of
from howsmooth.questions.question import Question
from howsmooth.records.provenance import provenance
from howsmooth.report.figure import draw_question, save_figure
from howsmooth.report.style import THEMES
from howsmooth.report.table import Table

DRAWN_BY_THE_SCRIPT = ("measurement", "bound", "worst case", "ball")  # kinds with charts that answer clicks
_PER_RECORD = ("kind", "schema", "task", "source")  # fields that say nothing about the result
_ENLARGED = 1.15  # how much wider than drawn a figure may be
_COLOURS = {
    THEMES["light"]["background"]: "--background",
    THEMES["light"]["foreground"]: "--foreground",
    THEMES["light"]["muted"]: "--muted",
    THEMES["light"]["grid"]: "--line",
    **{colour: f"--series-{index}" for index, colour in enumerate(THEMES["light"]["palette"])},
}


@dataclass(frozen=True)
class Section:
    """The records of one question on the page.

    Attributes:
        name: The question.
        title: What it asks.
        figure: The SVG, or why there is none.
        tables: The tables as HTML.
    """

    name: str
    title: str
    figure: Markup
    tables: Sequence[Markup]


def by_question(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each question, in the order in which the questions come."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(question_of(record), []).append(record)
    return groups


def sections_of(records: Sequence[dict[str, Any]]) -> list[Section]:
    """Return a section for each question whose charts are not drawn by the script of the page."""
    others = [record for record in records if record["kind"] not in DRAWN_BY_THE_SCRIPT]
    return [_section(name, group) for name, group in by_question(others).items()]


def _section(name: str, records: Sequence[dict[str, Any]]) -> Section:
    question = find_question(name)
    return Section(name, QUESTIONS[name].help, _figure(name, question, records), html_of(question.tables(records)))


def _figure(name: str, question: Question, records: Sequence[dict[str, Any]]) -> Markup:
    if not question.draws:
        return Markup("")
    try:
        figure = draw_question(question, records)
    except MissingPackage as missing:
        return Markup(f'<p class="muted">{escape(str(missing))}</p>')
    stream = io.StringIO()
    save_figure(figure, stream, format="svg")
    return Markup(f"<figure>{themed_svg(stream.getvalue(), name)}</figure>")


def themed_svg(svg: str, prefix: str) -> str:
    """Return an SVG for a page: without its head, with colours as variables and with a prefix in front of its ids.

    It is as wide as the page, but not much wider than it was drawn.

    Example:
        >>> themed_svg('<?xml version="1.0"?><svg><g id="a" style="fill: #1f2328"/><use href="#a"/></svg>', "p")
        '<svg><g id="p-a" style="fill: var(--foreground)"/><use href="#p-a"/></svg>'
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    for colour, variable in _COLOURS.items():
        svg = re.sub(re.escape(colour), f"var({variable})", svg, flags=re.IGNORECASE)
    svg = re.sub(r'(<svg\b[^>]*?)\s+height="[^"]*"', r"\1", svg)
    return re.sub(r'(<svg\b[^>]*?)\s+width="([\d.]+)pt"', _largest_width, svg)


def _largest_width(found: re.Match[str]) -> str:
    return f'{found[1]} style="max-width: {_ENLARGED * float(found[2]) * 4 / 3:.0f}px"'


def html_of(parts: Sequence[Any]) -> list[Markup]:
    """Return tables and lines of text as HTML."""
    found: list[Markup] = []
    for part in parts:
        if isinstance(part, Group):
            found += html_of(list(part.renderables))
        elif isinstance(part, Table):
            heading = f"<h3>{escape(part.title)}</h3>" if part.title else ""
            caption = f'<p class="muted">{escape(part.caption)}</p>' if part.caption else ""
            found.append(Markup(f'{heading}<div class="scroll">{replace(part, title="").html()}</div>{caption}'))
        else:
            text = part.plain if isinstance(part, Text) else str(part)
            found.append(Markup(f"<p>{escape(text).replace(chr(10), '<br>')}</p>"))
    return found


def record_tables(records: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """Return a table of numbers, words and truth values for each kind of record that has none of its own."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    hidden = {*_PER_RECORD, *provenance()}
    for record in records:
        if record["kind"] not in DRAWN_BY_THE_SCRIPT:
            kinds.setdefault(record["kind"], []).append(record)
    return {
        kind.replace(" ", "-").removesuffix("s") + "s": Table.of_fields(group, _flat_fields(group, hidden))
        for kind, group in kinds.items()
    }


def _flat_fields(records: Sequence[dict[str, Any]], hidden: set[str]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record if name not in hidden)
    return [name for name in names if not any(isinstance(record.get(name), (list, dict, tuple)) for record in records)]
