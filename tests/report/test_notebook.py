"""What notebooks show: values, intervals, statuses; tokens on the colour scale of the report; escaped, no scripts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

import howsmooth
from howsmooth import attack, bounds
from howsmooth.attack.feature import Budget, SingularDirection, Target, run
from howsmooth.attack.tokens import Cosine, attack_text
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.embedding import MAX_TOKENS, coloured_tokens
from howsmooth.report.notebook import _chart, _log_mark, render, style
from howsmooth.report.rows import interval, number
from howsmooth.report.style import SHARE_DECADES, THEMES, intensities, theme_variables
from tests.attention.cases import layer, normal
from tests.browser import Page, browser, require_chromium
from tests.studies.conftest import TEXT, save_tiny

WORDS = ["[CLS]", "a", "<b>&\"'", "[SEP]"]
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """One result of each kind."""
    f, x = layer("two heads"), normal(50, 4, 6)
    model = howsmooth.load(save_tiny(tmp_path_factory.mktemp("tiny-model")))
    estimate, gains = howsmooth.local_lipschitz(f, x), howsmooth.token_gains(f, x)
    radius = float(x.norm(dim=-1).max())
    every = bounds.every(f, len(x), radius, x)
    return {
        "Estimate": estimate.with_tokens(WORDS, gains),
        "TokenGains": gains.with_tokens(WORDS),
        "Bounds": every,
        "Bound": every.applicable[0],
        "BallCertificate": bounds.certify_ball(f, x, 0.01, at_center=estimate.upper),
        "Ascent": attack.worst_case(f, 4, attack.Ball(radius), restarts=2, steps=3),
        "FeatureAttack": run(SingularDirection(), Target(f, x), Budget(0.1)),
        "TokenAttack": attack_text(model, "the river moves slowly", objective=Cosine(), calls=4),
        "Measurements": howsmooth.measure(model, TEXT, layers=[0, 1], lengths=[4, 6, 8, 12], samples=1),
    }


class Elements(HTMLParser):
    """The tags and attributes of some HTML, and the tags that are not closed."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


KINDS = [
    "Estimate",
    "TokenGains",
    "Bounds",
    "Bound",
    "BallCertificate",
    "Ascent",
    "FeatureAttack",
    "TokenAttack",
    "Measurements",
]


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_well_formed_and_loads_nothing(results, kind):
    assert type(results[kind]).__name__ == kind
    html = results[kind]._repr_html_()
    found = Elements(html)
    assert found.open == [] and html == render(results[kind])
    assert not {"script", "img", "iframe", "link", "object"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on") or name == "src"]
    assert all(link.startswith("#") for link in re.findall(r'(?:href="|url\()([^")]*)', html))  # within the SVG
    assert "http" not in html and "@import" not in html
    assert not re.search(r"</?(table|tr|td|figure|svg|p)\b", found.text), "no tag is shown as text"
    assert len(html) < 30_000


def test_an_estimate_shows_value_interval_and_status(results):
    estimate = results["Estimate"]
    text = Elements(estimate._repr_html_()).text
    assert number(estimate.value, 6) in text and interval(estimate.lower, estimate.upper, 6) in text
    assert "99.9 % sure" in text and "converged" in text
    unfinished = replace(estimate, status="step limit", upper=None)._repr_html_()
    assert '<span class="warn">step limit: raise max_steps or tol</span>' in unfinished
    assert interval(estimate.lower, None, 6) in Elements(unfinished).text
    several = howsmooth.local_lipschitz(layer("two heads"), normal(50, 4, 6), k=2)
    assert "singular values" in several._repr_html_() and "singular values" not in estimate._repr_html_()


def test_tokens_are_coloured_by_share_and_by_gain(results):
    estimate = results["Estimate"]
    html = estimate._repr_html_()
    shown = [float(share) for share in re.findall(r'style="--share:([0-9.]+)"', html)]
    by_share = intensities(estimate.shares.tolist())
    assert shown[:4] == pytest.approx(by_share, abs=1e-3)
    assert shown[4:] == pytest.approx(intensities(estimate.gains.value.tolist(), SHARE_DECADES / 2), abs=1e-3)
    assert html.count('class="words"') == 2
    alone = replace(estimate, tokens=None, gains=None)._repr_html_()
    shown = re.findall(r">([^<]*)</span>", alone[alone.index('class="words"') :])
    assert shown[:3] == ["0", "1", "2"], "without strings, positions"


def test_a_bound_that_does_not_apply_is_listed_with_its_reason(results):
    every = results["Bounds"]
    text = Elements(every._repr_html_()).text
    assert every.refused and f"{len(every.refused)} do not apply" in text
    for bound in every.applicable:
        assert f"{'≥' if bound.side == 'lower' else '≤'} {bound.title}" in text
    assert all(str(refusal) in text for refusal in every.refused)


def test_an_attack_shows_its_edits(results):
    found = results["TokenAttack"]
    text = found._repr_html_()
    assert found.edits and text.count("<del>") == sum(edit.operation == "substitute" for edit in found.edits)


def test_all_text_is_escaped(results):
    bound = replace(results["Bound"], name=HOSTILE, holds=HOSTILE, conditions=(HOSTILE,), reference=HOSTILE)
    attacked = replace(
        results["TokenAttack"], words=(HOSTILE,) * 4, next_tokens=(HOSTILE, HOSTILE), notes={"none": HOSTILE}
    )
    shown = [
        results["Estimate"].with_tokens([HOSTILE] * 4, results["TokenGains"]),
        results["TokenGains"].with_tokens([HOSTILE] * 4),
        bound,
        bounds.Bounds([bound, bounds.Refused(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]),
        replace(results["BallCertificate"], bound=bound, method=HOSTILE, reasons={"yudin": HOSTILE}),
        replace(results["FeatureAttack"], attack={"name": HOSTILE}, status=HOSTILE),
        attacked,
        howsmooth.Measurements([{**record, "model": HOSTILE, "text": HOSTILE} for record in results["Measurements"]]),
    ]
    for result in shown:
        html = result._repr_html_()
        assert "<script" not in html and "&lt;script&gt;" in html, type(result).__name__
    chart = Chart(HOSTILE, Axis(HOSTILE), Axis(HOSTILE), [Series((1, 2), (1.0, 2.0), label=HOSTILE)])
    assert "<script" not in _chart(chart) + coloured_tokens([HOSTILE], [1.0], HOSTILE)


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"expected one of Estimate, .* got int"):
        render(3)


def test_long_texts_are_cut():
    html = coloured_tokens(["a"] * (MAX_TOKENS + 7), [1.0] * (MAX_TOKENS + 7), "share")
    assert html.count("--share") == MAX_TOKENS and "7 more tokens" in html


def test_the_scale_is_logarithmic():
    assert intensities([1.0, 1e-1, 1e-2, 1e-4, 1e-9, 0.0]) == pytest.approx([1, 0.75, 0.5, 0, 0, 0])
    assert intensities([3.0, 0.3], 2) == pytest.approx([1, 0.5])
    assert intensities([0.0, 0.0]) == pytest.approx([0, 0]) and intensities([math.inf, 1.0]) == pytest.approx([0, 0])


def test_colours_are_those_of_the_report():
    """The page draws with JavaScript and CSS, notebooks with Python: the constants are equal."""

    def asset(name: str) -> str:
        return files("howsmooth.report").joinpath("assets", name).read_text(encoding="utf-8")

    assert f"const DECADES = {SHARE_DECADES};" in asset("report.js")
    for theme, colours in theme_variables().items():
        series = tuple(re.findall(r"--series-\d: (#\w{6})", colours))
        assert series == tuple(colour.lower() for colour in THEMES[theme]["palette"])
    heat = "rgb(213 94 0 / calc(var(--share) * var(--heat)))"
    assert heat in asset("report.css") and heat in style()
    for theme, background in (("light", "#ffffff"), ("dark", "#14181d")):
        assert f"--background: {background}" in theme_variables()[theme] and theme_variables()[theme] in style()


def test_marks_of_bounds_are_on_one_scale():
    at = [float(re.search(r"--at: ([0-9.]+)%", _log_mark(value, (0.0, 10.0), side="lower"))[1]) for value in (0, 5, 99)]
    assert at == pytest.approx([0, 50, 100]), "linear in the logarithm, and at the end beyond it"


def test_a_chart_is_the_same_picture_as_on_a_page():
    samples = Series((8, 8, 8, 16), (1.0, 2.0, 9.0, 4.0), label="layer 0", has_samples=True, linestyle="solid")
    html = _chart(Chart("growth", Axis("n", "log"), Axis("y", "log"), [samples]))
    assert "layer 0" in html and "-chart-0-series-0" in html and "<button" not in html
    line = re.search(r'chart-0-series-0"><path d="M ([^"]*)"', html)[1]
    assert len(line.split(" L ")) == 2, "through the medians"


def test_light_and_dark_in_a_browser(results, tmp_path):
    require_chromium()
    path = tmp_path / "shown.html"
    shown = "".join(result._repr_html_() for result in results.values())
    jupyter = '<body data-jp-theme-light="false">'
    backgrounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}
    with browser() as opened:
        for body, theme, expected in (
            ("<body>", "light", "light"),
            ("<body>", "dark", "dark"),
            (jupyter, "light", "dark"),
        ):
            path.write_text(f"<!doctype html><meta charset=utf-8>{body}{shown}</body>", encoding="utf-8")
            with Page(opened, theme=theme, width=400) as tab:
                tab.page.goto(path.as_uri())
                colour = "e => getComputedStyle(e).backgroundColor"
                found = {tab.page.eval_on_selector(".howsmooth", colour)}
                assert found == {backgrounds[expected]} and tab.errors == [] and len(tab.requests) == 1
                assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400
                spans = tab.page.eval_on_selector_all(".words span[style]", f"all => all.map({colour})")
                alphas = [float(re.findall(r"[0-9.]+", colour)[3]) for colour in spans if "rgba" in colour]
                assert alphas and max(alphas) == pytest.approx({"light": 0.8, "dark": 0.62}[expected], abs=0.01)
