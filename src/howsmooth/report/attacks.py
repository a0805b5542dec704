"""Tables and charts of attacks: worst cases, certified balls, perturbed features, edited texts and their difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import inf, log
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from howsmooth.records.columns import group_by
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.charts import LENGTH_LABEL, LIPSCHITZ_LABEL, is_drawable, samples_series
from howsmooth.report.rows import (
    ACCEPTED_STATUSES,
    confidence_text,
    counted,
    input_word,
    interval,
    magnitude,
    map_name,
    model_name,
    number,
    ratio_text,
    special_tokens_text,
)
from howsmooth.report.table import Column, Table

CONTEXT_TOKENS = 8  # shown on either side of an edit
DELETED_STYLE, INSERTED_STYLE = "bold red strike", "bold green"
_ELLIPSIS = "…"
_SETS = {
    "norm": "all that the normalisation in front can put out",
    "ball": "the ball of radius R",
    "sphere": "the sphere of radius R",
    "near": "all tokens within ε of {}",
}
_BALLS = {"token": "all tokens within ε of {}", "frobenius": "all tokens X' with ‖X' − X‖ ≤ ε around {}"}
_MAX_MASSES = 4
_TARGETS = {"output": "the output", "next-token": "the next token", "cosine": "the embedding"}
_UNITS = {"output": "change", "next-token": "KL, nats", "cosine": "cosine"}
_OBJECTIVES = {
    "flip": "margin of another next token, logits",
    "kl": "KL of the next token, nats",
    "hidden": "relative change of hidden states",
    "cosine": "1 − cosine of embeddings",
}


def worst_case_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table of worst cases for each model and set of tokens.

    Each has the constants on the text, at the best start and after ascent, and an upper bound.
    """
    return [
        _worst_cases(group) for group in _grouped(records, lambda r: (r["model"], r.get("special_tokens"), r["within"]))
    ]


def _worst_cases(records: Sequence[dict[str, Any]]) -> Table:
    first, word = records[0], input_word(records[0])
    return Table(
        f"{model_name(first['model'])}: the largest Lip that ascent found in "
        f"{_SETS.get(first['within'], first['within']).replace('{}', _centre(first))}{special_tokens_text(first)}",
        [
            *_map_columns(records),
            Column(f"on {word}", lambda r: number(r["on_text"]["value"]), style="dim"),
            Column("best start", lambda r: number(r["best_start"]), style="dim"),
            Column("found", lambda r: number(r["value"]), style="bold green"),
            Column(
                f"interval, {confidence_text(records)}", lambda r: interval(r["lower"], r["upper"]), "left", wrap=False
            ),
            Column(f"over {word}", lambda r: _ratio(r["over_text"])),
            Column("upper bound", lambda r: _magnitude(r["upper_bound"]["log_value"]), style="dim"),
            Column("tokens per point", lambda r: _masses(r.get("masses") or []), "left", wrap=False),
        ],
        records,
    )


def _centre(record: dict[str, Any]) -> str:
    return "the text's" if input_word(record) == "text" else "those measured"


def _ratio(value: float | None) -> str:
    return ratio_text(log(value)) if value is not None and 0 < value < inf else ""


def _magnitude(log_value: float | None, digits: int = 3) -> str:
    return "" if log_value is None else magnitude(log_value, digits)


def _masses(masses: Sequence[int]) -> str:
    return " + ".join(map(str, masses[:_MAX_MASSES])) + (" + …" if len(masses) > _MAX_MASSES else "")


def ball_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table of balls for each model: the certified upper bound, the largest constant found, their ratio."""

    def key(record: dict[str, Any]) -> tuple[Any, ...]:
        return record["model"], record.get("special_tokens"), record.get("norm", "token")

    return [_balls(group) for group in _grouped(records, key)]


def _balls(records: Sequence[dict[str, Any]]) -> Table:
    word, of = input_word(records[0]), _centre(records[0])
    return Table(
        f"{model_name(records[0]['model'])}: Lip for {_BALLS[records[0].get('norm', 'token')].format(of)}"
        f"{special_tokens_text(records[0])}",
        [
            *_map_columns(records),
            Column("ε", lambda r: f"{r['eps']:g}", style="bold"),
            Column(f"at the {word}", lambda r: number(r["centre"]["value"]), style="dim"),
            Column("≥ found", lambda r: number(r["found"]["value"]), style="bold green"),
            Column("≤ certified", lambda r: _magnitude(r["log_certified"], 4), style="bold green"),
            Column("ratio", lambda r: "" if r["tightness"] is None else f"×{number(r['tightness'], 3)}"),
            Column("by", lambda r: r["method"], "left", wrap=False),
            Column(
                "vacuous from ε =",
                lambda r: number(r["vacuous_eps"], 2),
                style="dim",
                when=all(r["vacuous_eps"] is not None for r in records),
            ),
        ],
        records,
        group=lambda r: (r["layer"], r["head"], r["n"]),
    )


def _grouped(records: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> list[list[dict[str, Any]]]:
    """Return the records in groups of equal keys, so that a title holds for its whole table."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _map_columns(records: Sequence[dict[str, Any]]) -> list[Column]:
    heads = any(record["head"] is not None for record in records)
    return [
        Column("layer", lambda r: r["layer"], key=True),
        Column("head", lambda r: r["head"], when=heads, key=True),
        Column("n", lambda r: r["n"], key=True),
    ]


def feature_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table of attacks on features for each model, map, objective and norm of budgets."""
    return [
        _feature_attacks(group)
        for group in _grouped(
            records,
            lambda r: (
                *(r[name] for name in ("model", "map", "special_tokens")),
                r["objective"]["name"],
                *(r["budget"][name] for name in ("norm", "tokens")),
            ),
        )
    ]


def _feature_attacks(records: Sequence[dict[str, Any]]) -> Table:
    first = records[0]
    unit = "‖X‖" if first["budget"]["norm"] == "frobenius" else "the mean |x_i|, for each token"
    sparsity = "" if first["budget"]["tokens"] is None else f", on {first['budget']['tokens']} tokens at most"

    def field(name: str) -> Column:
        values = {record[name] for record in records}
        return Column(
            name, lambda r: str(r[name]), when=values != {None} and (len(values) > 1 or name in ("layer", "n"))
        )

    return Table(
        f"{model_name(first['model'])}, {first['map']}: attacks on {_TARGETS[first['objective']['name']]}; budgets are "
        f"shares of {unit}{sparsity}{special_tokens_text(first)}",
        [
            *map(field, ("layer", "head", "n", "sample")),
            Column("budget", lambda r: f"{r['share']:g}", style="bold"),
            Column(
                "attack",
                lambda r: r["attack"]["name"] + (f", n = {r['attacked_n']}" if r["attacked_n"] != r["n"] else ""),
                "left",
                wrap=False,
            ),
            Column(
                "gain",
                lambda r: number(r["gain"]) + (" !" if r["status"] not in ACCEPTED_STATUSES else ""),
                style="bold green",
            ),
            Column("σ₁", lambda r: number(r["sigma"]["value"]), style="dim"),
            Column("of σ₁", lambda r: _share(r["gain"], r["sigma"]["value"])),
            Column(
                "over noise",
                lambda r: f"× {number(r['gain'] / r['noise_gain'], 3)}" if r["gain"] and r["noise_gain"] else "",
            ),
            Column(
                "≤ certified",
                lambda r: number(r["certified"]),
                style="dim",
                when=any(record["certified"] is not None for record in records),
            ),
            Column(_UNITS[first["objective"]["name"]], _attacked_value),
            Column("calls", lambda r: r["calls"], style="dim"),
        ],
        records,
        group=lambda r: tuple(r[name] for name in ("layer", "head", "n", "sample", "share")),
    )


def _share(gain: float | None, sigma: float) -> str:
    return f"{100 * gain / sigma:.0f} %" if gain is not None and sigma else ""


def _attacked_value(record: dict[str, Any]) -> str:
    text, flips = number(record["attacked"]), record.get("flips")
    return text if not flips else f"{text}, flipped" if record["positions"] == 1 else f"{text}, {flips} flips"


def token_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the best attack on each text and the table of methods."""
    return [*best_per_text(records), methods_table(records)]


def best_per_text(records: Sequence[dict[str, Any]]) -> list[Text]:
    """Return the best attack on each text: the success with the fewest calls, or else the largest value."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["sample"], []).append(record)
    return [
        attack_lines(min(group, key=lambda r: (not r["success"], r["calls"] if r["success"] else -r["value"])))
        for group in groups.values()
    ]


def attack_lines(record: dict[str, Any]) -> Text:
    """Return one attack as a headline with the difference of the texts below it."""
    succeeded = record["success"]
    verdict = (
        ("flipped" if record["objective"]["name"] == "flip" else "succeeded")
        if succeeded
        else ("best found" if record["edits"] else "no edit keeps to the limits")
    )
    if not record["verified"]:
        verdict = "NOT VERIFIED"
    lines = Text()
    lines.append(f"{record['text']} {record['sample']}", style="bold cyan")
    lines.append(f"  {record['method']['name']}: ", style="dim")
    lines.append(verdict, style="bold green" if succeeded and record["verified"] else "yellow")
    lines.append(f" in {record['calls']} calls, {record['clean']:.3g} → {record['value']:.3g}", style="dim")
    if record["next_tokens"]:
        lines.append("   next: {!r} → {!r}".format(*record["next_tokens"]))
    if record["round_trips"] is False:
        lines.append("   reads as other tokens", style="yellow")
    return lines.append("\n  ").append(diff_text(record)).append("\n")


def methods_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of methods at the same edit budget and call limit: successes, and successes per call."""
    first = records[0]
    has_threshold = first["objective"]["threshold"] is not None
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["method"]["name"], []).append(record)

    def mean(rows: list[dict[str, Any]], key: str) -> float:
        return sum(record[key] for record in rows) / len(rows)

    def calls(rows: list[dict[str, Any]]) -> int:
        return sum(record["calls"] for record in rows)

    def successes(rows: list[dict[str, Any]]) -> int:
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
            Column("verified successes", successes, style="bold green", when=has_threshold),
            Column("calls", calls),
            Column("per 100 calls", lambda rows: f"{100 * successes(rows) / calls(rows):.1f}", when=has_threshold),
            Column("mean value", lambda rows: f"{mean(rows, 'value'):.3g}"),
            Column(
                "share captured", captured, style="dim", when=any("inversion" in record["notes"] for record in records)
            ),
            Column("s per text", lambda rows: f"{mean(rows, 'seconds'):.1f}", style="dim"),
        ],
        list(groups.values()),
    )


def diff_parts(record: dict[str, Any], context: int | None = CONTEXT_TOKENS) -> Iterator[tuple[str, str]]:
    """Yield (text, change) of the parts of a difference; change is "same", "deleted", "inserted" or "omitted".

    Args:
        record: Record of an attack on tokens.
        context: Tokens to keep on either side of an edit; None for all.

    Example:
        >>> record = {"words": ["the", "old", "bridge"], "new_words": ["new"],
        ...           "edits": [{"position": 1, "operation": "substitute", "token": 7}]}
        >>> list(diff_parts(record))
        [('the', 'same'), ('old', 'deleted'), ('new', 'inserted'), ('bridge', 'same')]
    """
    edits = {
        edit["position"]: (edit["operation"], word)
        for edit, word in zip(record["edits"], record["new_words"], strict=True)
    }
    words, omitting = record["words"], False
    for i, word in enumerate(words):
        change, new = edits.get(i, (None, ""))
        if change is None and context is not None and not any(abs(i - position) <= context for position in edits):
            if not omitting:
                yield _ELLIPSIS, "omitted"
            omitting = True
            continue
        omitting = False
        if change == "substitute":
            yield word, "deleted"
            yield new, "inserted"
        elif change is None:
            yield word, "same"
        else:  # inserted before the word, or the word duplicated
            yield new, "inserted"
            yield word, "same"


def diff_text(record: dict[str, Any], context: int | None = CONTEXT_TOKENS) -> Text:
    """Return the difference for a terminal: deleted words as [-word-] in red, inserted words as {+word+} in green.

    The brackets are always there, so that the difference is readable without colours.
    """
    shown = Text()
    for index, (word, change) in enumerate(diff_parts(record, context)):
        shown.append(" " if index else "")
        if change == "deleted":
            shown.append(f"[-{word}-]", style=DELETED_STYLE)
        elif change == "inserted":
            shown.append(f"{{+{word}+}}", style=INSERTED_STYLE)
        else:
            shown.append(word, style="dim" if change == "omitted" else "")
    return shown


def diff_html(record: dict[str, Any], context: int | None = None) -> str:
    """Return the difference as HTML with `<del>` and `<ins>`; every word is escaped.

    Example:
        >>> edits = [{"position": 1, "operation": "insert", "token": 3}]
        >>> diff_html({"words": ["a", "<b>"], "new_words": ["c"], "edits": edits})
        'a <ins>c</ins> &lt;b&gt;'
    """
    tags = {"deleted": "<del>{}</del>", "inserted": "<ins>{}</ins>"}
    return " ".join(tags.get(change, "{}").format(escape(word)) for word, change in diff_parts(record, context))


Records = Sequence[dict[str, Any]]


def worst_case_charts(records: Records) -> list[Chart]:
    """Return the largest constant found within a set and that of the text, against n, one chart for each model."""
    charts = []
    for (model, within), group in group_by(records, "model", "within").items():
        series = []
        for index, (key, of_map) in enumerate(group_by(group, "layer", "head").items()):
            texts = [{"n": record["n"], **record["on_text"]} for record in of_map]
            series += [
                samples_series(of_map, f"{map_name(*key)}: found", colour=index, marker_index=index),
                samples_series(
                    texts, f"{map_name(*key)}: text", colour=index, marker_index=index, linestyle="dashed", **_HOLLOW
                ),
            ]
        lengths = sorted({record["n"] for record in group})
        title = f"{model_name(model)}: worst case within {within}"
        charts.append(Chart(title, Axis(LENGTH_LABEL, "log", lengths), Axis(LIPSCHITZ_LABEL, "log"), series))
    return charts


def ball_charts(records: Records) -> list[Chart]:
    """Return the certified and the largest found constant of balls against their radius, one chart for each model."""
    charts = []
    for (model,), group in group_by(records, "model").items():
        series = []
        for index, (key, of_map) in enumerate(group_by(group, "layer", "head").items()):
            found = [{**record, "found": record["found"]["value"]} for record in of_map]
            style = {"colour": index, "marker_index": index}
            name = map_name(*key)
            series += [
                _samples(of_map, "eps", "certified", f"{name}: certified", linestyle="dashed", **style, **_HOLLOW),
                _samples(found, "eps", "found", f"{name}: found", **style),
            ]
        charts.append(Chart(model_name(model), Axis("radius ε", "log"), Axis(LIPSCHITZ_LABEL, "log"), series))
    return charts


def feature_charts(records: Records) -> list[Chart]:
    """Return the gain of each attack as a share of σ₁ against the budget, over all maps and samples."""
    charts = []
    shares = [
        {
            **record,
            "attack": record["attack"]["name"],
            "objective": record["objective"]["name"],
            "of_sigma": record["gain"] / record["sigma"]["value"],
        }
        for record in records
        if record["gain"] and record["sigma"]["value"]
    ]
    for (model, name, objective), group in group_by(shares, "model", "map", "objective").items():
        series = [
            _samples(of_attack, "share", "of_sigma", attack)
            for (attack,), of_attack in group_by(group, "attack").items()
        ]
        title = f"{model_name(model)}, {name}: {objective}"
        charts.append(Chart(title, Axis("budget (share)", "log"), Axis("gain / σ₁", "log"), series))
    return charts or [_EMPTY]


def token_charts(records: Records) -> list[Chart]:
    """Return what each attack on a text attained against its calls; marks of failures are hollow."""
    charts = []
    for (model,), group in group_by(records, "model").items():
        series = []
        named = [{**record, "method": record["method"]["name"]} for record in group]
        for index, ((method,), of_method) in enumerate(group_by(named, "method").items()):
            for success in (True, False):
                drawn = [r for r in of_method if (r["success"] and r["verified"]) == success and r["value"] is not None]
                style: dict[str, Any] = {"marker_index": index, "colour": index, "hollow_markers": not success}
                label = method if success or len(drawn) == len(of_method) else ""
                if drawn:
                    series.append(
                        Series(
                            [r["calls"] for r in drawn],
                            [r["value"] for r in drawn],
                            label=label,
                            show_markers=True,
                            **style,
                        )
                    )
        notes = ["hollow: not successful, or not verified"]
        y = Axis(f"objective: {group[0]['objective']['name']}")
        charts.append(Chart(model_name(model), Axis("model calls", integer_ticks=True), y, series, notes=notes))
    return charts


_HOLLOW: dict[str, Any] = {"hollow_markers": True}
_EMPTY = Chart("attacks", Axis(""), Axis(""), message="no attack changed the output by a finite amount")


def _samples(records: Records, x: str, y: str, label: str, **style: Any) -> Series:
    """Return the points that a logarithmic scale can show, with a line through their medians."""
    drawn = [record for record in records if is_drawable(record, y) and record[x] > 0]
    options: dict[str, Any] = {"has_samples": True, "show_markers": True, "linestyle": "solid", **style}
    return Series([record[x] for record in drawn], [record[y] for record in drawn], label=label, **options)
