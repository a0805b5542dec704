"""Rows that tables and charts show, one for each map and length or bound; numbers and names as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from howsmooth.models.map_types import is_map, parse_map
from howsmooth.questions.measure import QUANTITIES
from howsmooth.records import CURVE
from howsmooth.records.columns import column, fields, group_by, split
from howsmooth.texts.corpora import corpus_name

if TYPE_CHECKING:
    from howsmooth.fits import Law

MAX_DECIMAL = 1e6  # larger bounds are printed as powers of ten
LOG10 = math.log(10)
_READER_WORDS = {  # what a bound that does not apply says in Python, and in a table
    "f.head(i)": "a single head (--heads)",
    "a bound of this_project": "one of this project’s bounds",
    "the symmetric part: gamma(head, symmetric=True)": "the symmetric part",
    "a score_bias": "a score bias",
}
ACCEPTED_STATUSES = (
    "converged",
    "residual",
    "lower bound only",
    "as released",
    "above rounding",
    "bound",
    "refused",
    "two sides",
)  # need no warning


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples of one number, of which every output shows the median, its interval and the range.

    Attributes:
        values: The value of each sample.
        lowers: The lower end of each sample's interval; None without one.
        uppers: The upper ends.
    """

    values: Sequence[float]
    lowers: Sequence[float | None] = ()
    uppers: Sequence[float | None] = ()

    @property
    def median(self) -> float:
        """Median over samples."""
        return median(self.values)

    @property
    def median_ends(self) -> tuple[float | None, float | None]:
        """Ends of the median's interval: the medians of the ends of the samples' intervals, which contain it.

        A median does not decrease if a value increases, so that the median lies between those of lower and upper ends.
        """
        return _median_of(self.lowers), _median_of(self.uppers)

    def range_text(self, digits: int = 4) -> str:
        """The smallest and the largest value; empty for one sample.

        Example:
            >>> Samples(values=(2.0, 1.0, 4.0)).range_text(2)
            '1.0 – 4.0'
        """
        return (
            f"{number(min(self.values), digits)} – {number(max(self.values), digits)}" if len(self.values) > 1 else ""
        )


@dataclass(frozen=True, kw_only=True)
class Row(Samples):
    """The samples of one map at one length.

    Attributes:
        model: Name of the model.
        layer: Index of the layer.
        head: Index of the head; None for all heads together.
        n: Length in tokens.
        worst: The record with the largest value.
        unfinished: Statuses of the samples that did not reach the tolerance.
    """

    model: str
    layer: int | None
    head: int | None
    n: int
    worst: dict[str, Any]
    unfinished: tuple[str, ...]

    @property
    def caveat(self) -> str:
        """How many samples did not reach the tolerance, and why; empty if all did."""
        if not self.unfinished:
            return ""
        return f"{len(self.unfinished)} of {len(self.values)}: {', '.join(sorted(set(self.unfinished)))}"


def _median_of(ends: Sequence[float | None]) -> float | None:
    known = [end for end in ends if end is not None]
    return median(known) if known and len(known) == len(ends) else None


def none_first(key: Iterable[Any]) -> tuple:
    """Return a sort key that puts None, as the layer of the whole model, before the numbers from 0.

    Example:
        >>> sorted([(1, 0), (None, 2), (0, None)], key=none_first)
        [(None, 2), (0, None), (1, 0)]
    """
    return tuple(-1 if part is None else part for part in key)


def measurement_rows(records: Iterable[dict[str, Any]]) -> list[Row]:
    """Group measurements by map and length, ordered by first occurrence of the model, layer, head and length."""
    groups = group_by(records, "model", "layer", "head", "n")
    models = list(dict.fromkeys(key[0] for key in groups))
    rows = []
    for key in sorted(groups, key=lambda key: (models.index(key[0]), *none_first(key[1:]))):
        group = groups[key]
        values, statuses, lowers, uppers = zip(*fields(group, "value", "status", "lower", "upper"), strict=True)
        worst, unfinished = group[values.index(max(values))], (s for s in statuses if s not in ACCEPTED_STATUSES)
        at = dict(zip(("model", "layer", "head", "n"), key, strict=True))
        rows.append(Row(**at, values=values, lowers=lowers, uppers=uppers, worst=worst, unfinished=tuple(unfinished)))
    return rows


@dataclass(frozen=True)
class BoundRow:
    """One bound of one map; `cells` maps each length to the record of the sample with the largest constant."""

    layer: int
    head: int | None
    bound: str
    side: str
    holds: str
    cells: dict[int, dict[str, Any]]

    @property
    def title(self) -> str:
        """The name for readers, with the sign of its side: "≤ local bound"."""
        return signed_title(next(iter(self.cells.values())))

    @property
    def is_local(self) -> bool:
        """Whether the bound is about the tokens that were measured, not about the worst case."""
        return self.holds == "at X"

    @property
    def mean_log_ratio(self) -> float:
        """Mean over lengths of log(bound / measured constant), by which bounds are sorted."""
        return sum(cell["log_ratio"] for cell in self.cells.values()) / len(self.cells)


def worst_samples(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each map, length and bound the record of the sample with the largest measured constant."""
    worst: dict[tuple, dict[str, Any]] = {}
    for record in records:
        key = (record["model"], record["layer"], record["head"], record["n"], record["bound"])
        if key not in worst or record["measured"]["value"] > worst[key]["measured"]["value"]:
            worst[key] = record
    return list(worst.values())


def bound_rows(records: Iterable[dict[str, Any]]) -> dict[tuple[int, int | None], list[BoundRow]]:
    """Return the bounds of each map (layer, head) of one model.

    Bounds at the measured tokens come first, then those on the worst case; within both, lower bounds come first, and
    each side is sorted by `BoundRow.mean_log_ratio`. Bounds that do not apply are omitted.
    """
    cells: dict[tuple, dict[int, dict[str, Any]]] = {}
    for record in worst_samples(records):
        if record["refused"] is None and None not in (record["log_value"], record["log_ratio"]):
            key = (record["layer"], record["head"], record["bound"], record["side"], record["holds"])
            cells.setdefault(key, {})[record["n"]] = record
    maps: dict[tuple[int, int | None], list[BoundRow]] = {}
    for key, by_length in cells.items():
        maps.setdefault(key[:2], []).append(BoundRow(*key, cells=by_length))
    for rows in maps.values():
        rows.sort(key=lambda row: (not row.is_local, row.side != "lower", row.mean_log_ratio))
    return dict(sorted(maps.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])))


def plural_of(name: str) -> str:
    """Return what several maps of a name are called in a title; a record of another version may have other maps.

    Example:
        >>> plural_of("chain:0..2")
        'layers in a row (0..2)'
    """
    if not is_map(name):
        return "maps"
    choice = parse_map(name)
    return choice.type.plural + (f" ({choice.argument})" if choice.argument else "")


def bound_title(record: dict[str, Any]) -> str:
    """Return the name of a bound for readers; records of earlier versions have only the function's name."""
    from howsmooth.bounds.titles import title_of  # the package of bounds imports torch, which tables do not need

    return record.get("title") or title_of(record["bound"])


def signed_title(record: dict[str, Any]) -> str:
    """Return the name of a bound for readers after the sign of its side.

    Example:
        >>> signed_title({"bound": "this_project.local", "side": "upper"})
        '≤ local bound'
    """
    return f"{'≥' if record['side'] == 'lower' else '≤'} {bound_title(record)}"


def input_word(record: dict[str, Any]) -> str:
    """Return what was measured: a text, or tokens where there was none, as with random ids or an image.

    Example:
        >>> input_word({"inputs": "text"}), input_word({"inputs": "ids"})
        ('text', 'tokens')
    """
    return "text" if record.get("inputs", "text") == "text" else "tokens"


def scope_text(record: dict[str, Any], holds: str | None = None) -> str:
    """Return in words where a bound holds, by default that of the record.

    Example:
        >>> scope_text({"holds": "at X"}), scope_text({"holds": "at X", "inputs": "ids"})
        ('at this text', 'at these tokens')
    """
    holds = record["holds"] if holds is None else holds
    if holds == "at X" and input_word(record) != "text":
        return "at these tokens"
    from howsmooth.bounds.titles import SCOPES

    return SCOPES.get(holds, holds)


def measured_with_bounds(
    bounds: Sequence[dict[str, Any]], measurements: Sequence[dict[str, Any]] = ()
) -> Iterable[dict[str, Any]]:
    """Yield each constant measured along with bounds once, unless there is a measurement of it as well."""
    names = (*CURVE, "n", "sample")
    seen = set(fields(measurements, *names))
    for key, record in zip(fields(bounds, *names), bounds, strict=True):
        if key not in seen:
            seen.add(key)
            yield {**record, **record["measured"]}


def refusals(records: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of bounds that do not apply by reason, the most common reason first."""
    reasons: dict[str, dict[str, None]] = {}
    for record in records:
        if record["refused"] is not None:
            reasons.setdefault(refusal_text(record["refused"]), {})[bound_title(record)] = None
    return {why: list(names) for why, names in sorted(reasons.items(), key=lambda item: -len(item[1]))}


def refusal_text(reason: str) -> str:
    """Return why a bound does not apply, with the titles of bounds and options in place of functions and arguments.

    Example:
        >>> refusal_text("expected one head, got 12 heads; take f.head(i) or castin2024.multi_head_upper")
        'expected one head, got 12 heads; take a single head (--heads) or “Castin et al. 2024, multi-head”'
    """
    from howsmooth.bounds.titles import TITLES

    for name, words in _READER_WORDS.items():
        reason = reason.replace(name, words)
    for name, title in sorted(TITLES.items(), key=lambda item: -len(item[0])):  # a name may begin another
        reason = reason.replace(name, f"“{title}”")
    return reason


def by_quantity(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], Sequence[dict[str, Any]]]:
    """Group records by (model, quantity, perturbed tokens), the unit of one table or chart."""
    found = fields(records, "model", "quantity", "tokens")
    return split(records, ((model, quantity or "lipschitz", tokens or "all") for model, quantity, tokens in found))


def laws_by_quantity(laws: dict[tuple, Law]) -> dict[tuple[str, str, str], dict[tuple, Law]]:
    """Group laws by the keys of `by_quantity`."""
    model, quantity, tokens = (CURVE.index(name) for name in ("model", "quantity", "tokens"))
    groups: dict[tuple[str, str, str], dict[tuple, Law]] = {}
    for key, law in laws.items():
        groups.setdefault((key[model], key[quantity] or "lipschitz", key[tokens] or "all"), {})[key] = law
    return groups


def symbol(quantity: str | None) -> str:
    """Return the symbol of a quantity, or its name if this version does not define it.

    Example:
        >>> symbol("lipschitz"), symbol("of another version")
        ('Lip', 'of another version')
    """
    known = QUANTITIES.get((quantity or "lipschitz").partition(":")[0])
    return str(quantity) if known is None else known.symbol


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with a fixed number of significant digits; trailing zeros are kept, so that columns align.

    Up to a million it is a decimal, with a comma before every three digits; beyond, in scientific notation.

    Example:
        >>> number(12.5), number(0.0031416), number(150.2, 2), number(2010.4, 3), number(123456.0), number(1.5e9, 3)
        ('12.50', '0.003142', '150', '2,010', '123,500', '1.50·10^9')
    """
    if value is None or not math.isfinite(value):
        return "none" if value is None else str(value).replace("inf", "∞")
    size = abs(float(f"{value:.{digits}g}"))
    if size < min(1000, 10**digits):
        return f"{value:#.{digits}g}".rstrip(".")
    power = math.floor(math.log10(size))
    if size < MAX_DECIMAL:
        return f"{float(f'{value:.{digits}g}'):,.{max(0, digits - 1 - power)}f}"
    return f"{value:.{digits - 1}e}".partition("e")[0] + f"·10^{power}"


def interval(lower: float | None, upper: float | None, digits: int = 5) -> str:
    """Format an interval with its ends rounded outwards, so that it contains the computed one.

    Without an upper end it is a lower bound; without a lower end there is no interval, and the text is empty.

    Example:
        >>> interval(10.931279, 10.938021), interval(10.931279, None)
        ('10.931 – 10.939', '≥ 10.931')
    """
    if lower is None:
        return ""
    if upper is None or upper == math.inf:
        return f"≥ {_outward(lower, digits, math.floor)}"
    return f"{_outward(lower, digits, math.floor)} – {_outward(upper, digits, math.ceil)}"


def _outward(value: float, digits: int, rounding: Callable[[float], int]) -> str:
    if not math.isfinite(value) or value <= 0:
        return number(value, digits)
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    # An exact decimal must not move by one unit because of the rounding error of the division.
    nearest = round(value / unit)
    count = nearest if math.isclose(nearest * unit, value, rel_tol=1e-14) else rounding(value / unit)
    return number(count * unit, digits)


def magnitude(log_value: float, digits: int = 3) -> str:
    """Format a number given by its logarithm, as a decimal or a power of ten depending on its size.

    Example:
        >>> magnitude(math.log(65.3)), magnitude(math.log(26912)), magnitude(5000.0), magnitude(-math.inf)
        ('65.3', '26,900', '10^2171', '0')
    """
    if log_value == -math.inf:
        return "0"
    if log_value >= math.log(MAX_DECIMAL):
        return f"10^{log_value / LOG10:.0f}"
    return number(math.exp(log_value), digits)


def ratio_text(log_ratio: float) -> str:
    """Format a ratio given by its logarithm.

    Example:
        >>> ratio_text(math.log(6.04)), ratio_text(math.log(0.123)), ratio_text(5000.0)
        ('×6.0', '×0.12', '×10^2171')
    """
    if not math.isfinite(log_ratio):
        return "×0" if log_ratio < 0 else "×∞"
    return f"×{magnitude(log_ratio, 3 if log_ratio > math.log(99.5) else 2)}"


def scientific(log_value: float) -> str:
    """Format a number given by its logarithm: a decimal up to a million, scientific notation beyond.

    Example:
        >>> scientific(math.log(65.3)), scientific(100.0), scientific(0.0)
        ('65.3', '2.69·10^43', '1.00')
    """
    if log_value < math.log(MAX_DECIMAL):
        return magnitude(log_value)
    power = math.floor(log_value / LOG10)
    return f"{math.exp(log_value - power * LOG10):.2f}·10^{power}"


def confidence_text(records: Sequence[dict[str, Any]]) -> str:
    """Format the smallest confidence of the intervals, or what they are without one.

    Example:
        >>> confidence_text([{"confidence": 0.999}])
        '99.9 % sure'
    """
    known = [confidence for confidence in column(records, "confidence") if confidence is not None]
    others = set(column(records, "certificate"))
    if not known and len(others) == 1 and None not in others:
        return str(*others)
    return f"{100 * min(known, default=1):.10g} % sure"


_SPECIAL = {"add": ", special tokens added", "none": ", no special tokens added"}


def text_name(record: dict[str, Any]) -> str:
    """Return the name of a text for headings, and whether special tokens were added to its chunks.

    Example:
        >>> text_name({"text": "embedded", "text_sha256": "9f", "special_tokens": "none"})
        'the embedded text, no special tokens added'
    """
    return corpus_name(str(record.get("text"))) + special_tokens_text(record)


def special_tokens_text(record: dict[str, Any]) -> str:
    """Describe whether special tokens were added to the text; empty if there is no text.

    Example:
        >>> special_tokens_text({"text_sha256": "9f", "special_tokens": "add"})
        ', special tokens added'
    """
    has_text = record.get("text_sha256") or record.get("texts")
    return _SPECIAL.get(record.get("special_tokens", ""), "") if has_text else ""


def counted(number: int, thing: str) -> str:
    """Return a number with a noun in singular or plural.

    Example:
        >>> counted(1, "text"), counted(2, "text")
        ('1 text', '2 texts')
    """
    return f"{number} {thing}" + ("" if number == 1 else "s")


def law_text(law: Law) -> str:
    """Format a fitted law with the interval of its exponent; empty if there is none or if it is rejected.

    Example:
        >>> from types import SimpleNamespace
        >>> law_text(SimpleNamespace(exponent=0.2512, constant=3.0, exponent_interval=(0.24, 0.26), shown=True))
        '3.00 n^0.25 (0.24 … 0.26)'
    """
    if not law.shown or law.constant is None:
        return ""
    interval = exponent_interval(law)
    return f"{number(law.constant, 3)} n^{exponent(law)}" + (f" ({interval})" if interval else "")


def exponent(law: Law | None) -> str:
    """Format the exponent of a law; empty if there is none or if the law is rejected."""
    return "" if law is None or not law.shown else _power(law.exponent)


def exponent_interval(law: Law | None) -> str:
    """Format the interval of the exponent; empty if there is none or if the law is rejected."""
    if law is None or not law.shown or law.exponent_interval is None:
        return ""
    return " … ".join(_power(end) for end in law.exponent_interval)


def _power(value: float | None) -> str:
    return "" if value is None else f"{round(value, 2) + 0.0:.2f}"  # no −0.00


def short_verdict(law: Law) -> str:
    """Return the verdict without its numbers, for legends."""
    return law.verdict.split(" (Δ")[0]


def token(word: str, limit: int = 14) -> str:
    r"""Return a printable token: white space and control characters are made visible, long tokens are shortened.

    Example:
        >>> token(" the"), token("\n"), token(" ")
        ('the', '⏎', '␣')
    """
    text = word.strip(" ") or "␣"
    text = "".join(char if char.isprintable() else {"\n": "⏎", "\t": "⇥"}.get(char, "�") for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def largest_shares(record: dict[str, Any], count: int = 2, min_share: float = 0.05) -> list[tuple[str, int, float]]:
    """Return (token, position, share) of the tokens with the largest shares in the worst direction.

    The first is always included, the others if their share is at least `min_share`.
    """
    top = record.get("top_tokens", [])[:count]
    return [
        (token(entry["token"]), entry["position"], entry["share"])
        for index, entry in enumerate(top)
        if index == 0 or entry["share"] >= min_share
    ]


def model_name(name: str) -> str:
    """Return the name of a model for headings; a local path is shortened to its last part.

    Example:
        >>> model_name("/models/tiny-gpt2/"), model_name("openai-community/gpt2")
        ('tiny-gpt2', 'openai-community/gpt2')
    """
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or name.startswith(".") else name


def map_name(layer: int | None, head: int | None) -> str:
    """Return the name of a map for titles and legends, such as "layer 3 head 5"."""
    return ("all layers" if layer is None else f"layer {layer}") + ("" if head is None else f" head {head}")
