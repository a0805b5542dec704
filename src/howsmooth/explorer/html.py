"""HTML of the explorer's outputs. All text from records and visitors is escaped here; clickable parts are buttons."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from howsmooth.report.figure import save_figure
from howsmooth.report.rows import ACCEPTED_STATUSES, confidence_text, interval, number
from howsmooth.report.rows import token as shortened
from howsmooth.report.style import Colouring, share_colouring
from howsmooth.report.table import Column, Table
from howsmooth.report.web_page import html_of, report_page


def progress(done: int, total: int, doing: str) -> str:
    """Return a progress bar and what is being computed.

    Example:
        >>> "2 of 6: layer 2" in progress(2, 6, "layer 2")
        True
    """
    return (
        f'<div class="hs-run"><progress max="{total}" value="{done}" aria-label="progress"></progress> '
        f'<span role="status">{done} of {total}: {escape(doing)}</span></div>'
    )


def message(text: str, kind: str = "note") -> str:
    """Return a message for the visitor; kind is "note", "done" or "warn".

    Example:
        >>> message("got '<b>'", "warn")
        '<p class="hs-message hs-warn" role="alert">got &#x27;&lt;b&gt;&#x27;</p>'
    """
    return f'<p class="hs-message hs-{kind}" role="{"alert" if kind == "warn" else "status"}">{escape(text)}</p>'


def command_line(command: str) -> str:
    """Return the command that computes the same numbers."""
    return f'<p class="hs-message hs-note">The same on the command line: <code>{escape(command)}</code></p>'


def table(declared: Table) -> str:
    """Return a table that scrolls if it is too wide; columns of the class hs-wide are hidden on small screens."""
    return f'<div class="scroll">{declared.html()}</div>'


def tables(parts: Sequence[Any]) -> str:
    """Return the tables of a question, and lines of text among them."""
    return "".join(html_of(parts))


def strong(text: str) -> Markup:
    """Return bold text, escaped."""
    return Markup("<b>{}</b>").format(text)


def constants(records: Sequence[dict[str, Any]], selected: int | None = None, *, heads: bool = False) -> str:
    """Return the table of the constants of layers, with a button for each, or of the heads of one layer."""
    if not records:
        return ""
    first, largest = records[0], max(record["value"] for record in records)
    title = f"Heads of layer {first['layer']}, each alone" if heads else f"Local Lipschitz constant, n = {first['n']}"
    return table(
        Table(
            title,
            [
                Column("head", lambda r: r["head"], when=heads),
                Column(
                    "layer",
                    lambda r: Markup(
                        '<button type="button" data-layer="{0}" data-place="{0}" aria-pressed="{1}">layer {0}</button>'
                    ).format(r["layer"], "true" if r["layer"] == selected else "false"),
                    "left",
                    when=not heads,
                ),
                Column("constant", _constant),
                Column("", lambda r: Markup(bar(r["value"], largest)), "left", css="hs-wide"),
                Column(f"interval, {confidence_text(records)}", lambda r: interval(r["lower"], r["upper"]), "left"),
                Column("relative, × ‖X‖/‖f(X)‖", lambda r: number(r["relative"], 3), css="hs-wide"),
                Column(
                    "worst direction: top token", lambda r: token_share(**r["top_tokens"][0]), "left", css="hs-wide"
                ),
            ],
            records,
        )
    )


def _constant(record: dict[str, Any]) -> Markup:
    status = (
        Markup("")
        if record["status"] in ACCEPTED_STATUSES
        else Markup(' <span class="hs-warn">{}</span>').format(record["status"])
    )
    return strong(number(record["value"])) + status


def token_share(token: str, position: int, share: float) -> Markup:
    """Return a token with its position and its share."""
    return Markup('<code>{}</code> <span class="hs-muted">at {}, {:.0f} %</span>').format(
        shortened(token), position, 100 * share
    )


def bar(value: float, largest: float) -> str:
    """Return a horizontal bar of length value / largest."""
    share = 100 * value / largest if largest > 0 else 0
    return f'<span class="hs-bar" aria-hidden="true"><i style="width:{share:.1f}%"></i></span>'


def token_texts(words: Sequence[str], colourings: Sequence[Colouring], selected: int | None = None) -> str:
    """Return the text once for each colouring, side by side, with a button for each token."""
    spoken = [
        ", ".join(f"{colouring.title}: {colouring.percent(colouring.values[i])}" for colouring in colourings)
        for i in range(len(words))
    ]
    texts = []
    for place, colouring in enumerate(colourings):
        buttons = "".join(
            f'<button type="button" data-token="{i}" data-place="{place}-{i}" style="--share:{shade:.3f}" '
            f'aria-pressed="{"true" if i == selected else "false"}" aria-label="token {i}, {escape(word)}. '
            f'{escape(spoken[i])}" title="{i}: {colouring.percent(value)}">{escape(shortened(word, 30))}</button>'
            for i, (word, value, shade) in enumerate(zip(words, colouring.values, colouring.intensities, strict=True))
        )
        low, high = map(escape, colouring.ends)
        texts.append(
            f'<section class="hs-text"><h3>{escape(colouring.title)}</h3>'
            f'<p class="hs-legend">{low} <span class="hs-scale" aria-hidden="true"></span> {high}, log scale</p>'
            f'<div class="hs-tokens">{buttons}</div></section>'
        )
    return f'<div class="hs-texts">{"".join(texts)}</div>'


def largest_gains(words: Sequence[str], shares: Colouring, gains: Colouring, count: int = 5) -> str:
    """Return the table of the tokens with the largest gains, with their shares of the worst direction."""
    order = sorted(range(len(words)), key=lambda i: -gains.values[i])[:count]
    return table(
        Table(
            "The tokens that change the output most when they move alone",
            [
                Column(
                    "token",
                    lambda i: Markup('<code>{}</code> <span class="hs-muted">at {}</span>').format(
                        shortened(words[i]), i
                    ),
                    "left",
                ),
                Column("alone", lambda i: strong(number(gains.values[i], 3))),
                Column("of the constant", lambda i: gains.percent(gains.values[i])),
                Column("of the worst direction", lambda i: shares.percent(shares.values[i])),
            ],
            order,
        )
    )


def token_effect(record: dict[str, Any], share: float, constant: float) -> str:
    """Return the share of a token in the worst direction, and the effect of perturbing it alone.

    Args:
        record: Result of `howsmooth.studies.move_one_token`.
        share: Share of the token in the worst direction of all tokens.
        constant: The constant when all tokens are perturbed.
    """
    shares = record["response_shares"] or []
    largest = sorted(range(len(shares)), key=lambda i: -shares[i])[:4]
    facts = [
        (
            "token",
            Markup('<code>{}</code> <span class="hs-muted">at {}, layer {}</span>').format(
                shortened(record["token"], 30), record["position"], record["layer"]
            ),
        ),
        ("share of the worst direction", share_colouring([share]).percent(share)),
        (
            "moved alone, by ε",
            strong(number(record["value"]))
            + Markup(' ε at most <span class="hs-muted">({})</span>').format(
                interval(record["lower"], record["upper"])
            ),
        ),
        ("of the whole constant", f"{100 * record['value'] / constant:.0f} %" if constant > 0 else ""),
        (
            "arrives at",
            Markup(", ").join(token_share(record["words"][i], i, shares[i]) for i in largest if shares[i] >= 0.005),
        ),
    ]
    facts_table = Table(
        "",
        [Column("", lambda fact: fact[0], "left"), Column("what perturbing it does", lambda fact: fact[1], "left")],
        facts,
    )
    return f'<div class="hs-facts">{table(facts_table)}</div>'


def report_download(records: Sequence[dict[str, Any]]) -> str:
    """Return the link that saves the report of records; empty without records.

    No file is written on the server: what a visitor measured stays in their page.
    """
    if not records:
        return ""
    data = base64.b64encode(report_page(list(records)).encode("utf-8")).decode("ascii")
    return (
        '<p class="hs-report"><a download="howsmooth-report.html" href="data:text/html;base64,'
        f'{data}">Download the report of these results</a></p>'
    )


def picture(draw: Callable[[str], Any], alt: str) -> str:
    """Return a figure in both themes, of which the page shows the one of its own theme; `draw` takes the theme."""
    images = []
    for theme in ("light", "dark"):
        buffer = io.BytesIO()
        save_figure(draw(theme), buffer)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        images.append(f'<img class="hs-{theme}" alt="{escape(alt)}" src="data:image/png;base64,{data}">')
    return f'<div class="hs-picture">{"".join(images)}</div>'


def pictures(*images: str) -> str:
    """Return pictures side by side if the page is wide enough."""
    return f'<div class="hs-pictures">{"".join(images)}</div>'


def sandboxed_frame(page: str, title: str) -> str:
    """Return a sandboxed frame with a page, whose script cannot access anything outside of the frame."""
    return (
        f'<iframe class="hs-frame" sandbox="allow-scripts allow-downloads" title="{escape(title)}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )
