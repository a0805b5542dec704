"""Records as pieces of the page. Every word from outside is escaped here; what can be clicked is a button."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from howsmooth.report.figure import save_figure
from howsmooth.report.rows import FINE, confidence_text, interval, number
from howsmooth.report.rows import token as shortened
from howsmooth.report.table import Column, Table


def progress(done: int, total: int, doing: str) -> str:
    """A bar and what is being computed.

    >>> progress(2, 6, "layer 2")
    '<div class="hs-run"><progress max="6" value="2" aria-label="progress"></progress> <span role="status">2 of 6: layer 2</span></div>'
    """  # noqa: E501
    return (
        f'<div class="hs-run"><progress max="{total}" value="{done}" aria-label="progress"></progress> '
        f'<span role="status">{done} of {total}: {escape(doing)}</span></div>'
    )


def said(text: str, kind: str = "note") -> str:
    """A line for the visitor; kind is note, done or warn.

    >>> said("got '<b>'", "warn")
    '<p class="hs-said hs-warn" role="alert">got &#x27;&lt;b&gt;&#x27;</p>'
    """
    return f'<p class="hs-said hs-{kind}" role="{"alert" if kind == "warn" else "status"}">{escape(text)}</p>'


def command_line(command: str) -> str:
    return f'<p class="hs-said hs-note">The same on the command line: <code>{escape(command)}</code></p>'


def table(declared: Table) -> str:
    """A table of the page, which scrolls where it is too wide; columns of the class hs-wide are left out on a phone."""
    return f'<div class="hs-scroll">{declared.html("hs-table")}</div>'


def strong(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)


def constants(records: Sequence[dict[str, Any]], chosen: int | None = None, *, heads: bool = False) -> str:
    """The constants of layers, each a button to look into it, or of one layer's heads."""
    if not records:
        return ""
    first, largest = records[0], max(record["value"] for record in records)
    what = f"Heads of layer {first['layer']}, each alone" if heads else f"Local Lipschitz constant, n = {first['n']}"
    return table(
        Table(
            what,
            [
                Column("head", lambda r: r["head"], when=heads),
                Column(
                    "layer",
                    lambda r: Markup(
                        '<button type="button" data-layer="{0}" aria-pressed="{1}">layer {0}</button>'
                    ).format(r["layer"], "true" if r["layer"] == chosen else "false"),
                    "left",
                    when=not heads,
                ),
                Column("constant", _constant),
                Column("", lambda r: Markup(bar(r["value"], largest)), "left", css="hs-wide"),
                Column(f"interval, {confidence_text(records)}", lambda r: interval(r["lower"], r["upper"]), "left"),
                Column("relative", lambda r: number(r["relative"], 3), css="hs-wide"),
                Column("worst direction sits on", lambda r: sits(**r["top_tokens"][0]), "left", css="hs-wide"),
            ],
            records,
        )
    )


def _constant(record: dict[str, Any]) -> Markup:
    status = (
        Markup("") if record["status"] in FINE else Markup(' <span class="hs-warn">{}</span>').format(record["status"])
    )
    return strong(number(record["value"])) + status


def sits(token: str, position: int, share: float) -> Markup:
    """A token with its place and its share."""
    return Markup('<code>{}</code> <span class="hs-faint">at {}, {:.0f} %</span>').format(
        shortened(token), position, 100 * share
    )


def bar(value: float, largest: float) -> str:
    share = 100 * value / largest if largest > 0 else 0
    return f'<span class="hs-bar" aria-hidden="true"><i style="width:{share:.1f}%"></i></span>'


def words(tokens: Sequence[str], shares: Sequence[float], chosen: int | None = None, caption: str = "") -> str:
    """The text, each token a button coloured by its share of the worst direction."""
    top = max(shares, default=0) or 1.0
    buttons = "".join(
        f'<button type="button" data-token="{i}" style="--share:{share / top:.3f}" '
        f'aria-pressed="{"true" if i == chosen else "false"}" aria-label="token {i}, {escape(word)}, '
        f'{percent(share)} of the worst direction" title="{i}: {percent(share)}">{escape(shortened(word, 30))}</button>'
        for i, (word, share) in enumerate(zip(tokens, shares, strict=True))
    )
    return f'<p class="hs-said hs-note">{escape(caption)}</p><div class="hs-words">{buttons}</div>'


def moved(record: dict[str, Any], share: float, whole: float) -> str:
    """What a token's share is, and what moving it alone does."""
    shares = record["response_shares"] or []
    where = sorted(range(len(shares)), key=lambda i: -shares[i])[:4]
    facts = [
        (
            "token",
            Markup('<code>{}</code> <span class="hs-faint">at {}, layer {}</span>').format(
                shortened(record["token"], 30), record["position"], record["layer"]
            ),
        ),
        ("share of the worst direction", percent(share)),
        (
            "moved alone, by ε",
            strong(number(record["value"]))
            + Markup(' ε at most <span class="hs-faint">({})</span>').format(
                interval(record["lower"], record["upper"])
            ),
        ),
        ("of the whole constant", f"{100 * record['value'] / whole:.0f} %" if whole > 0 else ""),
        ("arrives at", Markup(", ").join(sits(record["words"][i], i, shares[i]) for i in where if shares[i] >= 0.005)),
    ]
    shown = Table(
        "",
        [Column("", lambda fact: fact[0], "left"), Column("what perturbing it does", lambda fact: fact[1], "left")],
        facts,
    )
    return f'<div class="hs-facts">{table(shown)}</div>'


def percent(share: float) -> str:
    """A share with the digits it deserves.

    >>> percent(0.2512), percent(0.0213), percent(1e-7)
    ('25 %', '2.1 %', 'below 0.1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %" if share >= 0.001 else "below 0.1 %"


def picture(draw: Callable[[str], Any], alt: str) -> str:
    """A figure in light and in dark, of which the page shows the one that fits."""
    shown = []
    for theme in ("light", "dark"):
        drawn = io.BytesIO()
        save_figure(draw(theme), drawn)
        data = base64.b64encode(drawn.getvalue()).decode("ascii")
        shown.append(f'<img class="hs-{theme}" alt="{escape(alt)}" src="data:image/png;base64,{data}">')
    return f'<div class="hs-picture">{"".join(shown)}</div>'


def pictures(*shown: str) -> str:
    """Side by side where there is room."""
    return f'<div class="hs-pictures">{"".join(shown)}</div>'


def framed(page: str, title: str) -> str:
    """A page of its own inside this one: it runs its script and reaches nothing else."""
    return (
        f'<iframe class="hs-frame" sandbox="allow-scripts allow-downloads" title="{escape(title)}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )
