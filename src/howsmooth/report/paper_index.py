"""The index of what `howsmooth reproduce` made: pictures, laws, ratios, and what is missing, as Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from howsmooth.report.paper_figure import STYLES, law_text, short_verdict, told_apart
from howsmooth.report.rows import model_name, number
from howsmooth.report.web_page import asset
from howsmooth.studies.figures.reading import correlations_of, laws_of, ratios_of

if TYPE_CHECKING:
    from howsmooth.studies.figures.running import Outcome

TITLE = "The figures of “How Smooth Is Attention?”, made again"
ABOUT = ("As described: the largest singular value of the Jacobian of attention, with its interval. As released: "
         "√‖Jᵀf(X)‖, which is what the published scripts return, on the described map and on the scripts' own. "
         "A published line is drawn as published; nothing in it was fitted here.")
LAWS = ("model", "text", "layer", "head", "what", "law, 95 % interval of the exponent", "is it one?", "over described")
RADIUS = ("model", "text", "layer", "rank correlation of Lip and mean radius", "at equal n")
MISSING = ("model", "text", "layers", "reason")


def index_markdown(made: list[tuple[Outcome, list[str]]]) -> str:
    """For each figure its pictures, its laws and what it lacks."""
    lines = [f"# {TITLE}", "", ABOUT, ""]
    for outcome, pictures in made:
        lines += [f"## {outcome.figure.title}", "", outcome.figure.about, ""]
        lines += [f"![{name}]({name}.png)" for name in pictures] + [""]
        lines += [f"Records: [{outcome.figure.name}.jsonl]({outcome.figure.name}.jsonl)", ""]
        for heading, columns, rows in _tables(outcome):
            lines += [f"### {heading}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows] + [""]
        lines += [f"* {line}" for line in outcome.notes] + ([""] if outcome.notes else [])
    return "\n".join(lines)


def index_html(made: list[tuple[Outcome, list[str]]]) -> str:
    """The same as one page beside the pictures."""
    parts = []
    for outcome, pictures in made:
        parts.append(f"<h2>{escape(outcome.figure.title)}</h2><p>{escape(outcome.figure.about)}</p>")
        parts += [f'<figure><img src="{escape(name)}.png" alt="{escape(name)}"></figure>' for name in pictures]
        parts.append(f'<p class="faint">Records: <a href="{outcome.figure.name}.jsonl">{outcome.figure.name}.jsonl'
                     "</a></p>")
        for heading, columns, rows in _tables(outcome):
            head = "".join(f"<th>{escape(name)}</th>" for name in columns)
            body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            parts.append(f'<h3>{heading}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
                         f"<tbody>{body}</tbody></table></div>")
        parts += [f'<p class="faint">{escape(line)}</p>' for line in outcome.notes]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{TITLE}</title>'
            f"<style>{asset('report.css')}</style></head>\n<body><h1>{TITLE}</h1><p>{ABOUT}</p>\n" + "\n".join(parts)
            + "\n</body></html>\n")


def _tables(outcome: Outcome) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    if outcome.figure.x == "mean_radius":
        rows = [[model_name(model), text, str(layer), f"{whole:+.2f}", "" if equal is None else f"{equal:+.2f}"]
                for (model, text, layer, _), (whole, equal) in correlations_of(outcome.records).items()]
        if rows:
            yield "Lip and radius", RADIUS, rows
    else:
        rows = list(_laws(outcome))
        if rows:
            yield ("Laws" if outcome.figure.y == "value" else "Laws of the norm"), LAWS, rows
    if outcome.missing:
        yield "Missing", MISSING, [
            [model_name(lack.model), lack.text or "", ", ".join(map(str, lack.layers)) or "all", lack.reason]
            for lack in dict.fromkeys(outcome.missing)]


def _laws(outcome: Outcome) -> Iterator[list[str]]:
    ratios = ratios_of(outcome.records) if outcome.figure.y == "value" else {}
    for panel, laws in laws_of(told_apart(outcome.records), outcome.figure.y).items():
        model, text, layer, head = panel
        for series, law in laws.items():
            ratio: Any = ratios.get(panel, {}).get(series)
            yield [model_name(model), text, str(layer), "" if head is None else str(head),
                   STYLES[series].words if outcome.figure.y == "value" else "mean radius", law_text(law),
                   short_verdict(law),
                   "" if ratio is None else f"{number(ratio.median, 3)} ({number(ratio.least, 3)} … "
                                            f"{number(ratio.most, 3)})"]
