"""The report: one HTML file that holds the records and draws them by itself, offline, in light and dark, on paper."""

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
from howsmooth.records import CURVE
from howsmooth.report.caveats import caveats_of, sources_of
from howsmooth.report.charts import METRICS, bounds_chart, drawable, grouped, growth_chart, heat_maps
from howsmooth.report.page_tables import one_row_per_token, packed, tables_of
from howsmooth.report.rows import bound_rows, map_name, model_name, number
from howsmooth.report.table import Table

_SCRIPTS = ("table.js", "plot.js", "growth.js", "heat.js", "bounds.js", "attacks.js", "direction.js", "report.js")
_MOST_MODELS = 3  # that a title names
_VIEW = tuple(name for name in CURVE if name not in ("layer", "head"))  # what one chart of growth has in common
_MAP = ("model", "text", "map", "layer", "head")


def report_page(
    records: Sequence[dict[str, Any]],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    tables: dict[str, Table] | None = None,
) -> str:
    """Records of measure, bound, attack and studies, in any mixture, as one self-contained HTML page.

    `notes` are said among the warnings. `tables`, as `tables_of` makes them, save fitting the laws a second time.
    Everything from outside is escaped, and the page's policy lets no script run but its own.
    """
    tables = tables_of(records) if tables is None else tables
    script = "\n".join(asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    title = title or f"How smooth is attention? {_models(records)}"
    data = {
        "title": title,
        "tables": {name: packed(table) for name, table in tables.items()},
        "charts": page_charts(records, tables),
    }
    return rendered(
        "report.html",
        title=title,
        script=Markup(script),
        script_sha256=digest,
        data=embedded(data),
        tiles=_tiles(records, tables),
        caveats=caveats_of(records, notes),
        sources=sources_of(records),
        version=howsmooth.__version__,
    )


def page_charts(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> dict[str, Any]:
    """The charts of the page as JSON: growth and heat maps of each view, the bounds of each map.

    Series of growth name the rows of the table of measurements, which holds their numbers already.
    """
    measured: Sequence[dict[str, Any]] = tables["measurements"].rows if "measurements" in tables else ()
    place = {id(row): index for index, row in enumerate(measured)}
    laws = {tuple(row[name] for name in CURVE): row["law"] for row in tables["laws"].rows} if "laws" in tables else {}
    views = []
    for view, rows in grouped(measured, *_VIEW).items():
        heat = {
            metric: {
                kind: [{**one.json(), "n": n} for one, n in zip(maps, _lengths(rows), strict=False)]
                for kind, maps in heat_maps(rows, metric).items()
            }
            for metric in METRICS
        }
        growth = None
        if any(map(drawable, rows)):
            of_view = {
                key: law
                for key, law in laws.items()
                if all(key[CURVE.index(name)] == part for name, part in zip(_VIEW, view, strict=True))
            }
            growth = growth_chart(rows, of_view, named=len(rows)).json()
            curves = {map_name(*key): (key, group) for key, group in grouped(rows, "layer", "head").items()}
            for series in growth["series"]:
                (layer, head), group = curves[series["name"]]
                for numbers in ("x", "y", "lower", "upper"):
                    series.pop(numbers, None)
                series |= {"layer": layer, "head": head, "rows": [place[id(row)] for row in group if drawable(row)]}
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
        {"map": key, "chart": bounds_chart(rows, map_name(*key[-2:])).json()}
        for key, group in grouped(bounds, *_MAP).items()
        for rows in bound_rows(group).values()
    ]
    return {"views": views, "bounds": charts}


def _lengths(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["n"] for row in rows if drawable(row) and row["layer"] is not None})


def write_csv(tables: dict[str, Table], folder: Path) -> list[Path]:
    """Each table as FOLDER/NAME.csv; directions get a row for each token."""
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        path.write_text((one_row_per_token(table) if name == "directions" else table).csv(), encoding="utf-8")
        written.append(path)
    return written


def asset(name: str) -> str:
    """The text of a file in the folder `assets`."""
    return files("howsmooth.report").joinpath("assets", name).read_text(encoding="utf-8")


def rendered(template: str, **values: Any) -> str:
    """A template of the folder `assets` with these values, all of them escaped; {{ asset(name) }} includes a file."""
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals["asset"] = lambda name: Markup(asset(name))
    environment.filters["table"] = lambda table: Markup(replace(table, title="").html())
    return environment.get_template(template).render(**values)


def embedded(data: Any) -> Markup:
    """JSON that cannot end the element it stands in, whatever the text in it says.

    >>> str(embedded({"token": "</script><b>"}))
    '{"token":"\\\\u003c/script>\\\\u003cb>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _models(records: Sequence[dict[str, Any]]) -> str:
    names = [model_name(name) for name in dict.fromkeys(record["model"] for record in records)]
    more = f" and {len(names) - _MOST_MODELS} more" if len(names) > _MOST_MODELS else ""
    return ", ".join(names[:_MOST_MODELS]) + more


def _tiles(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> list[tuple[str, str]]:
    """The few numbers that come first: (what, value)."""
    models = {record["model"] for record in records}
    said = [
        ("records", f"{len(records):,}"),
        ("models" if len(models) > 1 else "model", _models(records)),
        ("longest text", f"{max(record['n'] for record in records):,} tokens"),
    ]
    values = (
        [value for value in tables["measurements"].values("value") if value is not None]
        if ("measurements" in tables)
        else []
    )
    if values:
        said.append(("Lip, smallest to largest", f"{number(min(values), 3)} … {number(max(values), 3)}"))
    laws = [row["law"] for row in tables["laws"].rows] if "laws" in tables else []
    powers = [law.exponent for law in laws if law.shown]
    if powers:
        ends = dict.fromkeys(f"{round(end, 2) + 0.0:.2f}".replace("-", "−") for end in (min(powers), max(powers)))
        which = "" if len(powers) == len(laws) else f" ({len(powers)} of {len(laws)} curves)"
        said.append(("exponent α of Lip ≈ C nᵅ" + which, " … ".join(ends)))
    return said
