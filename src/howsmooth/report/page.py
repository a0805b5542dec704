"""The small page: one HTML file that holds the plot and the table and needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from howsmooth.report.rows import Row, exponent, interval, model_name, number, places, rows_of
from howsmooth.report.table import confidence_text

if TYPE_CHECKING:
    from howsmooth.lipschitz import Growth

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #636c76; --line: #e4e7eb;
        --accent: #0072b2; --mark: #f4f6f8; --warn: #9a6700; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e3e7ec; --faint: #96a0ab; --line: #2a3038; --accent: #56b4e9;
          --mark: #1c2229; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 3rem 1.5rem 4rem; max-width: 70rem;
       background: var(--paper); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .2rem; }
p { margin: .2rem 0 1rem; max-width: 46rem; }
p.note, footer { color: var(--faint); font-size: .9rem; }
figure { margin: 2rem 0; }
figure img { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--faint); border-bottom: 1px solid var(--ink); }
th, td { padding: .3rem .9rem .3rem 0; white-space: nowrap; }
th.right, td.right { text-align: right; }
tr.first td { border-top: 1px solid var(--line); }
td.value { font-weight: 600; color: var(--accent); }
td.warn { color: var(--warn); }
td .share { color: var(--faint); }
sub, sup { line-height: 0; }
code { font: .88em ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", monospace; background: var(--mark);
       padding: .08em .35em; border-radius: 4px; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; overflow-wrap: anywhere; }
"""


def page(
    records: Sequence[dict[str, Any]], growth: dict[tuple, Growth], *, light_png: bytes, dark_png: bytes
) -> str:
    """A self-contained HTML page of the records, light and dark."""
    models = list(dict.fromkeys(record["model"] for record in records))
    sections = [
        _section(model, [record for record in records if record["model"] == model], growth)
        for model in models
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>How smooth is attention? {escape(", ".join(map(model_name, models)))}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>How smooth is attention?</h1>
<p>The local Lipschitz constant of attention layers, Lip = ‖D<sub>X</sub>f‖<sub>2</sub>: how much a small
change of the tokens X entering a layer can move what comes out of it, at worst. Theory allows it to grow
like √n with the number n of tokens; the fitted exponents say what these models do on this text.</p>
<figure>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="{_data(dark_png)}">
<img src="{_data(light_png)}" alt="Local Lipschitz constant against length, one panel per model, log scales">
</picture>
</figure>
{"".join(sections)}
{_footer(records)}
</body>
</html>
"""


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _section(model: str, records: Sequence[dict[str, Any]], growth: dict[tuple, Growth]) -> str:
    first = records[0]
    rows = rows_of(records)
    with_heads = any(row.head is not None for row in rows)
    with_status = any(row.unfinished for row in rows)
    samples = max(len(row.values) for row in rows)
    heads = _cell("th", "head", "right") if with_heads else ""
    status = _cell("th", "not converged") if with_status else ""
    header = (
        _cell("th", "layer", "right")
        + heads
        + _cell("th", "n", "right")
        + _cell("th", "mean", "right")
        + _cell("th", f"max of {samples}", "right")
        + _cell("th", f"interval, {confidence_text(records)}")
        + _cell("th", "R", "right")
        + _cell("th", "growth")
        + _cell("th", "worst direction sits on")
        + status
    )
    body = []
    for index, row in enumerate(rows):
        starts = index == 0 or (rows[index - 1].layer, rows[index - 1].head) != (row.layer, row.head)
        fit = growth.get((row.model, row.layer, row.head)) if starts else None
        body.append(_row(row, fit, starts, with_heads, with_status))
    weights = f"Weights: {escape(str(first['weights']))}. " if first.get("weights") else ""
    what = "each head alone" if first["map"] == "head" else "whole layers"
    return f"""<h2>{escape(model_name(model))}</h2>
<p class="note">{weights}Measured: {what}, in {escape(first["dtype"])}; perturbed tokens:
{escape(first["tokens"])}. R is the largest norm of a token.
Of the samples at a length, the one with the largest constant is shown.</p>
<div class="scroll"><table><thead><tr>{header}</tr></thead>
<tbody>{"".join(body)}</tbody></table></div>
"""


def _row(row: Row, fit: Growth | None, starts: bool, with_heads: bool, with_status: bool) -> str:
    worst = row.worst
    law_cell = "" if fit is None else f"{number(fit.constant, 3)} n<sup>{exponent(fit)}</sup>"
    cells = [
        _cell("td", str(row.layer) if starts else "", "right"),
        _cell("td", str(row.head) if starts else "", "right") if with_heads else "",
        _cell("td", str(row.n), "right"),
        _cell("td", number(row.mean), "right"),
        _cell("td", number(worst["value"]), "right value"),
        _cell("td", interval(worst["lower"], worst["upper"])),
        _cell("td", number(worst["radius"], 3), "right"),
        f"<td>{law_cell}</td>",
        f"<td>{_where(worst)}</td>",
        _cell("td", row.doubt, "warn") if with_status else "",
    ]
    return f"<tr{' class=first' if starts else ''}>{''.join(cells)}</tr>\n"


def _where(record: dict[str, Any]) -> str:
    return " &ensp;".join(
        f'<code>{escape(word)}</code> <span class="share">at {position}, {100 * share:.0f} %</span>'
        for word, position, share in places(record)
    )


def _cell(tag: str, text: str, style: str = "") -> str:
    return f"<{tag}{f' class={chr(34)}{style}{chr(34)}' if style else ''}>{escape(text)}</{tag}>"


def _footer(records: Sequence[dict[str, Any]]) -> str:
    first = records[0]
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items() if number)
    texts = "; ".join(
        dict.fromkeys(f"{record['text']} (sha256 {record['text_sha256']})" for record in records)
    )
    return (
        f"<footer>{len(records)} estimates, seed {first['seed']}, on {escape(first['device'])}. "
        f"Text: {escape(texts)}. {escape(versions)}.<br>The lower end of each interval is attained; "
        f"the upper end holds with probability {first['confidence']:g} "
        "over the solver's random start.</footer>"
    )
