"""Sections of the page: for each question its pictures, its tables and, for measurements, tokens in colour.

All questions have the same section: what differs is in `_VIEWS`, `_TABLES` and `_MORE_…`. Where records allow several
pictures (of several models, maps or lengths), each is a part of a choice, of which the page shows one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from markupsafe import Markup
from rich.console import Group
from rich.text import Text

from howsmooth.errors import InputError
from howsmooth.questions import QUESTIONS, find_question, question_of, record_type
from howsmooth.questions.question import Question
from howsmooth.records import CURVE
from howsmooth.records.columns import column, fields, group_by, split, where
from howsmooth.report.chart import Axis, Chart, Picture
from howsmooth.report.charts import heat_maps, is_positive
from howsmooth.report.embedding import coloured_tokens, embed_json, panel_html, typeset
from howsmooth.report.ladder import ladder_tables
from howsmooth.report.measurement_tables import Summary, measurements_table, study_tables, tightness_table
from howsmooth.report.page_tables import directions_of, record_tables
from howsmooth.report.rows import by_quantity, map_name, model_name, number, token
from howsmooth.report.table import Table
from howsmooth.report.training import split_training, training_tables

_PANEL_HEIGHT = 3.9  # inches, of 5.4 inches of width
_MAX_PANELS = 24  # of one question
_MAX_ROWS = 400  # of one table
_FIELD_TEXTS = {
    "all": "all tokens move",
    "no-first": "without the first token",
    "no-special": "without special tokens",
    "lipschitz": "as described",
    "released": "as released",
}


@dataclass(frozen=True)
class Section:
    """The records of one question on the page.

    Attributes:
        name: The question.
        title: What it asks.
        parts: Pictures and tables as HTML.
    """

    name: str
    title: str
    parts: Sequence[Markup]


def by_question(records: Sequence[dict[str, Any]]) -> dict[str, Sequence[dict[str, Any]]]:
    """Return the records of each question, in the order in which the questions come, without supplementary ones."""
    kinds = column(records, "kind")
    names = {kind: question_of({"kind": kind}) for kind in set(kinds) if not record_type(kind).is_supplementary}
    groups = split(records, (names.get(kind, "") for kind in kinds))
    return {name: group for name, group in groups.items() if name}


def sections_of(records: Sequence[dict[str, Any]]) -> list[Section]:
    """Return a section for each question that the records answer, and one of supplementary records."""
    sections = [_section(name, group) for name, group in by_question(records).items()]
    if ladders := ladder_tables(records):
        sections.append(Section("ladder", "How large is the constant, and how well is it known?", html_of(ladders)))
    if further := where(records, lambda kind: record_type(kind).is_supplementary, "kind"):
        sections.append(Section("further", "Further records", html_of(list(record_tables(further).values()))))
    return sections


def _section(name: str, records: Sequence[dict[str, Any]]) -> Section:
    question, varied = find_question(name), _VIEWS.get(name, ())
    if split_training(records)[0]:  # one chart for all steps
        varied = tuple(field for field in varied if field not in ("checkpoint", "map"))
    views = group_by(records, *varied)
    shown: list[tuple[str, Markup]] = []
    drawn = total = 0
    for place, (view, group) in enumerate(views.items()):
        title, panels = _panels(question, group)
        names = [f"{name}-{place}-{index}" for index in range(len(panels))]
        is_drawn = drawn < _MAX_PANELS
        figures = [panel_html(*panel, name=id_) for panel, id_ in zip(panels, names, strict=True) if is_drawn]
        drawn, total = drawn + len(figures), total + len(panels)
        figures += _MORE_FIGURES[name](group, f"{name}-{place}") if is_drawn and name in _MORE_FIGURES else []
        heading = Markup("<h3>{}</h3>").format(Markup(typeset(title))) if title and figures else Markup("")
        grid = Markup('{}<div class="panels">{}</div>').format(heading, Markup("").join(figures))
        more = _MORE_PARTS[name](group, f"{name}-{place}") if name in _MORE_PARTS else Markup("")
        shown.append((view_title(view, list(views), varied), grid + more))
    parts = [choice("shown", shown)]
    if drawn < total:
        parts.append(
            Markup('<p class="muted">{} of {} charts are drawn; the tables have all.</p>').format(drawn, total)
        )
    return Section(name, QUESTIONS[name].help, [*parts, *html_of(_TABLES.get(name, question.tables)(records))])


def _panels(question: Question, records: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[Any, float]]]:
    """Return the title of a picture, and its panels, each with its height in inches at the width of a page's panels."""
    if question.charts is None:
        return "", []
    try:
        picture = Picture.of(question.charts(records))
    except InputError as refused:
        return "", [(Chart("", Axis(""), Axis(""), message=str(refused)), 2.0)]
    return picture.title, [(panel, panel.row_height(5.4, _PANEL_HEIGHT)) for panel in picture.panels]


def choice(label: str, parts: Sequence[tuple[str, Markup]]) -> Markup:
    """Return parts of which the page shows one at a time, as a menu says; without its script, all of them.

    Args:
        label: What the menu chooses.
        parts: The name of each part, and the part.
    """
    parts = [part for part in parts if part[1]]
    if len(parts) < 2:
        return Markup("").join(part for _, part in parts)
    html = Markup("").join(Markup('<div data-name="{}">{}</div>').format(name, part) for name, part in parts)
    return Markup('<div class="choice" data-label="{}">{}</div>').format(label, html)


def view_title(view: Sequence[Any], views: Sequence[Sequence[Any]], fields: Sequence[str]) -> str:
    """Return the name of a view: its model, and the fields in which views differ."""
    parts = []
    for index, (name, value) in enumerate(zip(fields, view, strict=True)):
        if name == "model":
            parts.append(model_name(str(value)))
        elif len({other[index] for other in views}) > 1 and value is not None:
            parts.append(f"{name} {value}" if name in ("layer", "head") else _FIELD_TEXTS.get(value, str(value)))
    return ", ".join(parts)


def _heat_maps(records: Sequence[dict[str, Any]], name: str) -> list[Markup]:
    """Return the medians of layer × head, one length at a time, and of layer × length."""
    maps = heat_maps(records)
    found = fields(records, "n", "layer", "value")
    lengths = sorted({n for n, layer, value in found if layer is not None and is_positive(value)})
    heads = [
        (f"n = {n:,}", panel_html(heat, _heat_height(heat), name=f"{name}-heads-{n}"))
        for n, heat in zip(lengths, maps["heads"], strict=False)
    ]
    # The longest texts come first: a menu shows its first part.
    figures = [choice("length", heads[::-1])] if heads else []
    return figures + [panel_html(heat, _heat_height(heat), name=f"{name}-lengths") for heat in maps["lengths"]]


def _heat_height(heat: Any) -> float:
    return min(5.4, 1.5 + 0.3 * len(heat.rows))


def _directions(records: Sequence[dict[str, Any]], name: str) -> Markup:
    """Return the tokens of the worst direction of one curve in colour; a menu shows those of the others."""
    rows = sorted(directions_of(records), key=lambda row: -(row["value"] or 0.0))
    if not rows:
        return Markup("")
    texts: list[list[str]] = []
    choices: list[dict[str, Any]] = []
    for row in rows:
        words = [token(word, 30) for word in row["words"]]
        if words not in texts:
            texts.append(words)
        place = f"{map_name(row['layer'], row['head'])}, n = {row['n']:,}, sample {row['sample']}"
        shares = [float(f"{share:.3g}") for share in row["shares"]]
        choices.append({"name": f"{place}: {number(row['value'], 3)}", "text": texts.index(words), "shares": shares})
    data = embed_json({"texts": texts, "choices": choices})
    return Markup(
        '<div class="directions" id="{}-directions"><h3>The worst direction over the text</h3>'
        "<p>The change of the tokens that moves the output most. Shares are of its squared norm and add up to one; "
        "for each curve the sample with the largest value at the greatest length.</p>{}"
        '<script type="application/json">{}</script></div>'
    ).format(name, Markup(coloured_tokens(texts[0], choices[0]["shares"], "Share of each token", limit=None)), data)


def _measured(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the medians with their laws, and below those of each layer and length with intervals and directions."""
    of_monitor, records = split_training(records)
    if not records:
        return [*training_tables(of_monitor)]
    finite = where(records, lambda value: value is not None and math.isfinite(value), "value")
    if not finite:
        return ["No value is finite."]
    each = [measurements_table(group) for group in by_quantity(finite).values()]
    folded = Markup("<details><summary>Medians with their intervals, ranges and worst directions</summary>{}</details>")
    return [*training_tables(of_monitor), *study_tables(Summary(finite)), folded.format(Markup("").join(html_of(each)))]


def _bounded(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Return how tight each bound is, and below the bounds of each map."""
    by_map = group_by(records, *_VIEWS["bound"])
    tables = [
        (
            view_title(view, list(by_map), _VIEWS["bound"]),
            Markup("").join(html_of(find_question("bound").tables(group))),
        )
        for view, group in by_map.items()
    ]
    return [tightness_table(records), choice("map", tables)]


_VIEWS = {  # fields whose values have pictures of their own
    "measure": tuple(name for name in CURVE if name not in ("layer", "head")),
    "bound": ("model", "text", "map", "layer", "head"),
}
_TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], list[Any]]] = {"measure": _measured, "bound": _bounded}
_MORE_FIGURES: dict[str, Callable[[Sequence[dict[str, Any]], str], list[Markup]]] = {"measure": _heat_maps}
_MORE_PARTS: dict[str, Callable[[Sequence[dict[str, Any]], str], Markup]] = {"measure": _directions}


def html_of(parts: Sequence[Any]) -> list[Markup]:
    """Return tables and lines of text as HTML; of long tables the first rows."""
    found: list[Markup] = []
    for part in parts:
        if isinstance(part, Markup):
            found.append(part)
        elif isinstance(part, Group):
            found += html_of(list(part.renderables))
        elif isinstance(part, Table):
            cut = "" if len(part) <= _MAX_ROWS else f"The first {_MAX_ROWS} of {len(part):,} rows. "
            table = replace(part, title="", rows=part.rows[:_MAX_ROWS])
            heading = f"<h3>{typeset(part.title)}</h3>" if part.title else ""
            caption = f'<p class="muted">{typeset(cut + part.caption)}</p>' if cut or part.caption else ""
            label = escape(part.title or "table")
            region = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table.html()}</div>'
            found.append(Markup(f"{heading}{region}{caption}"))
        else:
            text = part.plain if isinstance(part, Text) else str(part)
            found.append(Markup(f"<p>{escape(text).replace(chr(10), '<br>')}</p>"))
    return found
