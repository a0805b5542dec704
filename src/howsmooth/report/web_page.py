"""The HTML report: one self-contained file with the records, their charts and tables; it works offline and in print."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import howsmooth
from howsmooth.lazy import deferred
from howsmooth.questions import find_question
from howsmooth.records import CURVE
from howsmooth.report.caveats import caveats_of, sources_of
from howsmooth.report.charts import METRICS, group_by, growth_chart, heat_maps, is_drawable, map_bounds_charts
from howsmooth.report.page_tables import one_row_per_token, pack_columns, tables_of
from howsmooth.report.rows import bound_rows, map_name, model_name, number
from howsmooth.report.sections import by_question, sections_of
from howsmooth.report.table import Table

_SCRIPTS = ("table.js", "plot.js", "growth.js", "heat.js", "bounds.js", "attacks.js", "direction.js", "report.js")
_TABLES_OF_THE_SCRIPT = ("measurements", "laws", "bounds", "worst-cases", "balls", "directions")
_MAX_TITLE_MODELS = 3
_VIEW_FIELDS = tuple(name for name in CURVE if name not in ("layer", "head"))  # one view of the page for each value
_MAP_FIELDS = ("model", "text", "map", "layer", "head")


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
    data = {
        "title": title,
        "tables": {name: pack_columns(table) for name, table in tables.items() if name in _TABLES_OF_THE_SCRIPT},
        "charts": page_charts(records, tables),
    }
    return render(
        "report.html",
        _SCRIPTS,
        title=title,
        data=embed_json(data),
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


def page_charts(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> dict[str, Any]:
    """Return the charts of the page as JSON: growth and heat maps of each view, bounds of each map.

    Series of growth refer to rows of the table of measurements instead of repeating their numbers.
    """
    measured: Sequence[dict[str, Any]] = tables["measurements"].rows if "measurements" in tables else ()
    row_index = {id(row): index for index, row in enumerate(measured)}
    laws = {tuple(row[name] for name in CURVE): row["law"] for row in tables["laws"].rows} if "laws" in tables else {}
    views = []
    for view, rows in group_by(measured, *_VIEW_FIELDS).items():
        heat = {
            metric: {
                kind: [{**one.to_json(), "n": n} for one, n in zip(maps, _lengths(rows), strict=False)]
                for kind, maps in heat_maps(rows, metric).items()
            }
            for metric in METRICS
        }
        growth = None
        if any(map(is_drawable, rows)):
            of_view = {
                key: law
                for key, law in laws.items()
                if all(key[CURVE.index(name)] == part for name, part in zip(_VIEW_FIELDS, view, strict=True))
            }
            growth = growth_chart(rows, of_view, max_labelled=len(rows)).to_json()
            curves = {map_name(*key): (key, group) for key, group in group_by(rows, "layer", "head").items()}
            for series in growth["series"]:
                (layer, head), group = curves[series["label"]]
                for numbers in ("x", "y", "lower", "upper"):
                    series.pop(numbers, None)
                series |= {
                    "layer": layer,
                    "head": head,
                    "rows": [row_index[id(row)] for row in group if is_drawable(row)],
                }
        views.append({"view": view, "growth": growth, "heat": heat})
    bounds = [
        record
        for record in records
        if record["kind"] == "bound"
        and record["measured"]["value"] > 0
        and record["log_ratio"] is not None
        and record["log_value"] is not None
    ]
    charts = [
        {"map": key, "charts": [chart.to_json() for chart in map_bounds_charts(rows, map_name(*key[-2:]))]}
        for key, group in group_by(bounds, *_MAP_FIELDS).items()
        for rows in bound_rows(group).values()
    ]
    return {"views": views, "bounds": charts}


def _lengths(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["n"] for row in rows if is_drawable(row) and row["layer"] is not None})


def write_csv(tables: dict[str, Table], folder: Path) -> list[Path]:
    """Write each table as FOLDER/NAME.csv and return the paths; directions have a row for each token."""
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        path.write_text((one_row_per_token(table) if name == "directions" else table).csv(), encoding="utf-8")
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


def embed_json(data: Any) -> Markup:
    r"""Return JSON for a <script> element, with `<` escaped so that no text in it can close the element.

    Example:
        >>> str(embed_json({"token": "</script><b>"}))
        '{"token":"\\u003c/script>\\u003cb>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _models(records: Sequence[dict[str, Any]]) -> str:
    names = [model_name(name) for name in dict.fromkeys(record.get("model") for record in records) if name]
    more = f" and {len(names) - _MAX_TITLE_MODELS} more" if len(names) > _MAX_TITLE_MODELS else ""
    return ", ".join(names[:_MAX_TITLE_MODELS]) + more


def _tiles(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> list[tuple[str, str]]:
    """Return (name, value) of the key figures at the top of the page."""
    models = {record["model"] for record in records if record.get("model")}
    tiles = [("records", f"{len(records):,}")]
    if models:
        lengths = [record["n"] for record in records if record.get("model") and isinstance(record.get("n"), int)]
        tiles += [
            ("models" if len(models) > 1 else "model", _models(records)),
            *([("longest text", f"{max(lengths):,} tokens")] if lengths else []),
        ]
    values = (
        [value for value in tables["measurements"].values("value") if value is not None]
        if ("measurements" in tables)
        else []
    )
    if values:
        tiles.append(("Lip, smallest to largest", f"{number(min(values), 3)} … {number(max(values), 3)}"))
    laws = [row["law"] for row in tables["laws"].rows] if "laws" in tables else []
    powers = [law.exponent for law in laws if law.shown]
    if powers:
        ends = dict.fromkeys(f"{round(end, 2) + 0.0:.2f}".replace("-", "−") for end in (min(powers), max(powers)))
        which = "" if len(powers) == len(laws) else f" ({len(powers)} of {len(laws)} curves)"
        tiles.append(("exponent α of Lip ≈ C nᵅ" + which, " … ".join(ends)))
    return tiles
