"""Attacks on the terminal: worst cases, certified balls, perturbed features, exchanged words with their difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from howsmooth.report.rows import (
    confidence_text,
    counted,
    interval,
    magnitude,
    model_name,
    number,
    special_tokens_text,
    times,
)
from howsmooth.report.table import Column, Table

CONTEXT = 8  # tokens shown on either side of an edit
GONE, NEW = "bold red strike", "bold green"
_CUT = " … "
_SETS = {
    "norm": "all that the normalisation in front can put out",
    "ball": "the ball of radius R",
    "sphere": "the sphere of radius R",
    "near": "all tokens within ε of the text's",
}
_SHOWN_MASSES = 4
_AIM = {"output": "the output", "next-token": "the next token", "cosine": "the embedding"}
_UNIT = {"output": "change", "next-token": "KL, nats", "cosine": "cosine"}
_OBJECTIVES = {
    "flip": "margin of another next token, logits",
    "kl": "KL of the next token, nats",
    "hidden": "relative change of hidden states",
    "cosine": "1 − cosine of embeddings",
}


def worst_case_table(records: Sequence[dict[str, Any]]) -> Table:
    """What ascent found, beside the text's own constant, the best start and the smallest upper bound."""
    first = records[0]
    return Table(
        f"{model_name(first['model'])}: the largest Lip that ascent found in {_SETS[first['within']]}"
        f"{special_tokens_text(first)}",
        [
            *_map_columns(first["head"] is not None),
            Column("on text", lambda r: number(r["on_text"]["value"]), style="dim"),
            Column("best start", lambda r: number(r["best_start"]), style="dim"),
            Column("found", lambda r: number(r["value"]), style="bold green"),
            Column(
                f"interval, {confidence_text(records)}", lambda r: interval(r["lower"], r["upper"]), "left", wrap=False
            ),
            Column("over text", lambda r: "" if r["over_text"] is None else times(log(r["over_text"]))),
            Column("upper bound", lambda r: magnitude(r["upper_bound"]["log_value"]), style="dim"),
            Column(
                "tokens per place",
                lambda r: (
                    " + ".join(map(str, r["masses"][:_SHOWN_MASSES]))
                    + (" + …" if len(r["masses"]) > _SHOWN_MASSES else "")
                ),
                "left",
                wrap=False,
            ),
        ],
        records,
    )


def ball_table(records: Sequence[dict[str, Any]]) -> Table:
    """Certified above, found below, and how far apart the two are."""
    return Table(
        f"{model_name(records[0]['model'])}: Lip for all tokens within ε of the text's"
        f"{special_tokens_text(records[0])}",
        [
            *_map_columns(records[0]["head"] is not None),
            Column("ε", lambda r: f"{r['eps']:g}", style="bold"),
            Column("at the text", lambda r: number(r["centre"]["value"]), style="dim"),
            Column("≥ found", lambda r: number(r["found"]["value"]), style="bold green"),
            Column("≤ certified", lambda r: magnitude(r["log_certified"], 4), style="bold green"),
            Column("apart", lambda r: "" if r["tightness"] is None else times(log(r["tightness"]))),
            Column("by", lambda r: r["method"], "left", wrap=False),
            Column("vacuous from ε =", lambda r: number(r["vacuous_eps"], 2), style="dim"),
        ],
        records,
        group=lambda r: (r["layer"], r["head"], r["n"]),
    )


def _map_columns(heads: bool) -> list[Column]:
    return [
        Column("layer", lambda r: r["layer"], key=True),
        Column("head", lambda r: r["head"], when=heads, key=True),
        Column("n", lambda r: r["n"], key=True),
    ]


def feature_table(records: Sequence[dict[str, Any]]) -> Table:
    """Attacks on features, one row each, those of one place and budget together."""
    first = records[0]
    unit = "‖X‖" if first["budget"]["norm"] == "frobenius" else "the mean |x_i|, for each token"
    few = "" if first["budget"]["tokens"] is None else f", on {first['budget']['tokens']} tokens at most"

    def place(name: str) -> Column:
        found = {record[name] for record in records}
        return Column(name, lambda r: str(r[name]), when=found != {None} and (len(found) > 1 or name in ("layer", "n")))

    return Table(
        f"{model_name(first['model'])}, {first['map']}: attacks on {_AIM[first['objective']['name']]}; budgets are "
        f"shares of {unit}{few}{special_tokens_text(first)}",
        [
            *map(place, ("layer", "head", "n", "sample")),
            Column("budget", lambda r: f"{r['share']:g}", style="bold"),
            Column(
                "attack",
                lambda r: r["attack"]["name"] + (f", n = {r['attacked_n']}" if r["attacked_n"] != r["n"] else ""),
                "left",
                wrap=False,
            ),
            Column("gain", lambda r: number(r["gain"]) + (" !" if r["status"] != "fine" else ""), style="bold green"),
            Column("σ₁", lambda r: number(r["sigma"]["value"]), style="dim"),
            Column("of σ₁", lambda r: f"{100 * r['gain'] / r['sigma']['value']:.0f} %" if r["sigma"]["value"] else ""),
            Column("over noise", lambda r: f"× {number(r['gain'] / r['noise_gain'], 3)}" if r["noise_gain"] else ""),
            Column(
                "≤ certified",
                lambda r: number(r["certified"]),
                style="dim",
                when=any(record["certified"] is not None for record in records),
            ),
            Column(_UNIT[first["objective"]["name"]], _reading),
            Column("calls", lambda r: r["calls"], style="dim"),
        ],
        records,
        group=lambda r: tuple(r[name] for name in ("layer", "head", "n", "sample", "share")),
    )


def _reading(record: dict[str, Any]) -> str:
    text, flips = number(record["attacked"]), record.get("flips")
    return text if not flips else f"{text}, flipped" if record["positions"] == 1 else f"{text}, {flips} flips"


def token_tables(records: Sequence[dict[str, Any]]) -> RenderableType:
    """The best attack on each text, then the methods."""
    return Group(*best_per_text(records), methods_table(records))


def best_per_text(records: Sequence[dict[str, Any]]) -> list[Text]:
    """For every text its best attack: a success with the fewest calls, or else the largest value."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["piece"], []).append(record)
    return [
        attack_lines(min(group, key=lambda r: (not r["success"], r["calls"] if r["success"] else -r["value"])))
        for group in groups.values()
    ]


def attack_lines(record: dict[str, Any]) -> Text:
    """One attack as a headline and the difference beneath it."""
    done = record["success"]
    verdict = (
        ("flipped" if record["objective"]["name"] == "flip" else "succeeded")
        if done
        else ("best found" if record["edits"] else "no edit keeps to the limits")
    )
    if not record["verified"]:
        verdict = "NOT VERIFIED"
    lines = Text()
    lines.append(f"{record['text']} {record['piece']}", style="bold cyan")
    lines.append(f"  {record['method']['name']}: ", style="dim")
    lines.append(verdict, style="bold green" if done and record["verified"] else "yellow")
    lines.append(f" in {record['calls']} calls, {record['clean']:.3g} → {record['value']:.3g}", style="dim")
    if record["says"]:
        lines.append("   next: {!r} → {!r}".format(*record["says"]))
    if record["round_trips"] is False:
        lines.append("   reads as other tokens", style="yellow")
    return lines.append("\n  ").append(diff_text(record)).append("\n")


def methods_table(records: Sequence[dict[str, Any]]) -> Table:
    """Methods at the same edit budget and the same limit of calls: successes, and successes per call."""
    first = records[0]
    judged = first["objective"]["threshold"] is not None
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["method"]["name"], []).append(record)

    def mean(rows: list[dict[str, Any]], key: str) -> float:
        return sum(record[key] for record in rows) / len(rows)

    def calls(rows: list[dict[str, Any]]) -> int:
        return sum(record["calls"] for record in rows)

    def wins(rows: list[dict[str, Any]]) -> int:
        return sum(record["success"] and record["verified"] for record in rows)

    def captured(rows: list[dict[str, Any]]) -> str:
        shares = [record["notes"]["inversion"]["share"] for record in rows if "inversion" in record["notes"]]
        return f"{100 * sum(shares) / len(shares):.2g} %" if shares else ""

    return Table(
        f"{model_name(first['model'])}: {_OBJECTIVES[first['objective']['name']]}; "
        f"{counted(first['limits']['edits'], 'edit')}, at most {first['budget']} calls",
        [
            Column("method", lambda rows: rows[0]["method"]["name"], "left", style="bold"),
            Column("texts", len),
            Column("verified successes", wins, style="bold green", when=judged),
            Column("calls", calls),
            Column("per 100 calls", lambda rows: f"{100 * wins(rows) / calls(rows):.1f}", when=judged),
            Column("mean value", lambda rows: f"{mean(rows, 'value'):.3g}"),
            Column(
                "share captured", captured, style="dim", when=any("inversion" in record["notes"] for record in records)
            ),
            Column("s per text", lambda rows: f"{mean(rows, 'seconds'):.1f}", style="dim"),
        ],
        list(groups.values()),
    )


def diff_parts(record: dict[str, Any], context: int | None = CONTEXT) -> Iterator[tuple[str, str]]:
    """(text, kind) in order, kind one of same, gone, new, cut. `context` None keeps the whole text.

    >>> record = {"words": ["the", "old", "bridge"], "new_words": ["new"],
    ...           "edits": [{"position": 1, "kind": "substitute", "token": 7}]}
    >>> list(diff_parts(record))
    [('the', 'same'), ('old', 'gone'), ('new', 'new'), ('bridge', 'same')]
    """
    edits = {
        edit["position"]: (edit["kind"], word) for edit, word in zip(record["edits"], record["new_words"], strict=True)
    }
    words, cut = record["words"], False
    for i, word in enumerate(words):
        kind, new = edits.get(i, (None, ""))
        if kind is None and context is not None and not any(abs(i - place) <= context for place in edits):
            if not cut:
                yield _CUT.strip(), "cut"
            cut = True
            continue
        cut = False
        if kind == "substitute":
            yield word, "gone"
            yield new, "new"
        elif kind is None:
            yield word, "same"
        else:  # inserted before, or one copy more
            yield new, "new"
            yield word, "same"


def diff_text(record: dict[str, Any], context: int | None = CONTEXT) -> Text:
    """The difference for a terminal: red and struck out what went, green what came; without colours [−gone−] {+new+}.

    The marks stand in both, so that nothing is lost in a pipe or to a reader who does not see colours.
    """
    shown = Text()
    for index, (word, kind) in enumerate(diff_parts(record, context)):
        shown.append(" " if index else "")
        if kind == "gone":
            shown.append(f"[-{word}-]", style=GONE)
        elif kind == "new":
            shown.append(f"{{+{word}+}}", style=NEW)
        else:
            shown.append(word, style="dim" if kind == "cut" else "")
    return shown


def diff_html(record: dict[str, Any], context: int | None = None) -> str:
    """The difference for a page, as <del> and <ins>; every word escaped.

    >>> record = {"words": ["a", "<b>"], "new_words": ["c"], "edits": [{"position": 1, "kind": "insert", "token": 3}]}
    >>> diff_html(record)
    'a <ins>c</ins> &lt;b&gt;'
    """
    tags = {"gone": "<del>{}</del>", "new": "<ins>{}</ins>"}
    return " ".join(tags.get(kind, "{}").format(escape(word)) for word, kind in diff_parts(record, context))
