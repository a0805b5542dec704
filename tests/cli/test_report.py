"""`howsmooth report` and `measure --report`: files in, one page out, one line on bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import reasons


@pytest.fixture(scope="module")
def lines(tiny, text_file, tmp_path_factory):
    """The output of `measure --json` for a tiny model, computed once."""
    from howsmooth.cli import main

    path = tmp_path_factory.mktemp("lines") / "measured.jsonl"
    with pytest.raises(SystemExit) as left:
        main(["measure", tiny, "--text", text_file, "--lengths", "8,16,32", "--samples", "2", "--json", str(path)])
    assert left.value.code == 0
    return path


def test_measure_keeps_the_share_of_every_token(lines):
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    pieces = {}
    for record in records:
        assert len(record["shares"]) == record["n"] and sum(record["shares"]) == pytest.approx(1, abs=2e-3)
        top = record["top_tokens"][0]
        assert record["shares"][top["position"]] == pytest.approx(top["share"], rel=6e-3)
        pieces.setdefault((record["n"], record["sample"]), []).append(record["words"])
    for (n, _), words in pieces.items():
        assert len(words[0]) == n and words[1:] == [None] * (len(words) - 1)  # once for each piece


def test_report_writes_page_tables_and_figures(howsmooth, lines, tmp_path):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    page, tables, figures = tmp_path / "r.html", tmp_path / "csv", tmp_path / "figures"
    result = howsmooth(f"report {lines} -o {page} --tables {tables} --figures {figures} --title 'A <title>'")
    assert result.code == 0, result.err
    assert "12 records" in result.err
    assert "<title>A &lt;title&gt;</title>" in page.read_text(encoding="utf-8")
    assert {path.name for path in tables.iterdir()} == {"measurements.csv", "laws.csv", "directions.csv"}
    assert {path.name for path in figures.iterdir()} == {"growth.pdf", "lengths.pdf"}
    one = tmp_path / "one.jsonl"
    one.write_text(Path(lines).read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    assert "wrote 1 record to" in howsmooth(f"report {one} -o {page}").err


def test_measure_writes_the_same_page(howsmooth, tiny, text_file, tmp_path):
    page, records = tmp_path / "r.html", tmp_path / "r.jsonl"
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8,16 --samples 1 --report {page} --json {records}")
    assert result.code == 0 and f"wrote the report {page}" in result.err
    again = tmp_path / "again.html"
    assert howsmooth(f"report {records} -o {again}").code == 0
    assert again.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_two_runs_that_write_the_same_page(start_paused_at, howsmooth, lines, tmp_path):
    """The first pauses before it gives its page the name; the page that the second writes is not in its way."""
    page = tmp_path / "r.html"
    process = start_paused_at(f"report {lines} -o {page}", "howsmooth.reading:os.replace", 1)
    assert howsmooth(f"report {lines} -o {page}").code == 0
    (theirs,) = tmp_path.glob(".r.html.*partial")
    assert theirs.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    process.kill()
    process.communicate()


def test_the_default_name_is_report_html(howsmooth, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert howsmooth(f"report {lines}").code == 0 and (tmp_path / "report.html").stat().st_size > 1000


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "got none in"),
        (b"\x89PNG\r\n\x1a\n\xff", "which is neither"),
        (b"words\n", "line 1 of"),
        (b"SQLite format 3\0" + bytes(100), "expected a"),
        (None, "no such file"),
    ],
)
def test_bad_input_is_one_line(howsmooth, content, words, tmp_path):
    path = tmp_path / "records"
    if content is not None:
        path.write_bytes(content)
    result = howsmooth(f"report {path} -o {tmp_path / 'r.html'}")
    assert result.code == 2 and words in result.err and len(result.errors) == 1
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        ("-o {missing}/r.html", "expected a folder that exists for --report"),
        ("-o {folder}", "expected a file for --report"),
        ("--tables {lines}", "expected a folder that can be created for --tables"),
        ("-o {lines}", "expected different files"),
        ("", "expected different files"),
    ],
)
def test_unwritable_outputs(howsmooth, lines, options, words, tmp_path, monkeypatch):
    before = lines.read_bytes()
    target = options.format(missing=tmp_path / "missing", folder=tmp_path, lines=lines)
    if not options:
        monkeypatch.chdir(tmp_path)
        os.symlink(lines, tmp_path / "report.html")
    result = howsmooth(f"report {lines} {target}")
    assert result.code == 2 and words in result.err and len(result.errors) == 1
    assert lines.read_bytes() == before


@pytest.mark.parametrize("option", ["--tables", "--figures"])
def test_no_folder_is_created_without_records(howsmooth, tmp_path, option):
    result = howsmooth(f"report {tmp_path / 'missing.jsonl'} {option} {tmp_path / 'out' / 't'}")
    assert result.code == 2 and "missing.jsonl" in result.err and not list(tmp_path.iterdir())


def test_cells_that_a_spreadsheet_would_run_are_escaped():
    from howsmooth.records import csv_line

    assert csv_line(["=1+1", "+1+1", "-1+1", "@a", "\ta"]) == "'=1+1,'+1+1,'-1+1,'@a,'\ta"
    assert csv_line([-1.5, "-1.5", "+2e-3", "a=b", "-"]) == "-1.5,-1.5,+2e-3,a=b,'-"
