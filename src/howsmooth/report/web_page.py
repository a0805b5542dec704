"""The HTML report: one self-contained file with the records, their charts and tables; it works offline and in print."""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
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
from howsmooth.records.columns import column, fields
from howsmooth.report.caveats import caveats_of, sources_of
from howsmooth.report.embedding import embed_json
from howsmooth.report.page_tables import one_row_per_token, tables_of
from howsmooth.report.rows import model_name, number
from howsmooth.report.sections import by_question, sections_of
from howsmooth.report.table import Table

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
