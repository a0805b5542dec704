"""Results as HTML for notebooks: tables with intervals and statuses, tokens in colour, small charts.

`render` returns what `_repr_html_` of a result shows. The HTML has no script and loads nothing; all text is escaped.
Its colours are those of the report, light or dark like the notebook (Jupyter, VS Code, Colab) or else like the system.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from howsmooth.bounds.titles import title_of
from howsmooth.report.attacks import diff_html
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.embedding import coloured_tokens, panel_html
from howsmooth.report.rows import (
    ACCEPTED_STATUSES,
    confidence_text,
    interval,
    magnitude,
    map_name,
    number,
    ratio_text,
    scope_text,
    token,
)
from howsmooth.report.style import theme_variables
from howsmooth.report.table import Column, Table
from howsmooth.report.web_page import asset

if TYPE_CHECKING:
    from howsmooth.attack.ascent import Ascent
    from howsmooth.attack.constraints import Constraint
    from howsmooth.attack.feature.result import FeatureAttack
    from howsmooth.attack.tokens.attack import TokenAttack
    from howsmooth.bounds.ball import BallCertificate
    from howsmooth.bounds.bound import Bound, Bounds
    from howsmooth.lipschitz.estimate import Estimate
    from howsmooth.lipschitz.gains import TokenGains
    from howsmooth.measurements import Measurements

_MAX_RESTARTS = 6  # curves of an ascent
_MAX_LOG_RANGE = math.log(1e6)  # of the scale of bounds; what is larger is at its right end
# Jupyter, VS Code, Colab, Sphinx themes, and Material for MkDocs, in this order.
_LIGHT_PAGES = (
    'body[data-jp-theme-light="true"]',
    "body.vscode-light",
    'html[theme="light"]',
    'html[data-theme="light"]',
    'body[data-md-color-scheme="default"]',
)
_DARK_PAGES = (
    'body[data-jp-theme-light="false"]',
    "body.vscode-dark",
    'html[theme="dark"]',
    'html[data-theme="dark"]',
    'body[data-md-color-scheme="slate"]',
)


def render(result: Any) -> str:
    """Return the HTML that a notebook shows for a result.

    Args:
        result: An `Estimate`, `TokenGains`, `Bound`, `Bounds`, `BallCertificate`, `Ascent`, `FeatureAttack`,
            `TokenAttack` or `Measurements`.

    Raises:
        TypeError: The result is of another type.

    Example:
        >>> import math
        >>> from howsmooth.bounds import Bound
        >>> html = render(Bound("two", math.log(2), "upper", "at <X>", (), "an example"))
        >>> "at &lt;X&gt;" in html, "<script" in html
        (True, False)
    """
    for kind in type(result).__mro__:
        if kind.__name__ in _RENDERERS:
            return f'<div class="howsmooth"><style>{style()}</style>{_RENDERERS[kind.__name__](result)}</div>'
    raise TypeError(f"expected one of {', '.join(_RENDERERS)}, got {type(result).__name__}; print it instead")


def style() -> str:
    """Return the style sheet of the HTML: the variables of the report's two themes, then the rules."""
    light, dark = (theme_variables()[theme] for theme in ("light", "dark"))
    chosen = {theme: ", ".join(f"{page} .howsmooth" for page in pages) for theme, pages in _PAGES.items()}
    return (
        f".howsmooth {{{light}}} @media (prefers-color-scheme: dark) {{ .howsmooth {{{dark}}} }} "
        f"{chosen['light']} {{{light}}} {chosen['dark']} {{{dark}}}\n{asset('notebook.css')}"
    )


_PAGES = {"light": _LIGHT_PAGES, "dark": _DARK_PAGES}


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def _facts(facts: Sequence[tuple[str, Any]]) -> str:
    """Return a table of (name, value) without the pairs whose value is None."""
    table = Table.of_facts([fact for fact in facts if fact[1] is not None])
    return table.html("facts").replace('<thead><tr><th scope="col"></th><th scope="col"></th></tr></thead>', "")


def _status(status: str, remedy: str = "") -> Markup:
    if status in ACCEPTED_STATUSES:
        return Markup("{}").format(status)
    return Markup('<span class="warn">{}</span>').format(f"{status}: {remedy}" if remedy else status)


def _estimate_facts(estimate: Estimate) -> list[tuple[str, Any]]:
    singular = estimate.triplets.value.flatten().tolist()
    return [
        ("local Lipschitz constant", Markup("<b>{}</b>").format(number(estimate.value, 6))),
        (f"interval, {confidence_text([{'confidence': estimate.confidence}])}", _interval(estimate)),
        ("status", _status(estimate.status, estimate.remedy)),
        ("relative, σ₁‖X‖/‖f(X)‖", number(estimate.relative)),
        ("singular values", ", ".join(number(value) for value in singular) if len(singular) > 1 else None),
    ]


def _interval(estimate: Estimate) -> str:
    return interval(estimate.lower, estimate.upper, 6)


def _estimate(estimate: Estimate) -> str:
    shares = estimate.shares
    facts = _estimate_facts(estimate)
    if shares.dim() != 1:
        return _facts(facts)
    facts.append(
        (
            "worst direction: top tokens",
            ", ".join(
                f"{'' if word is None else token(word) + ' '}@{position} {_percent(share)}"
                for word, position, share in estimate.top_tokens()
            ),
        )
    )
    parts = [_facts(facts)]
    parts.append(coloured_tokens(_words(estimate.tokens, len(shares)), shares.tolist(), "Share of the worst direction"))
    if estimate.gains is not None:
        parts.append(_token_values(estimate.gains, estimate.tokens))
    return "".join(parts)


_GAINS = {
    "input": "Gain of each token: the amplification if it is perturbed alone",
    "output": "Gain of each output: its change if all tokens are perturbed",
    "own": "Gain of each output in its own token, with all that it attends to fixed",
}


def _token_values(gains: TokenGains, words: Sequence[str] | None) -> str:
    values = gains.value.tolist()
    return coloured_tokens(_words(words, len(values)), values, _GAINS[gains.of], as_percent=False)


def _words(words: Sequence[str] | None, n: int) -> Sequence[str]:
    """Return the tokens as strings; without, their positions."""
    return [str(position) for position in range(n)] if words is None else words


def _gains(gains: TokenGains) -> str:
    at = int(gains.value.argmax())
    name = f"{token(gains.tokens[at])} " if gains.tokens is not None else ""
    unfinished = sorted(set(gains.status) - set(ACCEPTED_STATUSES))
    facts = [
        ("largest gain", Markup("<b>{}</b> {}").format(number(gains.largest), f"{name}@{at}")),
        (
            f"interval, {confidence_text([{'confidence': gains.confidence}])}",
            interval(float(gains.lower[at]), float(gains.upper[at])),
        ),
        ("median gain", number(float(gains.value.median()))),
        ("status", _status(", ".join(unfinished) or "converged")),
    ]
    return _facts(facts) + _token_values(gains, gains.tokens)


def _bound(bound: Bound) -> str:
    return _facts(
        [
            (f"{bound.side} bound", Markup("{} <b>{}</b>").format(_sign(bound.side), magnitude(bound.log_value, 4))),
            ("bound", bound.title),
            ("name in Python", bound.name),
            ("holds", _scope(bound)),
            ("norm", None if bound.norm == "2" else bound.norm),
            ("conditions", "; ".join(bound.conditions) or None),
            ("reference", bound.reference),
        ]
    )


def _scope(bound: Bound) -> str:
    # There may be no text: the tokens are whatever the bound was given.
    return scope_text({"holds": bound.holds, "inputs": "normalised"})


def _sign(side: str) -> str:
    return "≥" if side == "lower" else "≤"


def _bounds(bounds: Bounds) -> str:
    applied, refused = bounds.applicable, bounds.refused
    logs = [bound.log_value for bound in applied if math.isfinite(bound.log_value)]
    low, high = min(logs, default=0.0), max(logs, default=1.0)
    ends = (low, min(high, low + _MAX_LOG_RANGE))
    beyond = " and beyond" if high > ends[1] else ""
    table = Table(
        "",
        [
            Column("bound", lambda b: f"{_sign(b.side)} {b.title}", "left", css="line"),
            Column("value", lambda b: magnitude(b.log_value, 4)),
            Column(
                f"{magnitude(ends[0])} to {magnitude(ends[1])}{beyond}, log scale",
                lambda b: _log_mark(b.log_value, ends, side=b.side),
                "left",
                when=bool(logs),
            ),
            Column("holds", _scope, "left", css="line"),
            Column("reference", lambda b: b.reference, "left"),
        ],
        sorted(applied, key=lambda b: (b.side != "lower", b.log_value)),
    )
    items = "".join(f"<li>{escape(str(refusal))}</li>" for refusal in refused)
    listed = f"<details><summary>{len(refused)} do not apply</summary><ul>{items}</ul></details>" if refused else ""
    return table.html() + listed


def _log_mark(log_value: float, ends: tuple[float, float], *, side: str) -> Markup:
    """Return a line with a mark at a value on a logarithmic scale, the same for all rows of a table."""
    span = ends[1] - ends[0] or 1.0
    at = 100 * min(1.0, max(0.0, (log_value - ends[0]) / span))
    mark = "▶" if side == "lower" else "◀"
    return Markup('<span class="log" style="--at: {:.1f}%"><i>{}</i></span>').format(at, mark)


def _ball(certificate: BallCertificate) -> str:
    facts = [
        ("Lipschitz constant", Markup("≤ <b>{}</b>").format(magnitude(certificate.bound.log_value, 4))),
        ("holds", f"{certificate.bound.holds}, ε = {certificate.eps:g}"),
        ("by", title_of(certificate.method)),
    ]
    parts = Table(
        "Every bound on the ball",
        [
            Column("bound", lambda part: title_of(part[0]), "left"),
            Column("value", lambda part: "" if part[1] is None else magnitude(math.log(part[1]), 4)),
            Column(
                "does not apply because",
                lambda part: certificate.reasons.get(part[0], ""),
                "left",
                when=bool(certificate.reasons),
            ),
        ],
        sorted(certificate.parts.items(), key=lambda part: math.inf if part[1] is None else part[1]),
    )
    return _facts(facts) + parts.html()


def _set(constraint: Constraint) -> str:
    radius = getattr(constraint, "radius", None)
    return f"the {type(constraint).__name__.lower()}" + ("" if radius is None else f" of radius {number(radius)}")


def _ascent(ascent: Ascent) -> str:
    start = float(ascent.start.max())
    facts = [
        ("largest constant found", Markup("<b>{}</b>").format(number(ascent.value, 6))),
        (f"interval, {confidence_text([{'confidence': ascent.estimate.confidence}])}", _interval(ascent.estimate)),
        ("status", _status(ascent.estimate.status, ascent.estimate.remedy)),
        ("best start", number(start)),
        ("above the best start", ratio_text(math.log(ascent.value / start)) if start > 0 else None),
        ("searched", f"{ascent.x.shape[0]} tokens in {_set(ascent.constraint)}"),
        ("steps, restarts", f"{ascent.steps}, {len(ascent.start)}"),
    ]
    best = ascent.values.argsort(descending=True)[:_MAX_RESTARTS].tolist()
    steps = list(range(len(ascent.path)))
    positive = bool((ascent.path > 0).all())
    curves = [Series(steps, ascent.path[:, i].tolist(), label=f"restart {i}", linestyle="solid") for i in best]
    chart = Chart("Ascent", Axis("step", integer_ticks=True), Axis("σ₁", "log" if positive else "linear"), curves)
    return _facts(facts) + (_chart(chart) if len(steps) > 1 else "")


def _chart(chart: Chart) -> str:
    name = f"howsmooth-{hashlib.sha256(repr(chart).encode()).hexdigest()[:12]}"  # a notebook has several results
    return str(panel_html(chart, 3.0, name=name, with_values=False))  # as Markup it would escape what precedes it


def _feature_attack(attack: FeatureAttack) -> str:
    energy = attack.perturbation.double().square().sum(-1)
    total = float(energy.sum())
    facts = [
        ("gain, change / ‖E‖", Markup("<b>{}</b>").format(number(attack.gain))),
        ("attack", attack.attack["name"]),
        ("objective", f"{attack.objective['name']}: {number(attack.clean)} → {number(attack.attacked)}"),
        ("budget", f"{attack.budget}; spent {number(attack.spent)} on {attack.touched} of {attack.n} tokens"),
        ("status", _status(attack.status)),
        ("calls of the map", attack.calls),
    ]
    shares = (energy / total).tolist() if total > 0 else []
    return _facts(facts) + coloured_tokens(_words(None, len(shares)), shares, "Share of the perturbation")


def _token_attack(attack: TokenAttack) -> str:
    succeeds = attack.objective.get("threshold") is not None
    facts = [
        ("objective", f"{attack.objective['name']}: {number(attack.clean)} → {number(attack.value)}"),
        ("succeeded", ("yes" if attack.success else "no") if succeeds else None),
        ("next token", None if attack.next_tokens is None else "{!r} → {!r}".format(*attack.next_tokens)),
        ("method", f"{attack.method['name']}, {attack.calls} of {attack.budget} calls"),
        ("warning", _status("the edited text reads as other tokens") if attack.round_trips is False else None),
        ("note", attack.notes.get("none")),
    ]
    return _facts(facts) + f'<p class="words">{diff_html(attack.as_record())}</p>'


def _measurements(found: Measurements) -> str:
    from howsmooth.report.charts import growth_charts
    from howsmooth.report.measurement_tables import summary_parts
    from howsmooth.report.page_tables import directions_of

    parts = [f"<p>{escape(repr(found))}</p>"]
    measured = [record for record in found if record["kind"] == "measurement"]
    laws = found.fits
    parts += [part.html() for part in summary_parts(measured, laws) if isinstance(part, Table)]
    if len({record["n"] for record in measured}) > 1:
        parts += [_chart(chart) for chart in growth_charts(measured, laws)]
    worst = max(directions_of(measured), key=lambda record: record["value"], default=None)
    if worst is not None:
        where = f"{map_name(worst['layer'], worst['head'])}, n = {worst['n']}"
        parts.append(coloured_tokens(worst["words"], worst["shares"], f"Share of the worst direction, {where}"))
    return "".join(parts)


_RENDERERS: dict[str, Callable[[Any], str]] = {
    "Estimate": _estimate,
    "TokenGains": _gains,
    "Bound": _bound,
    "Bounds": _bounds,
    "BallCertificate": _ball,
    "Ascent": _ascent,
    "FeatureAttack": _feature_attack,
    "TokenAttack": _token_attack,
    "Measurements": _measurements,
}
