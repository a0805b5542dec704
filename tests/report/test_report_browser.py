"""The report in a browser: number of elements, console errors, themes, small screens, downloads and printing."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from howsmooth.report.web_page import report_page
from tests.browser import Page, browser, require_chromium

require_chromium()


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def large(large_page, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(large_page, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def small(records, bounds, directions, tmp_path) -> str:
    path = tmp_path / "report.html"
    path.write_text(report_page([*records, *bounds, *directions]), encoding="utf-8")
    return path.as_uri()


def saved(page, selector: str) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.click(selector)
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes().decode("utf-8")


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_ten_thousand_records_are_drawn_with_few_elements(chromium, large):
    """The time to open a page depends on its number of elements; benchmarks/latency.py measures the seconds."""
    with Page(chromium) as opened:
        opened.page.goto(large)
        assert opened.page.locator("#measure .scroll").first.locator("tbody tr").count() == 144
        assert opened.page.locator('#measure [data-label="length"] figure:visible').count() == 1
        assert opened.page.evaluate("document.querySelectorAll('*').length") < 12_000
        assert opened.errors == [] and opened.requests == [large]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_readable_and_the_toggle_changes_them(chromium, small, theme):
    with Page(chromium, theme=theme) as opened:
        page = opened.page
        page.goto(small)
        style = "([selector, what]) => getComputedStyle(document.querySelector(selector))[what]"
        seen = []
        for _ in range(2):
            paper = page.evaluate(style, ["body", "backgroundColor"])
            for selector, what in (
                ("body", "color"),
                ("figcaption", "color"),
                (".tiles dt", "color"),
                ("#measure svg text", "fill"),
                (".axis", "color"),
                ("summary", "color"),
            ):
                assert contrast(paper, page.evaluate(style, [selector, what])) >= 4.5, (selector, paper)
            seen.append(paper)
            page.click("#theme")
        assert len(set(seen)) == 2 and (contrast(seen[0], "0,0,0") > 10) == (theme == "light")
        assert opened.errors == []


def test_a_small_screen_needs_no_horizontal_scrolling(chromium, small, large):
    for address in (small, large):
        with Page(chromium, width=390, height=844) as opened:
            opened.page.goto(address)
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
            assert opened.errors == []


def test_markup_in_records_is_not_executed(chromium, small):
    with Page(chromium) as opened:
        page = opened.page
        page.on("dialog", lambda dialog: pytest.fail("a script of the text ran"))
        page.goto(small)
        page.locator('[data-label="shown"] select').first.select_option(index=1)
        for index in (0, 1):  # from the HTML, and from the JSON
            page.locator(".directions:visible select").select_option(index=index)
            shown = page.locator(".words:visible").text_content()
            assert "</script><img src=x onerror=a…" in shown and "<b>bold</b>" in shown and "&amp;" in shown
        assert "\u202e" not in shown  # no character changes the direction of text
        assert page.locator("img").count() == 0 and opened.errors == [] and opened.requests == [small]


def test_csv_buttons_save_the_values_of_the_records(chromium, small, records, bounds, directions):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(small)
        name, text = saved(page, '[data-csv="measurements"]')
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        assert name == "measurements.csv" and len(rows) == len(records) + len(directions)
        for row, record in zip(rows, records, strict=False):
            # exact: the page keeps every digit
            assert (float(row["value"]), int(row["n"]), row["model"]) == (record["value"], record["n"], record["model"])
            assert row["token_1"] == record["top_tokens"][0]["token"]
        rows = list(csv.DictReader(io.StringIO(saved(page, '[data-csv="bounds"]')[1], newline="")))
        # exact: the page keeps every digit
        assert [float(row["log_value"]) if row["log_value"] else None for row in rows] == [
            record["log_value"] for record in bounds
        ]
        rows = list(csv.DictReader(io.StringIO(saved(page, '[data-csv="directions"]')[1], newline="")))
        assert len(rows) == 16
        # exact: the page keeps every digit
        assert [float(row["share"]) for row in rows[:8]] == directions[0]["shares"]
        assert opened.errors == []


def test_a_point_says_its_value(chromium, small, records):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(small)
        figure = page.locator("#measure-0-0")
        values = json.loads(figure.locator("script").text_content())
        figure.scroll_into_view_if_needed()
        for series, index in ((0, 0), (1, 5)):
            x, y, text = values[series]["points"][index]
            svg = figure.locator("svg")
            box = svg.bounding_box()
            scale = box["width"] / svg.evaluate("svg => svg.viewBox.baseVal.width")
            page.mouse.move(box["x"] + scale * x, box["y"] + scale * y)
            assert figure.locator(".tip").inner_text() == f"layer {series}, {text}"
        page.mouse.move(1, 1)
        assert not figure.locator(".tip").is_visible() and opened.errors == []


def test_curves_are_selected_in_the_legend(chromium, small):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(small)
        button, line = page.locator("#measure-0-0 [data-series]").nth(1), "#measure-0-0-chart-0-series-{}"
        faded = "e => e.classList.contains('faded')"
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator(line.format(0)).evaluate(faded) and not page.locator(line.format(1)).evaluate(faded)
        page.keyboard.press("Enter")
        assert not page.locator(line.format(0)).evaluate(faded) and opened.errors == []


def test_every_plot_saves_as_standalone_svg(chromium, small):
    with Page(chromium, theme="dark") as opened:
        page = opened.page
        page.goto(small)
        names = page.locator("[data-svg]").evaluate_all("buttons => buttons.map(b => b.dataset.svg)")
        assert set(names) >= {"measure-0-0", "measure-0-lengths", "bound-0-0"}
        for name in ("measure-0-0", "measure-0-lengths", "bound-0-0"):
            file, text = saved(page, f'[data-svg="{name}"]')
            root = ElementTree.fromstring(text)
            assert file == f"{name}.svg" and root.tag.endswith("svg")
            assert "var(" not in text and "color-mix" not in text and "#e3e7ec" in text  # in the dark theme
            assert root.findall(".//{http://www.w3.org/2000/svg}text")
        assert opened.errors == []


def test_controls_are_labelled_and_reached_by_keyboard(chromium, small):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(small)
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            focused = page.evaluate("""() => { const e = document.activeElement;
                return [e.tagName, e.id || e.dataset.csv || e.dataset.svg || '', e.getAttribute('aria-label') || ''
                        || (e.labels && e.labels[0] ? e.labels[0].innerText : e.innerText),
                        getComputedStyle(e).outlineStyle] }""")
            if focused[0] == "BODY":
                break
            assert focused[2].strip(), focused
            assert focused[3] != "none", focused
            reached.add(focused[1] or focused[0])
        assert {"theme", "measure-0-0", "laws", "SELECT", "BUTTON"} <= reached
        page.focus("#theme")
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_curves_and_rows_are_found(chromium, large):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(large)
        legend = page.locator("#measure-0-0 [data-series]")
        assert legend.count() == 144
        page.locator("#measure-0-0 .find").fill("layer 3")
        assert page.locator("#measure-0-0 [data-series]:visible").count() == 12
        page.locator("#measure-0-0 .find").fill("layer 3 head 5")
        assert page.locator("#measure-0-0 [data-series]:visible").inner_text().strip().startswith("layer 3 head 5: n")
        rows = page.locator("#measure .scroll").first.locator("tbody tr:visible")
        page.locator("#measure > .find").first.fill("indistinguishable from a logarithm")
        assert 0 < rows.count() < 144 and opened.errors == []


def test_thousands_of_tokens_are_one_element_each(chromium, make, tmp_path):
    words = [f"word{i % 89}" for i in range(8192)]
    path = tmp_path / "long.html"
    path.write_text(report_page([make(layer, 8192, 0, shares=[1 / 8192] * 8192, words=words) for layer in (0, 1)]))
    with Page(chromium) as opened:
        page = opened.page
        page.goto(path.as_uri())
        assert page.locator(".words span").count() == 8192
        before = page.evaluate("document.querySelectorAll('*').length")
        page.locator(".directions select").select_option(index=1)
        assert page.locator(".words span").count() == 8192
        assert page.evaluate("document.querySelectorAll('*').length") <= before < 12_000
        assert opened.errors == []


def test_printed_pages_are_light_and_complete(chromium, small):
    with Page(chromium, theme="dark") as opened:
        page = opened.page
        page.goto(small)
        page.locator('[data-label="shown"] select').first.select_option(index=1)  # the one with words
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for selector in (".scroll", ".words"):
            style = f"getComputedStyle(document.querySelector('{selector}')).maxHeight"
            assert page.evaluate(style) == "none"
        assert page.evaluate("getComputedStyle(document.querySelector('tbody tr')).breakInside") == "avoid"
        assert not page.locator("#theme").is_visible()
        page.set_viewport_size({"width": 688, "height": 1000})  # A4 less its margins
        assert page.evaluate("Math.max(...[...document.querySelectorAll('table')].map(t => t.scrollWidth))") <= 688
        assert page.pdf()[:4] == b"%PDF"
