"""The page of a flow in a browser: playing, keyboard, small screens, and escaping of data."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from howsmooth.errors import InputError
from howsmooth.questions.particles import MAX_TOKENS
from howsmooth.report.flow_page import depth_scene, flow_page, particle_scene
from howsmooth.report.style import check_page_path
from tests import reasons
from tests.browser import Page, browser
from tests.tolerances import less

expect = pytest.importorskip("playwright.sync_api", reason=reasons.PLAYWRIGHT).expect
NASTY = "</script><img src=x onerror=\"document.title='caught'\">"

FACTS = {"kind": "particles", "flow": "a", "title": NASTY, "ending": "finished at depth 4", "solver": "rk45"}
FACTS |= {"coordinates": "tokens", "steps": 9, "tol": 0.1, "seed": 0}


def flow(n=12, saves=9, dim=2, run=1.0):
    rng = np.random.default_rng(0)
    paths = rng.normal(size=(1, n, dim)) * np.exp(np.linspace(0, run, saves))[:, None, None]
    every = -(-n // MAX_TOKENS)
    records = [
        {
            **FACTS,
            "n": n,
            "d": dim,
            "t": 0.5 * k,
            "clusters": n - k,
            "vertices": 5,
            "hyperplanes": None,
            "leading_clusters": None,
            "rank": None,
            "diameter": 3.0 + k,
            "w2_to_last": 1e-300,
            "undecided": None,
            "local": 2.0,
            "plane": paths[k, ::every, :2].tolist(),
            "space": paths[k, ::every].tolist() if dim > 2 else None,
        }
        for k in range(saves)
    ]
    names = ["across", "up", "away"]
    records[0] |= {"about": "what & why", "labels": [k % 3 for k in range(0, n, every)]}
    records[0] |= {"axes": names[: min(2, dim)], "space_axes": names if dim > 2 else None}
    return particle_scene(records)


def passage(dim=3, layers=4, n=6):
    u = np.random.default_rng(1).normal(size=(layers + 2, n, dim))
    facts = {
        "model": "tiny",
        "layers": layers,
        "n": n,
        "sample": 0,
        "sink": 0,
        "sink_token": "[CLS]",
        "text": NASTY,
        "text_sha256": "0" * 64,
        "weights": None,
        "dtype": "float32",
        "seed": 0,
        "tolerances": [0.1, 0.5],
        "versions": {"howsmooth": "0"},
    }
    records = [
        {
            "depth": min(k, layers),
            "normed": k > layers,
            "clusters": [n, n - 1],
            **dict.fromkeys(
                (
                    "value",
                    "product",
                    "own",
                    "relative",
                    "cosine",
                    "cosine_without_sink",
                    "to_mean",
                    "to_mean_without_sink",
                    "norm",
                    "largest_norm",
                    "sink_norm",
                    "to_sink",
                    "sharpness",
                ),
                1.0 + k,
            ),
            **facts,
            "coordinates": u[k].tolist(),
            "axes": ["one", "two", "three"],
            "words": [NASTY, *(f"word{i}" for i in range(n - 1))],
        }
        for k in range(layers + 2)
    ]
    return depth_scene(records)


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture
def show(chromium, tmp_path):
    opened = []

    def open_page(scenes, added="", **options):
        path = tmp_path / "flow.html"
        path.write_text(flow_page(scenes).replace("</body>", f"{added}</body>"), encoding="utf-8")
        seen = Page(chromium, **options)
        opened.append(seen)
        seen.page.goto(path.as_uri())
        return seen

    yield open_page
    for seen in opened:
        assert seen.errors == [] and len(seen.requests) == 1
        seen.context.close()


def picture(page) -> bytes:
    return page.locator("#tokens").screenshot()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_page_plays_and_pauses(show, dim):
    page = show([flow(dim=dim)]).page
    first = picture(page)
    expect(page.locator("#clock")).to_have_text(re.compile(r"depth (0\.5|1)$"))
    page.locator("#play").click()
    stopped = page.locator("#clock").inner_text()
    assert "Play" in page.locator("#play").inner_text() and picture(page) != first
    page.wait_for_timeout(300)
    assert page.locator("#clock").inner_text() == stopped != "depth 0"


def test_keyboard(show):
    page = show([flow()]).page
    page.keyboard.press("Home")  # any key stops playing
    assert page.locator("#clock").inner_text() == "depth 0"
    page.locator("#depth").focus()
    before = picture(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#clock").inner_text() == "depth 1" and picture(page) != before
    page.keyboard.press("End")
    assert page.locator("#clock").inner_text() == "depth 4"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#clock").inner_text() == "depth 3.5"
    page.keyboard.press("Space")
    assert "Pause" in page.locator("#play").inner_text()


def test_charts_follow_the_selected_depth(show):
    page = show([flow()]).page
    page.keyboard.press("Home")
    value = page.locator("#charts .legend b").first
    assert value.inner_text() == "12"
    page.keyboard.press("ArrowRight")
    assert value.inner_text() == "11"
    box = page.locator("#charts svg").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + 30)
    assert value.inner_text() == "4" and page.locator("#clock").inner_text() == "depth 4"


def test_layers_of_a_model_and_a_choice_of_scenes(show):
    page = show([passage(), passage(layers=2)]).page
    page.keyboard.press("End")
    assert page.locator("#clock").inner_text() == "after the norm"
    page.locator("#scenes").select_option("1")
    assert "through 2 layers" in page.locator("h1").inner_text()
    page.keyboard.press("Home")
    before = picture(page)
    page.locator("#play").focus()
    page.keyboard.press("]")
    assert picture(page) != before  # the view has been rotated


@pytest.mark.parametrize("theme, paper", [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 29)")])
def test_themes_and_a_phone(show, theme, paper):
    page = show([passage()], width=390, height=844, theme=theme).page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#tokens").bounding_box()["width"] > 340


def test_markup_in_the_data_is_shown_as_text(show):
    page = show([flow(), passage()]).page
    assert page.locator("h1").inner_text() == NASTY and page.title() != "caught"
    page.locator("#scenes").select_option("1")
    assert page.locator("img").count() == 0 and page.title() != "caught"


def test_the_policy_allows_only_the_script_of_the_page():
    page = flow_page([flow()])
    script = page[page.rindex("<script>") + 8 : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; base-uri 'none'"
        in page
    )
    assert "form-action 'none'" in page and page.count("Content-Security-Policy") == 1


def test_a_script_that_is_added_to_the_page_does_not_run(show):
    """Were a text not escaped, the policy would still stop what is in it."""
    seen = show(
        [flow()], added="<script>document.title = 'caught'</script><p onclick=\"document.title = 'caught'\">x</p>"
    )
    seen.page.locator("p").last.click()
    assert seen.page.title() != "caught"
    assert seen.errors and all("Content Security Policy" in error for error in seen.errors), seen.errors
    seen.errors.clear()


def test_embedded_data_equals_the_scene():
    scene = flow(dim=2)
    page = flow_page([scene])
    block = page.split('id="data">')[1].split("</script>")[0]
    (data,) = json.loads(block)
    assert "<" not in block and {**data, "charts": scene["charts"]} == scene
    shown = [[[None if np.isnan(y) else y for y in curve.y] for curve in chart.series] for chart in scene["charts"]]
    assert data["charts"] == shown and page.count("<figure id=") == len(shown)
    packed = np.frombuffer(base64.b64decode(scene["paths"]), "<u2").reshape(9, 12, 2)
    low, high = np.array(scene["low"]), np.array(scene["high"])
    first = np.random.default_rng(0).normal(size=(12, 2))
    assert less(np.abs(low + packed[0] / 65535 * (high - low) - first).max(), 1e-4 * (high - low).max())


def test_fast_growth_uses_an_asinh_scale_and_many_tokens_are_subsampled():
    scene = flow(run=30.0)
    assert scene["asinh_scale"] > 0 and all("asinh" in name for name in scene["names"])
    many = flow(n=2 * MAX_TOKENS + 1)
    assert many["count"] <= MAX_TOKENS and "One token of every 3 is drawn" in many["facts"]


def test_bad_file_names_are_rejected():
    with pytest.raises(InputError, match=r"ending in .html"):
        check_page_path("a.txt")
    with pytest.raises(InputError, match="at least one flow"):
        flow_page([])
