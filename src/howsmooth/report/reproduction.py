"""Output of `howsmooth reproduce`: the figures of the paper, and an index with their laws, ratios and missing parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.bounds.titles import title_of
from howsmooth.reading import replacing
from howsmooth.records.columns import group_by
from howsmooth.records.lines import json_line
from howsmooth.report.chart import Axis, Chart, Picture, Series
from howsmooth.report.charts import LENGTH_LABEL, sample_count_text, samples_series
from howsmooth.report.figure import draw as draw_charts
from howsmooth.report.figure import save_figure
from howsmooth.report.rows import law_text, magnitude, model_name, number, short_verdict
from howsmooth.report.table import Column, Table
from howsmooth.report.web_page import render
from howsmooth.studies.figures.panels import PANEL_FIELDS, correlations_of, laws_of, panel_of, ratios_of, series_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from howsmooth.fits import Law
    from howsmooth.studies.figures.definition import Published
    from howsmooth.studies.figures.run import Outcome

INDEX_TITLE = "The figures of “How Smooth Is Attention?”, made again"
INDEX_INTRODUCTION = (
    "As described: the largest singular value of the Jacobian of attention, with its interval. As released: "
    "√‖Jᵀf(X)‖, which is what the published scripts return, on the described map and on the scripts' own. "
    "A published line is drawn as published; nothing in it was fitted here."
)
_MAX_LOG_DISTANCE = math.log(30)  # a bound further from the points is listed in a note, not drawn
_TEXTS = {"alice": "Alice in Wonderland", "ag_news": "AG_NEWS", "embedded": "the embedded text"}
# (map, quantity): label and style of the series
_STYLES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("attention", "lipschitz"): ("as described", {"colour": 0, "marker_index": 0, "law_linestyle": "solid"}),
    ("head", "lipschitz"): ("as described, the head alone", {"colour": 2, "marker_index": 3, "law_linestyle": "solid"}),
    ("attention, −u", "lipschitz"): (
        "as described, other sign of u",
        {"colour": 4, "marker_index": 4, "law_linestyle": "solid"},
    ),
    ("head, −u", "lipschitz"): (
        "as described, the head alone, other sign",
        {"colour": 5, "marker_index": 5, "law_linestyle": "solid"},
    ),
    ("attention, scripts' input", "lipschitz"): (
        "as described, at the scripts' input",
        {"colour": 3, "marker_index": 2, "law_linestyle": "solid"},
    ),
    ("attention", "released"): (
        "released formula, described map",
        {"colour": 1, "marker_index": 1, "law_linestyle": "dashed", "hollow_markers": True},
    ),
    ("attention", "released-map"): (
        "as released: formula and map",
        {"colour": 3, "marker_index": 2, "law_linestyle": "dotted", "hollow_markers": True},
    ),
    ("attention, scripts' input", "released-map"): (
        "as released: formula, map and input",
        {"colour": 3, "marker_index": 2, "law_linestyle": "dotted", "hollow_markers": True},
    ),
}


@dataclass
class Panel:
    """The contents of one panel of a figure: one (model, text, layer, head)."""

    key: tuple
    records: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    laws: dict[tuple, Law] = field(default_factory=dict)
    published: Published | None = None
    correlation: tuple[float, float | None] | None = None
    missing: str | None = None

    @property
    def title(self) -> str:
        """Title of the panel: model, layer, head and text."""
        model, text, layer, head = self.key
        where = ", ".join(
            [f"layer {layer}" if layer is not None else "all layers", *([f"head {head}"] if head is not None else [])]
        )
        return f"{model_name(model)}, {where}\n{text}"


def write_figure(outcome: Outcome, folder: Path) -> list[str]:
    """Write a figure's records as JSON lines and its pictures as PNG; return the names of the pictures."""
    name = outcome.figure.name
    lines = (json_line({**record, "figure": name}) + "\n" for record in (*outcome.records, *outcome.bounds))
    with replacing(folder / f"{name}.jsonl") as partial:
        partial.write_text("".join(lines), encoding="utf-8")
    pictures = panels_by_picture(outcome)
    for picture, panels in pictures.items():
        save_figure(draw(panels, outcome), folder / f"{picture}.png")
    return list(pictures)


def write_index(made: list[tuple[Outcome, list[str]]], folder: Path) -> None:
    """Write the index of all figures as Markdown and as HTML."""
    (folder / "index.md").write_text(index_markdown(made), encoding="utf-8")
    (folder / "index.html").write_text(index_html(made), encoding="utf-8")


def panels_by_picture(outcome: Outcome) -> dict[str, list[Panel]]:
    """Return the panels of each picture of a figure by the name of the picture, including panels with missing data."""
    found: dict[str, list[Panel]] = {}
    for panel in _panels(outcome):
        model = model_name(panel.key[0])
        tag = "".join(char if char.isalnum() or char in "-." else "-" for char in model).strip("-")
        name = outcome.figure.name if outcome.figure.sheet == "figure" else f"{outcome.figure.name}-{tag}"
        found.setdefault(name, []).append(panel)
    return found


def _panels(outcome: Outcome) -> Iterator[Panel]:
    figure = outcome.figure
    panels: dict[tuple, Panel] = {}
    for record in without_duplicate_series(outcome.records):
        panels.setdefault(panel_of(record), Panel(panel_of(record))).records.append(record)
    laws, correlations = laws_of(outcome.records, figure.y), correlations_of(outcome.records)
    for key, panel in panels.items():
        panel.laws, panel.correlation = laws.get(key, {}), correlations.get(key)
        panel.bounds = [
            bound
            for bound in outcome.bounds
            if bound["model"] == key[0] and bound["layer"] == key[2] and bound["head"] == key[3]
        ]
        panel.published = next(
            (line for line in figure.published if (line.model, line.text, line.layer, line.head) == key), None
        )
    for lack in outcome.missing:
        for layer in lack.layers or (None,):
            if not any((key[0], key[1], key[2]) == (lack.model, lack.text, layer) for key in panels):
                key = (lack.model, lack.text, layer, None)
                line = next((line for line in figure.published if (line.model, line.text, line.layer) == key[:3]), None)
                panels[key] = Panel(key, missing=lack.reason, published=line)
    order = list(dict.fromkeys(key[0] for key in panels))
    texts = list(dict.fromkeys(key[1] for key in panels))
    yield from sorted(panels.values(), key=lambda p: (order.index(p.key[0]), texts.index(p.key[1]), p.key[2] or 0))


def without_duplicate_series(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop records of the paper's scripts that repeat another series, because the scripts use the described map."""
    return [record for record in records if record.get("script_map") != "attention"]


def draw(panels: list[Panel], outcome: Outcome, *, theme: str = "light") -> Figure:
    """Draw one picture."""
    layers = len({panel.key[2] for panel in panels})
    columns = 3 if outcome.figure.sheet == "figure" or not 1 < layers <= 4 else layers
    figure = outcome.figure
    picture = _picture(panels, columns, figure.title, figure.x, figure.y)
    return draw_charts(picture, theme=theme)


def panel_chart(panel: Panel, x: str = "n", y: str = "value") -> Chart:
    """Return the chart of a panel: series, laws, the published line and bounds against n, or Lip against the radius."""
    if panel.missing:
        line = panel.published
        published = f"\n\npublished: {line.constant:g} n^{line.exponent:g}" if line else ""
        reason = panel.missing.partition(" (")[0]  # the index has the whole reason
        return Chart(panel.title, Axis(LENGTH_LABEL), Axis(""), message=f"missing: {reason}{published}")
    return _radius_chart(panel) if x == "mean_radius" else _growth_chart(panel, y)


def _growth_chart(panel: Panel, y: str) -> Chart:
    series: list[Series] = []
    notes: list[str] = []
    for key, records in group_by(panel.records, "map", "quantity").items():
        label, style = _STYLES[key]
        law = panel.laws.get(key)
        label = label if y == "value" else "measured"
        if law is not None:
            label = "\n".join(filter(None, (f"{label}: {law_text(law)}".rstrip(": "), short_verdict(law))))
        series.append(samples_series(records, label, law, y, linestyle="", **style))
    if panel.published:
        line = panel.published
        series.append(
            Series(
                line.lengths,
                [line.constant * n**line.exponent for n in line.lengths],
                linestyle="dashdot",
                label=f"published line: {line.constant:g} n^{line.exponent:g}",
                linewidth=1.5,
                colour="foreground",
            )
        )
    if panel.bounds:
        bounds, notes = _bounds(panel)
        series += bounds
    lengths = sorted({record["n"] for record in panel.records})
    if y == "value":
        axis = Axis("Lip = ‖D$_X$f‖$_2$", "log")
    else:  # norms vary little: a linear scale with a margin
        values = [record[y] for record in panel.records]
        margin = 0.05 * max(values)
        axis = Axis("root mean square of |x$_i$|", lower_limit=min(values) - margin, upper_limit=max(values) + margin)
    return Chart(
        panel.title,
        Axis(LENGTH_LABEL, "log", lengths),
        axis,
        series,
        notes=notes,
        caption=sample_count_text(panel.records),
    )


def _bounds(panel: Panel) -> tuple[list[Series], list[str]]:
    """Return the upper bounds near the points as series, and the others as lines of text.

    The bounds are about the worst case in the ball. A lower bound on it may be above the points, and is not drawn.
    """
    values = [record["value"] for record in panel.records if record["value"]]
    highest = math.log(max(values)) + _MAX_LOG_DISTANCE
    lines, notes = [], []
    for (name,), group in group_by(panel.bounds, "map").items():
        rows = sorted(group, key=lambda bound: bound["n"])
        last = rows[-1]
        title = title_of(name)
        if last["refused"]:
            notes.append(f"{title}: none ({last['refused'].split('got ')[-1].split(';')[0]})")
            continue
        sign = "≥" if last["side"] == "lower" else "≤"
        if sign == "≤" and all(bound["log_value"] < highest for bound in rows):
            lines.append(
                Series(
                    [bound["n"] for bound in rows],
                    [bound["value"] for bound in rows],
                    label=f"worst case in the ball ≤ {title}",
                    linestyle="dashed",
                    linewidth=1.4,
                    colour="muted",
                )
            )
        else:
            notes.append(f"{sign} {magnitude(last['log_value'])} ({title})")
    if not notes:
        return lines, []
    where = f"worst case in the ball of R = {panel.bounds[-1]['R']:.3g}, n = {max(b['n'] for b in panel.bounds)}"
    return lines, [f"{where}{'' if panel.key[3] is None else ', the head alone'}:", *notes]


def _radius_chart(panel: Panel) -> Chart:
    points = [record for record in panel.records if series_of(record) == ("attention", "lipschitz")]
    lengths = sorted({record["n"] for record in points})
    series = []
    for i, n in enumerate(lengths):
        samples = [record for record in points if record["n"] == n]
        labelled = i in (0, len(lengths) // 2, len(lengths) - 1)
        series.append(
            Series(
                [record["mean_radius"] for record in samples],
                [record["value"] for record in samples],
                show_markers=True,
                marker_index=0,
                colour=i / max(1, len(lengths) - 1),
                label=f"n = {n}" if labelled else "",
            )
        )
    corner_text = ""
    if panel.correlation:
        overall, equal = panel.correlation
        corner_text = f"rank correlation {overall:+.2f}" + (f"\nat equal n {equal:+.2f}" if equal is not None else "")
        corner_text = corner_text.replace("-", "−")
    return Chart(panel.title, Axis("mean radius"), Axis("Lip = ‖D$_X$f‖$_2$", "log"), series, corner_text=corner_text)


def configuration_picture(records: Sequence[dict[str, Any]]) -> Picture | None:
    """Return the picture of the question configuration: a panel for each layer or head; None for bounds alone."""
    measured = [record for record in records if record["quantity"] != "bound"]
    laws = laws_of(measured)
    panels = [
        Panel(key, list(group), laws=laws.get(key, {}))
        for key, group in group_by(without_duplicate_series(measured), *PANEL_FIELDS).items()
    ]
    return _picture(panels, min(3, len(panels))) if panels else None


def _picture(panels: list[Panel], columns: int, title: str = "", x: str = "n", y: str = "value") -> Picture:
    charts = [panel_chart(panel, x, y) for panel in panels]
    entries = max(len(chart.series) for chart in charts)
    height = max(4.4, 3.0 + 0.4 * entries)  # of a panel with its legend below
    return Picture(charts, columns=columns, width=4.1, height=height, many_panels=True, title=title)


def configuration_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of the question configuration: values with their intervals, and bounds."""
    columns = [
        Column("layer", lambda record: record["layer"]),
        Column("head", lambda record: record["head"]),
        Column("n", lambda record: record["n"]),
        Column("what", _series_label, "left"),
        Column("value", lambda record: number(record["value"])),
        Column(
            "interval",
            lambda record: (
                f"[{number(record['lower'])}, {number(record['upper'])}]" if record.get("upper") is not None else ""
            ),
        ),
        Column("status", lambda record: record["status"], "left"),
    ]
    label = f"{model_name(records[0]['model'])}: {records[0]['text']}"
    return [Table(label, columns, records)]


def _series_label(record: dict[str, Any]) -> str:
    """Return what a record of the question configuration is, in words."""
    known = _STYLES.get(series_of(record))
    return title_of(record["map"]) if known is None else known[0]


def index_markdown(made: list[tuple[Outcome, list[str]]]) -> str:
    """Return the index as Markdown: the pictures, laws and missing parts of each figure."""
    lines = [f"# {INDEX_TITLE}", "", INDEX_INTRODUCTION, ""]
    for outcome, pictures in made:
        lines += [f"## {outcome.figure.title}", "", _about(outcome), ""]
        lines += [f"![{name}]({name}.png)" for name in pictures] + [""]
        lines += [f"Records: [{outcome.figure.name}.jsonl]({outcome.figure.name}.jsonl)", ""]
        for table in _tables(outcome):
            lines += [f"### {table.title}", "", table.markdown()]
        lines += [f"* {line}" for line in outcome.notes] + ([""] if outcome.notes else [])
    return "\n".join(lines)


def index_html(made: list[tuple[Outcome, list[str]]]) -> str:
    """Return the index as an HTML page, to be stored next to the pictures."""
    figures = [
        {
            "name": outcome.figure.name,
            "title": outcome.figure.title,
            "about": _about(outcome),
            "pictures": pictures,
            "tables": list(_tables(outcome)),
            "notes": outcome.notes,
        }
        for outcome, pictures in made
    ]
    return render("index.html", title=INDEX_TITLE, about=INDEX_INTRODUCTION, figures=figures)


def _about(outcome: Outcome) -> str:
    """Return the description of a figure and the number of its samples."""
    described = [record for record in outcome.records if record["quantity"] == "lipschitz"]
    counted = f"{sample_count_text(described).capitalize()}." if described else ""
    texts = [_TEXTS.get(name, name) for name in dict.fromkeys(record["text"] for record in outcome.records)]
    about = outcome.figure.about.replace("{texts}", " and ".join(texts) or "a text")
    return " ".join(filter(None, (about, counted)))


def _tables(outcome: Outcome) -> Iterator[Table]:
    if outcome.figure.x == "mean_radius":
        table = Table(
            "Lip and radius",
            [
                Column("model", lambda row: model_name(row[0][0]), "left"),
                Column("text", lambda row: row[0][1], "left"),
                Column("layer", lambda row: row[0][2]),
                Column("rank correlation of Lip and mean radius", lambda row: f"{row[1][0]:+.2f}"),
                Column("at equal n", lambda row: "" if row[1][1] is None else f"{row[1][1]:+.2f}"),
            ],
            list(correlations_of(outcome.records).items()),
        )
    else:
        table = _laws_table(outcome)
    if len(table):
        yield table
    if outcome.missing:
        yield Table(
            "Missing",
            [
                Column("model", lambda lack: model_name(lack.model), "left"),
                Column("text", lambda lack: lack.text, "left"),
                Column("layers", lambda lack: ", ".join(map(str, lack.layers)) or "all", "left"),
                Column("reason", lambda lack: lack.reason, "left"),
            ],
            list(dict.fromkeys(outcome.missing)),
        )


def _laws_table(outcome: Outcome) -> Table:
    of_values = outcome.figure.y == "value"
    ratios = ratios_of(outcome.records) if of_values else {}
    rows = [
        (panel, series, law)
        for panel, laws in laws_of(without_duplicate_series(outcome.records), outcome.figure.y).items()
        for series, law in laws.items()
    ]

    confidence = f"{100 * (rows[0][2].confidence if rows else 0.95):g} %"

    def ratio(row: tuple) -> str:
        found = ratios.get(row[0], {}).get(row[1])
        return (
            "" if found is None else (f"{number(found.median, 3)} ({number(found.least, 3)} … {number(found.most, 3)})")
        )

    return Table(
        "Laws" if of_values else "Laws of the norm",
        [
            Column("model", lambda row: model_name(row[0][0]), "left"),
            Column("text", lambda row: row[0][1], "left"),
            Column("layer", lambda row: row[0][2]),
            Column("head", lambda row: row[0][3]),
            Column("what", lambda row: _STYLES[row[1]][0] if of_values else "mean radius", "left"),
            Column(f"law, {confidence} interval of the exponent", lambda row: law_text(row[2]), "left"),
            Column("is it one?", lambda row: short_verdict(row[2]), "left"),
            Column("over described", ratio, "left"),
        ],
        rows,
    )
