"""The functions of the explorer: models on offer, rejected input, escaping, cancelling."""

from __future__ import annotations

import base64
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from howsmooth.errors import InputError
from howsmooth.explorer import Limits, html
from howsmooth.explorer.app import App, Cancellation, Cancellations, Cancelled
from howsmooth.explorer.catalog import Choice, ModelCatalog, prepare
from howsmooth.explorer.limits import is_own_host
from howsmooth.explorer.tabs import doubling_lengths, layers_form, texts_of
from howsmooth.report.style import gain_colouring, share_colouring
from howsmooth.studies import measure, move_each_token, move_one_token
from tests.tolerances import at_most, same_record

TEXT = "The harbour was quiet, and the keeper counted the ships. " * 8
HOSTILE = '</td><script>alert(1)</script><img src=x onerror="alert(2)">'


def asked(catalog: ModelCatalog, layers="all", text=TEXT, *, model="minilm", lengths=None, **values) -> Choice:
    """Return what the form for layers asks with these values; the length is not bounded as that of the form."""
    form = layers_form(Limits(max_tokens=100_000))
    spec = form.spec({"lengths": str(lengths or 64), **texts_of({"model": model, "layers": layers, **values})})
    return prepare(spec, text, catalog)


class Outline(HTMLParser):
    """The tags and attribute names in an HTML text."""

    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture(scope="module")
def catalog() -> ModelCatalog:
    return ModelCatalog(Limits(max_tokens=24))


@pytest.fixture
def folder(tmp_path) -> Path:
    models = tmp_path / "models"
    for name in ("one", "two"):
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text("{}")
    (models / "three.gguf").write_bytes(b"GGUF")
    (models / "notes.txt").write_text("no model")
    outside = tmp_path / "secret"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (models / "link").symlink_to(outside)
    return models


def test_the_catalog_offers_only_models_in_the_folders(folder):
    catalog = ModelCatalog(Limits(folders=(folder,)))
    assert catalog.names() == ["minilm", "smollm2", "models/one", "models/three.gguf", "models/two"]
    assert catalog.location("models/one") == str(folder / "one")
    for name in (
        "models/link",
        "../secret",
        str(folder / "one"),
        str(folder.parent / "secret"),
        "models/../secret",
        "",
        "models/notes.txt",
        "gpt2",
        "random:gpt2",
        "/etc",
        None,
    ):
        with pytest.raises(InputError, match="expected a model among"):
            catalog.location(name)


def test_hub_names_are_accepted_only_if_allowed(folder, monkeypatch):
    catalog = ModelCatalog(Limits(hub=True))
    assert catalog.location(" openai-community/gpt2 ") == "openai-community/gpt2"
    for name in ("../secret", "/etc/passwd", "a/b/c", "a/..", "-x", "file:///etc", "random:gpt2"):
        with pytest.raises(InputError):
            catalog.location(name)
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="path on this machine"):
        catalog.location("one")


def test_limits_are_checked(tmp_path):
    with pytest.raises(InputError, match="folder of models"):
        Limits(folders=(tmp_path / "none",))
    with pytest.raises(InputError, match="16"):
        Limits(max_tokens=4)


def test_values_equal_those_of_measure(catalog):
    from howsmooth import load
    from howsmooth.studies import resolve, spec_of
    from howsmooth.texts.corpora import Corpus

    work = asked(catalog, "0, 2", lengths=24)
    model, text = load("minilm"), Corpus("file.txt", (TEXT,))
    plain = resolve(model, text, spec_of({"layers": [0, 2], "lengths": [24], "samples": 1}))  # as `howsmooth measure`
    same = ("value", "lower", "upper", "residual", "status", "steps", "shares", "top_tokens", "seed")
    for ours, theirs in zip(measure(work.model, work.text, work.settings), measure(model, text, plain), strict=True):
        assert same_record({name: ours[name] for name in same}, {name: theirs[name] for name in same}, tol=1e-3)


def test_a_long_text_is_truncated_with_a_note(catalog):
    assert "the first 24 of" in asked(catalog, "0", TEXT * 100, lengths=1000).note
    short = asked(catalog, "0", "Ships and a harbour.")
    assert short.note == f"all {short.settings.lengths[0]} tokens"
    assert f"--lengths {short.settings.lengths[0]}" in short.command  # what was measured, not what was entered


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"text": "a" * 1_000_001}, "at most 1,000,000 characters, got 1,000,001"),
        ({"text": "  "}, "expected a text"),
        ({"layers": "17"}, "layers of minilm between 0 and 5"),
        ({"layers": "one"}, 'expected "all" or numbers such as 0,6'),
        ({"map": "matrix"}, "Map among"),
        ({"tokens": "none"}, "expected Tokens that may move among all, no-special, no-first"),
        ({"model": "no-such-model"}, "expected a model among minilm, smollm2"),
    ],
)
def test_bad_choices_are_rejected(catalog, changes, words):
    with pytest.raises(InputError, match=re.escape(words)):
        asked(catalog, **{"layers": "0", "lengths": 16, **changes})


def test_the_memory_limit_is_checked_before_computing():
    with pytest.raises(InputError, match="max_memory"):
        asked(ModelCatalog(Limits(max_memory=1000)), "0", lengths=24)


def test_the_command_repeats_what_was_asked(catalog):
    work = asked(catalog, "0, 2", lengths=16, map="block", tokens="no-first")
    assert work.command == (
        "howsmooth measure minilm --text text.txt --lengths 16 --samples 1 --map block --layers 0,2 --tokens no-first"
    )


def test_doubling_lengths():
    assert doubling_lengths(8) == (8,) and doubling_lengths(5) == (5,) and doubling_lengths(9) == (8, 9)


def test_a_moved_token_has_its_gain(catalog):
    from howsmooth import token_gains

    work = asked(catalog, "1", lengths=12)
    found = move_one_token(work.model, work.text, work.settings, 3)
    x = work.model.inputs(TEXT, 1, 12)
    gains = token_gains(work.model.attention(1, 12), x, tol=1e-3)
    assert found["value"] == pytest.approx(float(gains.value[3]), rel=2e-3)
    assert at_most(found["lower"], float(gains.upper[3])) and at_most(float(gains.lower[3]), found["upper"])
    assert (
        sum(found["response_shares"]) == pytest.approx(1, abs=1e-2)
        and found["token"] == work.model.chunks(TEXT, 12, 1)[0].words[3]
    )
    with pytest.raises(InputError, match="between 0 and 11"):
        move_one_token(work.model, work.text, work.settings, 12)


@pytest.mark.parametrize("map", ["attention", "block"])
def test_the_gains_of_all_tokens_are_those_of_each(catalog, map):
    work = asked(catalog, "1", map=map, lengths=8)
    found = move_each_token(work.model, work.text, work.settings)
    assert found["status"] == "converged" and found["words"] == list(work.model.chunks(TEXT, 8, 1)[0].words)
    for position in (0, 3, 7):
        alone = move_one_token(work.model, work.text, work.settings, position)
        assert at_most(alone["lower"], found["upper"][position]) and at_most(found["lower"][position], alone["upper"])
    (whole,) = measure(work.model, work.text, work.settings)
    assert at_most(max(found["lower"]), whole["upper"])


@pytest.mark.parametrize(("map", "fast"), [("attention", True), ("normed", False), ("block", False), ("layer", False)])
def test_which_maps_have_gains_in_one_pass(catalog, map, fast):
    from howsmooth.studies.token_effects import moves_tokens_in_one_pass

    work = asked(catalog, "1", map=map, lengths=8)
    assert moves_tokens_in_one_pass(work.model, work.settings) is fast


def test_cancelling_ends_the_loop_before_the_next_solve(catalog):
    work, cancellation, found = asked(catalog, "all", lengths=12), Cancellation(), []
    with pytest.raises(Cancelled):
        for record in measure(work.model, work.text, work.settings, progress=cancellation.check):
            found.append(record)
            cancellation.stop()
    assert len(found) == 1


def test_cancelling_ends_a_running_solve_before_its_next_product(catalog, monkeypatch):
    """The worker stands before a product when the request comes: it computes no further product of that solve."""
    from howsmooth.attention import AttentionJacobian

    app, products = App(catalog), []

    def counted(operator, v, matvec=AttentionJacobian.matvec):
        products.append("J v")
        if len(products) == 3:
            app.cancellations.stop("visitor")
        return matvec(operator, v)

    monkeypatch.setattr(AttentionJacobian, "matvec", counted)

    def compute(cancellation):
        work = asked(catalog, "0", lengths=12)
        for record in measure(work.model, work.text, work.settings):  # no callback of the loop itself
            yield {"table": record}

    assert [*app.run("visitor", "status", compute)] == [{"status": html.message("Cancelled. What was computed stays.")}]
    assert len(products) == 3
    products.clear()
    monkeypatch.undo()
    assert "table" in next(app.run("visitor", "status", compute))  # the next computation runs


def test_a_visitor_has_one_computation_at_a_time():
    cancellations = Cancellations()
    first, other = cancellations.start("a"), cancellations.start("b")
    second = cancellations.start("a")
    with pytest.raises(Cancelled):
        first.check()
    second.check()
    other.check()
    cancellations.forget("a")
    with pytest.raises(Cancelled):
        second.check()
    cancellations.stop("nobody")


def test_errors_and_cancelling_end_with_a_message(catalog):
    app = App(catalog)

    def wrong(cancellation):
        yield {"table": "one"}
        raise InputError("expected <b>, got <i>")

    def stopped(cancellation):
        cancellation.stop()
        cancellation.check()
        yield {}

    assert [*app.run("a", "status", wrong)][1]["status"].count("&lt;b&gt;") == 1

    def broken(cancellation):
        yield {}
        raise RuntimeError("/private/path")

    assert "Cancelled" in next(iter(app.run("a", "status", stopped)))["status"]
    seen = []
    with pytest.raises(RuntimeError):
        for shown in app.run("a", "status", broken):
            seen.append(shown)
    assert "RuntimeError" in seen[-1]["status"] and "private" not in seen[-1]["status"]


def test_markup_in_records_is_escaped(make):
    record = make(0, 8, 0, relative=1.0, status=HOSTILE, top_tokens=[{"position": 0, "token": HOSTILE, "share": 0.5}])
    effect = {
        "token": HOSTILE,
        "position": 0,
        "layer": 0,
        "value": 1.0,
        "lower": 1.0,
        "upper": 1.0,
        "response_shares": [1.0],
        "words": [HOSTILE],
    }
    for text in (
        html.constants([record]),
        html.token_texts([HOSTILE], [share_colouring([1.0]), gain_colouring([1.0], 2.0)]),
        html.largest_gains([HOSTILE], share_colouring([1.0]), gain_colouring([1.0], 2.0)),
        html.message(HOSTILE, "warn"),
        html.progress(0, 1, HOSTILE),
        html.command_line(HOSTILE),
        html.token_effect(effect, 0.5, 2.0),
        html.sandboxed_frame(HOSTILE, HOSTILE),
    ):
        outline = Outline()
        outline.feed(text)
        assert not outline.tags & {"script", "img"} and not any(name.startswith("on") for name in outline.attributes)
        assert "&lt;/td" in text or "&lt;script" in text  # shown as text


def test_layers_and_tokens_are_buttons(make):
    table = html.constants([make(layer, 8, 0, relative=1.0) for layer in (0, 3)], selected=3)
    assert re.findall(r'data-layer="(\d)" data-place="\d" aria-pressed="(\w+)"', table) == [
        ("0", "false"),
        ("3", "true"),
    ]
    words = html.token_texts(["a", "b"], [share_colouring([0.005, 0.5]), gain_colouring([1.0, 4.0], 5.0)], selected=1)
    assert re.findall(r'data-place="([\d-]+)" style="--share:([\d.]+)" aria-pressed="(\w+)"', words) == [
        ("0-0", "0.500", "false"),  # two of four decades below the largest
        ("0-1", "1.000", "true"),
        ("1-0", "0.000", "false"),  # the smallest gain
        ("1-1", "1.000", "true"),
    ]
    assert words.count("log scale") == 2 and "20 % <span" in words and "</span> 80 %, log scale" in words
    assert "0.5 % " not in words.split("</h3>")[0] and 'title="0: 0.50 %"' in words
    assert html.token_texts(["a"], [share_colouring([0.0])]).count("<button") == 1 and html.constants([]) == ""


def test_a_token_with_a_small_share_and_a_large_gain_is_listed():
    shares, gains = share_colouring([0.997, 0.003, 0.0]), gain_colouring([3.0, 2.48, 0.1], 4.0)
    listed = html.largest_gains(["the", "bridge", "is"], shares, gains, count=2)
    row = next(row for row in listed.split("<tr>") if "bridge" in row)
    assert "62 %" in row and "0.30 %" in row and "<code>is</code>" not in listed


def test_the_report_is_a_link_within_the_page(records, monkeypatch):
    """No file of a visitor's text is written, so that none is readable by others or stays after a kill."""
    for name in ("mkstemp", "mkdtemp", "gettempdir"):
        monkeypatch.setattr(tempfile, name, pytest.fail)
    assert html.report_download([]) == ""
    (data,) = re.findall(r'href="data:text/html;base64,([^"]*)"', html.report_download(records))
    assert "<title>" in base64.b64decode(data).decode("utf-8")


@pytest.mark.parametrize(
    ("header", "own"),
    [
        ("127.0.0.1:7860", True),
        ("localhost:7860", True),
        ("LOCALHOST.", True),
        ("[::1]:7860", True),
        ("192.168.1.5", True),  # an address cannot be another site
        ("proxy.example", True),
        ("Proxy.Example:443", True),
        ("evil.example:7860", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example#localhost", False),
        ("[evil.example]", False),
        ("proxy.example.evil", False),
        ("127.0.0.1@evil.example", False),
        ("", False),
    ],
)
def test_which_host_names_are_answered(header, own):
    assert is_own_host(header, ["PROXY.example:8443"]) is own
    assert is_own_host(header, ["*"])


def test_closing_the_page_stops_all_computations():
    cancellations = Cancellations()
    running = [cancellations.start(visitor) for visitor in ("a", "b")]
    cancellations.stop_all()
    for cancellation in running:
        with pytest.raises(Cancelled):
            cancellation.check()


def test_without_gradio_the_error_names_the_extra(monkeypatch):
    import sys

    from howsmooth.explorer import explorer

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(InputError, match=r"pip install 'howsmooth\[explore\]'"):
        explorer()
