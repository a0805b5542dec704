"""The report contains the values of the records, escaped: in the page, in CSV and in figures."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
from html.parser import HTMLParser

import pytest

from howsmooth.errors import InputError
from howsmooth.records import json_line
from howsmooth.report.caveats import caveats_of, sources_of
from howsmooth.report.page_tables import one_row_per_token, tables_of
from howsmooth.report.table import Table
from howsmooth.report.web_page import report_page, write_csv
from howsmooth.studies.formats import read_records
from howsmooth.studies.store import Store
from tests import reasons


class Outline(HTMLParser):
    """The elements of a page, the attributes that could load something, and its embedded data."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.texts: dict[str, str] = {}
        self.name = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        self.elements.append((tag, attrs))
        if tag not in ("meta", "br", "img", "input"):
            self.open.append(tag)
            self.name = dict(attrs).get("id", "")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[self.name] = self.texts.get(self.name, "") + data

    @property
    def tables(self) -> dict[str, list[dict[str, str]]]:
        """The rows of the tables that the page saves as CSV."""
        packed = json.loads(self.texts["data"])
        texts = {name: gzip.decompress(base64.b64decode(text)).decode() for name, text in packed.items()}
        return {name: list(csv.DictReader(io.StringIO(text, newline=""))) for name, text in texts.items()}


def test_page_is_valid_and_loads_nothing(records, bounds):
    page = report_page([*records, *bounds])
    outline = Outline(page)
    assert outline.open == []
    links = [value for name, value in outline.attributes if name in ("src", "href", "srcset")]
    assert links and all(value.startswith(("#", "data:image/png;base64,")) for value in links)
    assert not any(name.startswith("on") for name, _ in outline.attributes)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {
        "http://www.w3.org/2000/svg"
    }  # an XML namespace, never loaded
    scripts = [dict(attributes).get("type") for tag, attributes in outline.elements if tag == "script"]
    assert scripts.count(None) == 1 and set(scripts) == {None, "application/json"}
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    ids = [value for name, value in outline.attributes if name == "id"]
    assert {"warnings", "measure", "bound", "sources"} <= set(ids) and len(ids) == len(set(ids))


def test_saved_tables_equal_the_records(records, bounds):
    tables = Outline(report_page([*records, *bounds])).tables
    for name in ("model", "layer", "n", "sample", "status", "seed"):
        assert [row[name] for row in tables["measurements"]] == [str(record[name]) for record in records]
    for name in ("value", "lower", "upper", "residual"):
        # exact: the page keeps every digit
        assert [float(row[name]) for row in tables["measurements"]] == [record[name] for record in records]
    # exact: the page keeps every digit
    assert [float(row["log_value"]) if row["log_value"] else None for row in tables["bounds"]] == [
        record["log_value"] for record in bounds
    ]
    # exact: the page keeps every digit
    assert [float(row["measured"]) for row in tables["bounds"]] == [record["measured"]["value"] for record in bounds]
    assert len(tables["laws"]) == 2 and float(tables["laws"][0]["exponent"]) == pytest.approx(0.25, abs=1e-6)


def test_tiles_do_not_pool_quantities(make):
    records = [make(0, n, 0) for n in (8, 16)] + [make(0, n, 0, value=1e6, quantity="released") for n in (8, 16)]
    assert "<dt>Lip, smallest to largest</dt><dd>1.68 … 2.00</dd>" in report_page(records)


def test_constants_measured_with_bounds_are_measurements(bounds):
    measured = tables_of(bounds)["measurements"]
    assert len(measured) == 6 and set(measured.values("n")) == {8, 16, 32}


def test_markup_in_records_is_escaped(directions):
    page = report_page(directions, title="<i>title</i>", notes=["<u>note</u>"])
    outline = Outline(page)
    assert not {"img", "u"} & set(outline.seen)
    body = page[: page.index('<script type="application/json"')]
    assert "&lt;u&gt;note" in body and "&lt;i&gt;title" in body and "&lt;/script&gt;&lt;img" in page
    words = [row["token"] for row in outline.tables["directions"]]
    assert words[1] == words[9] == directions[0]["words"][1]  # the second layer has the words of its chunk
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL):
        assert "<" not in block


def test_the_policy_allows_only_the_script_of_the_page(records):
    import hashlib

    page = report_page(records)
    script = page[page.rindex("<script>") + 8 : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page


def test_ten_thousand_records_stay_small(many, large_page):
    assert len(large_page.encode()) < 2.5e6
    # exact: the page keeps every digit
    assert [float(row["value"]) for row in Outline(large_page).tables["measurements"]] == [r["value"] for r in many]


def test_tables_that_are_too_long_for_a_page_are_named(make):
    page = report_page([make(0, 8, sample) for sample in range(12_001)])
    assert "Too long to be saved from a page: measurements." in page and set(Outline(page).tables) == {"laws"}


def test_csv_equals_the_records(records, bounds, directions, tmp_path):
    everything = [*records, *bounds, *directions]
    written = write_csv(tables_of(everything), tmp_path)
    assert [path.name for path in written] == ["measurements.csv", "laws.csv", "bounds.csv", "directions.csv"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "measurements.csv").read_bytes().decode("utf-8"), newline="")))
    wanted = [*records, *directions]
    # exact: the page keeps every digit
    assert [float(row["value"]) for row in rows] == [record["value"] for record in wanted]
    assert [row["token_1"] for row in rows] == [record["top_tokens"][0]["token"] for record in wanted]
    tokens = list(csv.DictReader(io.StringIO((tmp_path / "directions.csv").read_bytes().decode("utf-8"), newline="")))
    # A spreadsheet would take a word such as -- for a formula.
    words = ["'" + word if word.startswith(("=", "+", "-", "@")) else word for word in directions[0]["words"]]
    assert [row["token"] for row in tokens[:8]] == words
    assert [float(row["share"]) for row in tokens[:8]] == directions[0]["shares"]  # exact: the page keeps every digit


def test_directions_show_the_worst_sample_at_the_greatest_length(make):
    words = {n: [f"w{i}" for i in range(n)] for n in (4, 8)}
    records = [make(0, n, sample, shares=[1 / n] * n, words=words[n]) for n in (4, 8) for sample in (0, 1)]
    table = tables_of(records)["directions"]
    assert len(table) == 1 and table.values("n") == [8] and table.values("sample") == [1]
    assert len(one_row_per_token(table)) == 8
    assert "directions" not in tables_of([make(0, 8, 0, shares=[1.0], words=["a", "b"])])  # words of another chunk


def test_caveats_name_the_problems(make, bounds):
    caveats = caveats_of(
        [
            make(0, 8, 0),
            make(0, 8, 1, status="step limit"),
            make(0, 8, 2, status="lower bound only", upper=None),
            make(0, 16, 0, upper=None, notes=["float32 was used"]),
            *bounds,
        ],
        ["half of it is missing."],
    )
    texts = " ".join(caveat.text for caveat in caveats)
    assert "beyond the positions" in caveats_of([make(0, 8, 0, extrapolated=True)])[0].text
    assert f"1 of {4 + len(bounds)} records: Float32 was used." in texts
    assert "step limit" in texts and "Raise max_steps" in texts and "lower bound only" in texts
    assert "1 intervals have no finite upper end" in texts and "half of it is missing." in texts
    assert "Castin et al. 2024, Theorem 1" in texts and "one head, got 12" in texts
    levels = [caveat.level for caveat in caveats]
    assert levels == sorted(levels, key=lambda level: level != "warning") and "note" in levels
    assert caveats_of([make(0, 8, 0)]) == []


def test_the_expected_number_of_misses_is_a_caveat(many):
    assert any("10.1" in caveat.text for caveat in caveats_of(many))  # 10,080 at 99.9 % each


def test_sources_name_hashes_revisions_and_seeds(many):
    ((heading, rows),) = sources_of(many)
    values = dict(rows)
    assert heading == "openai-community/gpt2" and values["layers"] == "0 to 11" and values["seed"] == "0"
    assert "revision " + "e" * 40 in values["from"] and "5" * 64 in values["from"] and "0" * 64 in values["text"]


def test_records_with_open_intervals_or_missing_values_are_shown(make):
    odd = [
        make(0, 8, 0, upper=float("inf")),
        make(0, 16, 0, value=0.0, lower=0.0),
        make(1, 8, 0, upper=None),
        make(0, 8, 1) | {"layer": None, "map": "model"},
        make(0, 8, 1, value=None, lower=None, upper=None),
    ]
    rows = Outline(report_page(odd)).tables["measurements"]
    # exact: the page keeps every digit
    assert rows[0]["upper"] == "" and float(rows[1]["value"]) == 0.0 and rows[3]["layer"] == ""


def test_reading_joins_stores_and_lines_and_notes_what_it_omitted(records, bounds, tmp_path):
    lines, store = tmp_path / "lines.jsonl", tmp_path / "study.sqlite"
    lines.write_text("\n".join(map(json_line, [*records[:4], *bounds, {"flow": 1}])) + '\n{"cut', encoding="utf-8")
    with Store.write(store) as opened:
        opened.plan({"name": "x"}, ["a", "b", "c"])
        opened.add([("a", records[3], None), ("b", records[4], None)])
    read = read_records([str(lines), str(store)])
    assert len(read.records) == 4 + len(bounds) + 1
    notes = " ".join(read.notes)
    for words in ("1 records came twice", "without", "cut off", "2 of 3 tasks are done"):
        assert words in notes
    assert {record["kind"] for record in read.records} == {"measurement", "bound"}


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "got none"),
        (b'{"a": 1}\n', "got none"),
        (b"\xff\xfe\0", "neither"),
        (b"hello\n", "line 1"),
        (b"[1, 2]\n", "got none"),
        (None, "no such file"),
    ],
)
def test_bad_files_are_refused(content, words, tmp_path):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_records([str(path)])


def test_figures_are_pdf_files_of_column_width(many, bounds, records, tmp_path):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    from howsmooth.report.paper import write_figures

    written = write_figures([*many[::3], *bounds, *records], tmp_path)
    names = {path.name for path in written}
    for path in written:
        content = path.read_bytes()
        box = [float(number) for number in re.search(rb"/MediaBox \[([^\]]*)\]", content)[1].split()]
        assert content.startswith(b"%PDF") and box[2] == pytest.approx(3.3 * 72, abs=0.5)
    assert {name.split("-")[0].removesuffix(".pdf") for name in names} == {"growth", "lengths", "heads", "tightness"}


def test_csv_is_read_back_by_the_csv_module():
    table = Table.of_fields(
        [{"token": 'a "quoted", word', "x": 1e-300}, {"token": "two\nlines", "x": 2}, {"x": 0.1}], ["token", "x"]
    )
    rows = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert rows == [["token", "x"], ['a "quoted", word', "1e-300"], ["two\nlines", "2"], ["", "0.1"]]
