"""Records as pieces of the page. Every word from outside is escaped here; what can be clicked is a button."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from howsmooth.report.rows import FINE, interval, number, token

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def progress(done: int, total: int, doing: str) -> str:
    """A bar and what is being computed.

    >>> progress(2, 6, "layer 2")
    '<div class="hs-run"><progress max="6" value="2" aria-label="progress"></progress> <span role="status">2 of 6: layer 2</span></div>'
    """  # noqa: E501
    return (f'<div class="hs-run"><progress max="{total}" value="{done}" aria-label="progress"></progress> '
            f'<span role="status">{done} of {total}: {escape(doing)}</span></div>')


def said(text: str, kind: str = "note") -> str:
    """A line for the visitor; kind is note, done or warn.

    >>> said("got '<b>'", "warn")
    '<p class="hs-said hs-warn" role="alert">got &#x27;&lt;b&gt;&#x27;</p>'
    """
    return f'<p class="hs-said hs-{kind}" role="{"alert" if kind == "warn" else "status"}">{escape(text)}</p>'


def command_line(command: str) -> str:
    return f'<p class="hs-said hs-note">The same on the command line: <code>{escape(command)}</code></p>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Cells are HTML already; columns whose head begins with > are right-aligned, with ~ left out on a phone."""
    classes = ["hs-right" * (">" in name[:2]) + " hs-wide" * ("~" in name[:2]) for name in head]
    top = "".join(f'<th scope="col" class="{c}">{escape(name.lstrip(">~"))}</th>'
                  for name, c in zip(head, classes, strict=True))
    lines = ("".join(f'<td class="{c}">{cell}</td>' for cell, c in zip(row, classes, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (f'<div class="hs-scroll"><table class="hs-table">{title}<thead><tr>{top}</tr></thead>'
            f'<tbody>{body}</tbody></table></div>')


def constants(records: Sequence[dict[str, Any]], chosen: int | None = None, *, heads: bool = False) -> str:
    """The constants of layers, each a button to look into it, or of one layer's heads."""
    if not records:
        return ""
    largest = max(record["value"] for record in records)
    rows = []
    for record in records:
        if heads:
            name = str(record["head"])
        else:
            pressed = "true" if record["layer"] == chosen else "false"
            name = (f'<button type="button" data-layer="{record["layer"]}" aria-pressed="{pressed}">'
                    f'layer {record["layer"]}</button>')
        top = record["top_tokens"][0]
        doubt = "" if record["status"] in FINE else f' <span class="hs-warn">{escape(record["status"])}</span>'
        rows.append([name, f'<b>{number(record["value"])}</b>{doubt}', bar(record["value"], largest),
                     interval(record["lower"], record["upper"]), number(record["relative"], 3),
                     f'<code>{escape(token(top["token"]))}</code> <span class="hs-faint">at {top["position"]}, '
                     f'{100 * top["share"]:.0f} %</span>'])
    first = records[0]
    what = f"Heads of layer {first['layer']}, each alone" if heads else f"Local Lipschitz constant, n = {first['n']}"
    return table([">head" if heads else "layer", ">constant", "~", "interval, 99.9 %", "~>relative",
                  "~worst direction sits on"], rows, what)


def bar(value: float, largest: float) -> str:
    share = 100 * value / largest if largest > 0 else 0
    return f'<span class="hs-bar" aria-hidden="true"><i style="width:{share:.1f}%"></i></span>'


def words(tokens: Sequence[str], shares: Sequence[float], chosen: int | None = None, caption: str = "") -> str:
    """The text, each token a button coloured by its share of the worst direction."""
    top = max(shares, default=0) or 1.0
    buttons = "".join(
        f'<button type="button" data-token="{i}" style="--share:{share / top:.3f}" '
        f'aria-pressed="{"true" if i == chosen else "false"}" aria-label="token {i}, {escape(word)}, '
        f'{percent(share)} of the worst direction" title="{i}: {percent(share)}">{escape(token(word, 30))}</button>'
        for i, (word, share) in enumerate(zip(tokens, shares, strict=True)))
    return f'<p class="hs-said hs-note">{escape(caption)}</p><div class="hs-words">{buttons}</div>'


def moved(record: dict[str, Any], share: float, whole: float) -> str:
    """What a token's share is, and what moving it alone does."""
    shares = record["response_shares"] or []
    where = sorted(range(len(shares)), key=lambda i: -shares[i])[:4]
    arrives = ", ".join(f'<code>{escape(token(record["words"][i]))}</code> <span class="hs-faint">at {i}, '
                        f'{100 * shares[i]:.0f} %</span>' for i in where if shares[i] >= 0.005)
    rows = [["token", f'<code>{escape(token(record["token"], 30))}</code> <span class="hs-faint">at '
                      f'{record["position"]}, layer {record["layer"]}</span>'],
            ["share of the worst direction", percent(share)],
            ["moved alone, by ε", f'<b>{number(record["value"])}</b> ε at most <span class="hs-faint">('
                                  f'{interval(record["lower"], record["upper"])})</span>'],
            ["of the whole constant", f'{100 * record["value"] / whole:.0f} %' if whole > 0 else ""],
            ["arrives at", arrives]]
    return f'<div class="hs-facts">{table(["", "what perturbing it does"], rows)}</div>'


def percent(share: float) -> str:
    """A share with the digits it deserves.

    >>> percent(0.2512), percent(0.0213), percent(1e-7)
    ('25 %', '2.1 %', 'below 0.1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %" if share >= 0.001 else "below 0.1 %"


def picture(draw: Callable[[str], Figure], alt: str) -> str:
    """A figure in light and in dark, of which the page shows the one that fits."""
    shown = []
    for theme in ("light", "dark"):
        figure, drawn = draw(theme), io.BytesIO()
        figure.savefig(drawn, format="png", facecolor=figure.get_facecolor())
        data = base64.b64encode(drawn.getvalue()).decode("ascii")
        shown.append(f'<img class="hs-{theme}" alt="{escape(alt)}" src="data:image/png;base64,{data}">')
    return f'<div class="hs-picture">{"".join(shown)}</div>'


def pictures(*shown: str) -> str:
    """Side by side where there is room."""
    return f'<div class="hs-pictures">{"".join(shown)}</div>'


def framed(page: str, title: str) -> str:
    """A page of its own inside this one: it runs its script and reaches nothing else."""
    return (f'<iframe class="hs-frame" sandbox="allow-scripts allow-downloads" title="{escape(title)}" '
            f'srcdoc="{escape(page)}"></iframe>')
