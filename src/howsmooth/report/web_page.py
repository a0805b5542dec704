"""The HTML report: one self-contained file with the records, their charts and tables; it works offline and in print.

Each question has a section: its pictures, its tables and, for measurements, tokens in colour. What differs between
questions is in `_VIEWS`, `_TABLES` and `_MORE_…`. Where records allow several pictures (of several models, maps or
lengths), each is a part of a choice, of which the page shows one at a time.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Group
from rich.text import Text

import howsmooth
from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions import QUESTIONS, find_question, question_of, record_type
from howsmooth.questions.question import Question
from howsmooth.records import CURVE
from howsmooth.records.columns import column, fields, group_by, split, where
from howsmooth.report.caveats import caveats_of, sources_of
from howsmooth.report.chart import Axis, Chart, Picture
from howsmooth.report.charts import heat_maps, is_positive
from howsmooth.report.embedding import coloured_tokens, embed_json, panel_html, typeset
from howsmooth.report.ladder import ladder_tables
from howsmooth.report.measurement_tables import Summary, measurements_table, study_tables, tightness_table
from howsmooth.report.page_tables import directions_of, one_row_per_token, record_tables, tables_of
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


_MAX_TITLE_MODELS = 3
_MAX_SAVED_ROWS = 12_000  # of a table that the page contains as a file to save


def report_page(
    records: Sequence[dict[str, Any]],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    tables: dict[str, Table] | None = None,
) -> str:
    """Return one self-contained HTML page for records of measurements, bounds, attacks and studies.

    All text from records is escaped, and the Content-Security-Policy of the page allows only its own script.

    Args:
        records: Records in any mixture, as `howsmooth.read` returns them.
        title: Title of the page; by default it names the models.
        notes: Lines to show among the warnings, such as the notes of `howsmooth.read`.
        tables: Result of `tables_of(records)`, if it has been computed already: fitting the laws takes time.

    Returns:
        The HTML text.
    """
    if (own := _own_page(records)) is not None:
        return own
    tables = tables_of(records) if tables is None else tables
    title = title or f"How smooth is attention? {_models(records)}".strip()
    saved = {name: table for name, table in tables.items() if len(table) <= _MAX_SAVED_ROWS}
    return render(
        "report.html",
        ("report.js",),
        title=title,
        data=embed_json({name: _packed_csv(name, table) for name, table in saved.items()}),
        downloads=list(saved),
        left_out=[name for name in tables if name not in saved],
        tiles=_tiles(records, tables),
        sections=sections_of(records),
        caveats=caveats_of(records, notes),
        sources=sources_of(records),
        version=howsmooth.__version__,
    )


def _own_page(records: Sequence[dict[str, Any]]) -> str | None:
    """Return the page of a question that has one of its own, if all records answer it; None otherwise."""
    groups = by_question(records)
    page = find_question(next(iter(groups))).page if len(groups) == 1 else None
    return None if page is None else str(deferred(page)(records))


def _packed_csv(name: str, table: Table) -> str:
    """Return a table as CSV with all digits, compressed, for the page to save."""
    return base64.b64encode(gzip.compress(_csv(name, table).encode("utf-8"), mtime=0)).decode("ascii")


def _csv(name: str, table: Table) -> str:
    return (one_row_per_token(table) if name == "directions" else table).csv()


def write_csv(tables: dict[str, Table], folder: Path) -> list[Path]:
    """Write each table as FOLDER/NAME.csv and return the paths; directions have a row for each token."""
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        path.write_text(_csv(name, table), encoding="utf-8")
        written.append(path)
    return written


def asset(name: str) -> str:
    """Return the text of a file in the folder `assets`."""
    return files("howsmooth.report").joinpath("assets", name).read_text(encoding="utf-8")


def render(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template of the folder `assets`; values are escaped, and `{{ asset(name) }}` includes a file.

    Args:
        template: Name of the template, which includes `policy.html` in its head, and ends with the script.
        scripts: Names of the files of its script. The Content-Security-Policy of the page allows no other.
        values: Values of the template.
    """
    script = "\n".join(asset(name) for name in scripts)
    values["script"] = Markup(script)
    values["script_sha256"] = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals["asset"] = lambda name: Markup(asset(name))
    environment.filters["table"] = lambda table: Markup(replace(table, title="").html())
    return environment.get_template(template).render(**values)


def _models(records: Sequence[dict[str, Any]]) -> str:
    names = [model_name(name) for name in dict.fromkeys(column(records, "model")) if name]
    more = f" and {len(names) - _MAX_TITLE_MODELS} more" if len(names) > _MAX_TITLE_MODELS else ""
    return ", ".join(names[:_MAX_TITLE_MODELS]) + more


def _tiles(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> list[tuple[str, str]]:
    """Return (name, value) of the key figures at the top of the page."""
    tiles = [("records", f"{len(records):,}")]
    if names := _models(records):
        lengths = [n for model, n in fields(records, "model", "n") if model and isinstance(n, int)]
        tiles += [
            ("models" if len(set(column(records, "model")) - {None}) > 1 else "model", names),
            *([("longest text", f"{max(lengths):,} tokens")] if lengths else []),
        ]
    # Other quantities than the constant, such as what the scripts of a paper return, are not pooled with it.
    rows = fields(tables["measurements"].rows, "quantity", "value") if "measurements" in tables else ()
    constants = [value for quantity, value in rows if quantity in (None, "lipschitz")]
    values = [value for value in constants if value is not None and math.isfinite(value)]
    if values:
        tiles.append(("Lip, smallest to largest", f"{number(min(values), 3)} … {number(max(values), 3)}"))
    rows = fields(tables["laws"].rows, "quantity", "law") if "laws" in tables else ()
    laws = [law for quantity, law in rows if quantity in (None, "lipschitz")]
    powers = [law.exponent for law in laws if law.shown]
    if powers:
        ends = dict.fromkeys(f"{round(end, 2) + 0.0:.2f}".replace("-", "−") for end in (min(powers), max(powers)))
        which = "" if len(powers) == len(laws) else f" ({len(powers)} of {len(laws)} curves)"
        tiles.append(("exponent α of Lip ≈ C nᵅ" + which, " … ".join(ends)))
    return tiles
