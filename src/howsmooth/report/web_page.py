"""The report: one HTML file that holds the records and draws them by itself, offline, in light and dark, on paper."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import howsmooth
from howsmooth.report.doubts import Doubt, doubts_of
from howsmooth.report.rows import model_name, number
from howsmooth.report.sources import sources_of
from howsmooth.report.tables import Table, one_row_per_token, tables_of

_SCRIPTS = ("table.js", "plot.js", "growth.js", "heat.js", "bounds.js", "attacks.js", "direction.js", "report.js")
_MOST_MODELS = 3  # that a title names


def report_page(records: Sequence[dict[str, Any]], *, title: str | None = None, notes: Sequence[str] = (),
                tables: dict[str, Table] | None = None) -> str:
    """Records of measure, bound, attack and studies, in any mixture, as one self-contained HTML page.

    `notes` are said among the warnings. `tables`, as `tables_of` makes them, save fitting the laws a second time.
    Everything from outside is escaped, and the page's policy lets no script run but its own.
    """
    tables = tables_of(records) if tables is None else tables
    script = "\n".join(asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    title = title or f"How smooth is attention? {_models(records)}"
    return Template(asset("report.html")).substitute(
        title=escape(title), style=asset("report.css"), script=script, script_sha256=digest,
        tiles=_tiles(records, tables), doubts=_doubts(doubts_of(records, notes)),
        sources="".join(_source(*source) for source in sources_of(records)),
        data=_embedded({"title": title, "tables": {name: table.packed() for name, table in tables.items()}}),
        version=escape(howsmooth.__version__),
    )


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


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever the text in it says.

    >>> _embedded({"token": "</script><b>"})
    '{"token":"\\\\u003c/script>\\\\u003cb>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _models(records: Sequence[dict[str, Any]]) -> str:
    names = [model_name(name) for name in dict.fromkeys(record["model"] for record in records)]
    more = f" and {len(names) - _MOST_MODELS} more" if len(names) > _MOST_MODELS else ""
    return ", ".join(names[:_MOST_MODELS]) + more


def _tiles(records: Sequence[dict[str, Any]], tables: dict[str, Table]) -> str:
    """The few numbers that come first."""
    models = {record["model"] for record in records}
    said = [("records", f"{len(records):,}"), ("models" if len(models) > 1 else "model", _models(records)),
            ("longest text", f"{max(record['n'] for record in records):,} tokens")]
    if "measurements" in tables:
        values = [value for value in tables["measurements"].columns["value"] if value is not None]
        if values:
            said.append(("Lip, smallest to largest", f"{number(min(values), 3)} … {number(max(values), 3)}"))
    if "laws" in tables:
        powers = tables["laws"].columns["exponent"]
        ends = dict.fromkeys(f"{round(end, 2) + 0.0:.2f}".replace("-", "−") for end in (min(powers), max(powers)))
        said.append(("exponent α of Lip ≈ C nᵅ", " … ".join(ends)))
    return "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in said)


def _doubts(doubts: Sequence[Doubt]) -> str:
    if not doubts:
        return "<p>None: every solve reached its tolerance, and every bound that was asked for applies.</p>"
    signs = {"warning": "⚠ Warning", "note": "Note"}
    items = (f'<li class="{doubt.level}"><b>{signs[doubt.level]}:</b> {escape(doubt.text)}</li>' for doubt in doubts)
    return f"<ul class=\"doubts\">{''.join(items)}</ul>"


def _source(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><th scope="row">{escape(what)}</th><td>{escape(said)}</td></tr>' for what, said in rows)
    return f'<h3>{escape(heading)}</h3><table class="facts"><tbody>{cells}</tbody></table>'
