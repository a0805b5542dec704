"""The report in a browser: number of elements, console errors, themes, small screens, downloads and printing."""

from __future__ import annotations

import csv
import io
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
        opened.page.wait_for_selector("#heat svg rect")
        assert opened.page.locator("#growth tbody tr").count() == 144
        assert opened.page.locator("#figure-heads svg rect").count() >= 144
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
                ("#growth svg text", "fill"),
                ("svg .muted", "fill"),
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
            opened.page.wait_for_selector("#growth svg")
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
            assert opened.errors == []


def test_markup_in_records_is_not_executed(chromium, small):
    with Page(chromium) as opened:
        page = opened.page
        page.on("dialog", lambda dialog: pytest.fail("a script of the text ran"))
        page.goto(small)
        view = page.locator("#view select")
        view.select_option(index=1)
        shown = page.locator(".words").text_content()
        assert "</script><img src=x onerror=alert(1)><!--" in shown and "<b>bold</b>" in shown and "&amp;" in shown
        assert "\u202e" not in shown  # no character changes the direction of text
        assert page.locator("img").count() == 0 and opened.errors == [] and opened.requests == [small]


def test_csv_buttons_save_the_values_of_the_records(chromium, small, records, bounds, directions):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(small)
        name, text = saved(page, '[data-csv="growth"]')
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        assert name == "growth.csv" and len(rows) == len(records)
        for row, record in zip(rows, records, strict=True):
            # exact: the page keeps every digit
            assert (float(row["value"]), int(row["n"]), row["model"]) == (record["value"], record["n"], record["model"])
            assert row["token_1"] == record["top_tokens"][0]["token"]
        rows = list(csv.DictReader(io.StringIO(saved(page, '[data-csv="bounds"]')[1], newline="")))
        # exact: the page keeps every digit
        assert [float(row["log_value"]) if row["log_value"] else None for row in rows] == [
            record["log_value"] for record in bounds
        ]
        assert len(list(csv.reader(io.StringIO(saved(page, '[data-csv="lengths"]')[1])))) == 1 + 2 * 4
        page.locator("#view select").select_option(index=1)
        rows = list(csv.DictReader(io.StringIO(saved(page, '[data-csv="direction"]')[1], newline="")))
        assert [row["token"] for row in rows] == directions[0]["words"]
        assert [float(row["share"]) for row in rows] == directions[0]["shares"]  # exact: the page keeps every digit


def test_every_plot_saves_as_standalone_svg(chromium, small):
    with Page(chromium, theme="dark") as opened:
        page = opened.page
        page.goto(small)
        names = page.locator("[data-svg]").evaluate_all("buttons => buttons.map(b => b.dataset.svg)")
        assert set(names) >= {"growth", "lengths", "bounds-of-map"}
        for name in names:
            file, text = saved(page, f'[data-svg="{name}"]')
            root = ElementTree.fromstring(text)
            assert file == f"{name}.svg" and root.tag.endswith("svg") and "var(" not in text
            texts = root.findall(".//{http://www.w3.org/2000/svg}text")
            assert texts and all(node.get("fill") for node in texts)
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
        assert {"theme", "growth", "laws", "SELECT"} <= reached
        page.focus("#theme")
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_layers_can_be_chosen(chromium, large):
    with Page(chromium) as opened:
        page = opened.page
        page.goto(large)
        page.locator("#growth select").first.select_option(label="layer 3")
        assert page.locator("#growth tbody tr").count() == 12
        page.locator("#growth select").nth(1).select_option(label="head 5")
        assert page.locator("#growth tbody tr").count() == 1
        assert page.locator("#growth .legend li").inner_text().startswith("layer 3 head 5: ")
        assert opened.errors == []


def test_thousands_of_tokens_are_one_element_each(chromium, make, tmp_path):
    words = [f"word{i % 89}" for i in range(8192)]
    path = tmp_path / "long.html"
    path.write_text(report_page([make(layer, 8192, 0, shares=[1 / 8192] * 8192, words=words) for layer in (0, 1)]))
    with Page(chromium) as opened:
        page = opened.page
        page.goto(path.as_uri())
        page.wait_for_selector(".words div")
        assert page.locator(".words p span").count() == 8192
        before = page.evaluate("document.querySelectorAll('*').length")
        page.locator("#direction select").first.select_option(index=1)
        assert page.locator(".words p span").count() == 8192
        assert page.evaluate("document.querySelectorAll('*').length") <= before < 12_000
        assert opened.errors == []


def test_printed_pages_are_light_and_complete(chromium, small):
    with Page(chromium, theme="dark") as opened:
        page = opened.page
        page.goto(small)
        page.locator("#view select").select_option(index=1)  # the one with words
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
