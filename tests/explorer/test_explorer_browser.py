"""The explorer in a browser: entering text, running, clicking, cancelling, tabs; values equal the command line's."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from tests import reasons
from tests.browser import Page, browser, require_chromium
from tests.cli.conftest import ENVIRONMENT
from tests.tolerances import FLOAT32

require_chromium()
pytest.importorskip("gradio", reason=reasons.GRADIO)

from howsmooth.cli.main import group  # noqa: E402
from howsmooth.explorer import Limits, explorer, launch  # noqa: E402
from howsmooth.explorer.app import Cancellation, Cancelled  # noqa: E402

TEXT = "The harbour was quiet, and the keeper counted the ships before the tide came in and the lamps went out."
HOSTILE = (
    '<img src=hacked onerror="window.hacked=1"> </button><script>window.hacked=2</script> ${window.hacked=3} '
    "{{value}} {{#each value}} & the end"
)


@pytest.fixture(scope="module")
def address() -> str:
    page = explorer(Limits(max_tokens=64))
    address = launch(page, host="127.0.0.1", block=False)
    yield address
    page.close()


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@contextmanager
def open_page(opened, address, query="", wait_for="#measure-run"):
    """A page without console errors that loads nothing from other machines."""
    with Page(opened) as visited:
        page = visited.page
        page.goto(address + query)
        page.wait_for_selector(wait_for)
        if not query:
            # Without a link the page opens with a result; tests begin after it.
            page.wait_for_function("document.getElementById('measure-status')?.innerText.includes('Measured on')")
            page.wait_for_selector("#measure-cancel", state="hidden")
        yield page
        assert visited.errors == []
        assert [url for url in visited.requests if not url.startswith((address, "data:", "blob:"))] == []


@pytest.fixture
def visit(opened, address):
    with open_page(opened, address) as page:
        yield page


def fill(page, **fields) -> None:
    for name, value in fields.items():
        name = name.replace("measure_", "measure-")
        page.fill(f"#{name} textarea, #{name} input[type=text], #{name} input[type=number]", str(value))
        page.keyboard.press("Tab")


def wait_for_text(page, where: str, words: str) -> None:
    page.wait_for_function("([id, words]) => document.getElementById(id).innerText.includes(words)", arg=[where, words])


def run_measure(page) -> None:
    """Click the button of the first tab, and wait until it no longer shows the result before."""
    status = "document.getElementById('measure-status').innerText"
    before = page.evaluate(status)
    page.click("#measure-run")
    page.wait_for_function(f"before => {status} !== before", arg=before)


def choose_model(page, name: str) -> None:
    page.fill("#model input", name)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")


def test_values_equal_those_of_the_command_line(visit, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    group.main(
        [
            "measure",
            "minilm",
            "--text",
            str(tmp_path / "text.txt"),
            "--layers",
            "0,2",
            "--lengths",
            "16",
            "--samples",
            "1",
            "--json",
            str(tmp_path / "lines.jsonl"),
        ],
        standalone_mode=False,
    )
    records = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()]

    fill(visit, text=TEXT, measure_layers="0,2")
    visit.fill("#measure-lengths input[type=number]", "16")
    visit.keyboard.press("Tab")
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on the first 16 of")
    rows = visit.locator("#constants tbody tr").all_inner_texts()
    assert len(rows) == 2
    for row, record in zip(rows, records, strict=True):
        shown = [float(digits) for digits in re.findall(r"\d+\.\d+", row)]
        for name in ("value", "lower", "upper"):
            assert any(digits == pytest.approx(record[name], rel=1e-3) for digits in shown), row
    assert "measure minilm --text text.txt --lengths 16 --samples 1 --map attention --layers 0,2" in visit.inner_text(
        "#command"
    )

    with visit.expect_download() as waiting:
        visit.click("#download a")
    report = waiting.value.path().read_text(encoding="utf-8")
    data = json.loads(report[report.index('id="data"') :].partition(">")[2].partition("</script>")[0])
    lines = gzip.decompress(base64.b64decode(data["measurements"])).decode("utf-8").splitlines()
    values = [float(row["value"]) for row in csv.DictReader(lines)]
    assert values == pytest.approx([record["value"] for record in records], rel=FLOAT32)


def test_the_page_opens_with_the_constants_of_the_default_text(visit):
    assert visit.locator("#constants tbody tr").count() == 6  # the layers of MiniLM
    assert visit.locator("#words [data-token]").count() >= 64
    assert "measure minilm" in visit.inner_text("#command")


def test_layers_and_tokens_open_by_keyboard(visit):
    fill(visit, text=TEXT, measure_layers="1")
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on all")
    visit.focus("#constants [data-layer='1']")
    visit.keyboard.press("Enter")
    wait_for_text(visit, "measure-status", "All heads of layer 1")
    assert visit.locator("#heads tbody tr").count() == 12
    visit.focus("#words [data-place='1-2']")
    visit.keyboard.press("Enter")
    wait_for_text(visit, "token", "moved alone, by ε")
    assert visit.locator("#words [data-token='2'][aria-pressed=true]").count() == 2
    assert visit.evaluate("document.activeElement.dataset.place") == "1-2"  # the focus is kept


def test_cancelling_stops_a_running_solve_and_the_page_stays_responsive(visit, monkeypatch):
    """The second solve waits before one of its products until the test has cancelled."""
    inside, go, asked, ended = (threading.Event() for _ in range(4))
    steps, products, paused = [], [], []

    def gated(flag, *step, check=Cancellation.check):
        if step:  # before a solve
            steps.append(flag)
        else:  # before a product
            products.append((flag, steps.count(flag)))
            if products.count((flag, 2)) == 3:
                paused.append(flag)
                inside.set()
                go.wait()
        try:
            check(flag)
        except Cancelled:
            ended.set()
            raise

    def stop(flag, stop=Cancellation.stop):
        stop(flag)
        asked.set()

    monkeypatch.setattr(Cancellation, "check", gated)
    monkeypatch.setattr(Cancellation, "stop", stop)
    assert not visit.is_visible("#measure-cancel")  # nothing runs
    fill(visit, text=TEXT, measure_layers="all")
    run_measure(visit)
    visit.wait_for_selector("#constants tbody tr")
    inside.wait()
    visit.get_by_role("tab", name="Growth").click()  # the page is not blocked
    visit.wait_for_selector("#bound-run")
    visit.get_by_role("tab", name="Layers").click()
    visit.click("#measure-cancel")
    asked.wait()
    go.set()
    ended.wait()
    wait_for_text(visit, "measure-status", "Cancelled. What was computed stays.")
    visit.wait_for_selector("#measure-cancel", state="hidden")
    (flag,) = paused  # a computation of an earlier visitor may end meanwhile
    assert steps.count(flag) == 2 and products.count((flag, 2)) == 3  # no product after the request
    assert visit.locator("#constants tbody tr").count() == 1

    monkeypatch.undo()
    fill(visit, measure_layers="0")
    run_measure(visit)  # the queue is free again
    wait_for_text(visit, "measure-status", "Measured on all")


def test_both_colourings_and_the_largest_gains_are_shown_without_a_click(visit):
    fill(visit, text=TEXT, measure_layers="0")
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on all")
    assert visit.locator("#words .hs-text").count() == 2
    assert visit.locator("#words .hs-legend").all_inner_texts()[0].endswith("log scale")
    assert visit.locator("#words [data-token]").count() == 2 * visit.locator("#words [data-place^='0-']").count()
    headings = visit.locator("#words th").all_inner_texts()
    assert headings == ["token", "alone", "of the constant", "of the worst direction"]
    assert all("%" in row for row in visit.locator("#words tbody tr").all_inner_texts())


def test_gains_that_would_take_minutes_are_not_computed(visit):
    fill(visit, text=TEXT, measure_layers="0")
    visit.click("#measure-map input")
    visit.get_by_role("option", name="block", exact=True).click()
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on all")
    assert visit.locator("#words .hs-text").count() == 1 and "Click a token" in visit.inner_text("#words")
    visit.click("#words [data-token='3']")
    wait_for_text(visit, "token", "moved alone")


def test_the_model_and_the_text_are_shown_only_where_they_act(visit):
    for name, shown in (("Measures", False), ("Growth", True), ("Flows", False), ("Layers", True)):
        visit.get_by_role("tab", name=name).click()
        visit.wait_for_selector("#text", state="visible" if shown else "hidden")
    assert visit.input_value("#text textarea") != ""


def test_html_in_the_text_is_escaped(visit):
    fill(visit, text=HOSTILE, measure_layers="0")
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on all")
    words = visit.inner_text("#words").replace("\n", "").replace("##", "")
    assert "onerror" in words and "script" in words and "{" in words
    assert visit.evaluate("window.hacked") is None and visit.locator("#words img, #words script").count() == 0
    visit.click("#words [data-token='3']")
    wait_for_text(visit, "token", "moved alone")
    assert visit.evaluate("window.hacked") is None


def test_fifty_thousand_characters_are_truncated_with_a_note(visit):
    fill(visit, text=("Ships sail. " * 5000)[:50_000], measure_layers="0")
    run_measure(visit)
    wait_for_text(visit, "measure-status", "Measured on the first 64 of 12,")
    assert "n = 64" in visit.inner_text("#constants")


@pytest.mark.parametrize("name", ["no/such-model", "../../etc", "/etc/passwd", "<b>x</b>"])
def test_an_unknown_model_is_rejected(visit, name):
    choose_model(visit, name)
    run_measure(visit)
    wait_for_text(visit, "measure-status", "expected a model among minilm, smollm2, got")
    assert name in visit.inner_text("#measure-status") and visit.locator("#measure-status b").count() == 0


def test_all_tabs_show_results(visit):
    fill(visit, text=TEXT)
    visit.get_by_role("tab", name="Growth").click()
    visit.click("#bound-run")
    wait_for_text(visit, "bound-status", "exponent")
    assert visit.locator("#bound-pictures img:visible").count() == 2
    assert "howsmooth bound minilm --text text.txt --lengths 8,16" in visit.inner_text("#bound-command")
    visit.get_by_role("tab", name="Measures").click()
    fill(visit, **{"regimes-gamma_r2": "0.5,2"})
    visit.click("#regimes-run")
    wait_for_text(visit, "regimes-status", "Largest constant of n tokens at two points")
    assert visit.locator("#regimes-result tbody tr").count() == 2
    visit.click("#splitting-line-run")
    wait_for_text(visit, "splitting-line-result", "splits")
    fill(visit, **{"regimes-gamma_r2": "a,b"})
    visit.click("#regimes-run")
    wait_for_text(visit, "regimes-status", "expected comma-separated numbers")
    visit.get_by_role("tab", name="Flows").click()
    visit.click("#particles-run")
    wait_for_text(visit, "particles-status", "depths to play, pause and scrub")
    frame = visit.frame_locator("#particles-result iframe")
    frame.locator("h1").wait_for()
    assert "sphere" in frame.locator("h1").inner_text().lower()
    assert "allow-same-origin" not in visit.get_attribute("#particles-result iframe", "sandbox")
    visit.get_by_role("tab", name="Attacks").click()
    fill(visit, **{"layer-attack-budget": "0.01"})
    visit.click("#layer-attack-run")
    wait_for_text(visit, "layer-attack-status", "Measured on")
    assert visit.locator("#layer-attack-result tbody tr").count() == 4
    visit.click("#token-attack-run")
    wait_for_text(visit, "token-attack-status", "evaluated again and holds")
    assert visit.locator("#token-attack-result ins").count() >= 1


def test_no_file_contains_the_text_of_a_visitor(opened, tmp_path):
    """Neither while the explorer runs nor after SIGTERM, and the folder of temporary files is empty then."""
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "howsmooth", "explore"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        (address,) = next(filter(None, (re.findall(r"explorer is at (\S+)", line) for line in process.stderr)))
        try:
            with open_page(opened, address) as page:
                fill(page, text=TEXT, measure_layers="0")
                run_measure(page)
                wait_for_text(page, "measure-status", "Measured on all")
                page.wait_for_selector("#measure-cancel", state="hidden")
                with page.expect_download() as waiting:
                    page.click("#download a")
                assert "lamps" in waiting.value.path().read_text(encoding="utf-8")
                written = [path for path in tmp_path.rglob("*") if path.is_file()]
                assert [path for path in written if b"lamps" in path.read_bytes()] == []
        finally:
            process.terminate()
            process.wait()
    assert process.returncode == -signal.SIGTERM
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_local_file_is_served_and_uploads_are_rejected(visit, address):
    for path in ("/etc/passwd", __file__):
        assert visit.request.get(f"{address}gradio_api/file={path}").status in (403, 404)
    sent = visit.request.post(
        f"{address}gradio_api/upload",
        multipart={"files": {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x" * 999}},
    )
    assert sent.status >= 400


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_field_has_a_label_and_nothing_overflows(opened, address, width, theme):
    with Page(opened, width=width, height=844, theme=theme) as visited:
        page = visited.page
        page.goto(address)
        page.wait_for_selector("#measure-status")
        fill(page, measure_layers="0")
        page.click("#measure-run")
        wait_for_text(page, "measure-status", "Measured on")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Text that is wider than its button, cell or line; tables of many columns may scroll.
        overflowing = page.evaluate("""() => [...document.querySelectorAll(
            'button, .hs-message, .hs-legend, .hs-report, .hs-text, #words .hs-scroll, #constants .hs-scroll, h1, h3')]
            .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 200))""")
        assert overflowing == []
        nameless = page.evaluate("""() => [...document.querySelectorAll('input, textarea, select')]
            .filter(e => e.offsetParent && !(e.labels && e.labels.length) && !e.getAttribute('aria-label')
                         && !e.getAttribute('aria-labelledby')).map(e => e.outerHTML)""")
        assert nameless == []
        assert page.evaluate("document.body.classList.contains('dark')") == (theme == "dark") and visited.errors == []
