"""The question `depth`: its records from Python and from a file, and the page that is made of them alone."""

from __future__ import annotations

import howsmooth as package
from howsmooth.questions import question_of, record_error
from howsmooth.report.flow_page import depth_page
from howsmooth.report.flow_tables import depth_runs


def test_each_depth_is_a_valid_record(tiny, text_file):
    found = package.ask("depth", tiny, text_file, lengths=[6], samples=2)
    assert [(r["sample"], r["depth"], r["normed"]) for r in found] == [
        (sample, depth, normed)
        for sample in (0, 1)
        for depth, normed in ((0, False), (1, False), (2, False), (2, True))
    ]
    assert all(record_error(record) is None and question_of(record) == "depth" for record in found)
    assert "growth of a perturbation" in str(found)


def test_depths_in_the_file_are_not_computed_again(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    saved, page = tmp_path / "depth.jsonl", tmp_path / "page.html"
    line = f"flow model {tiny} --text {text_file} --lengths 6 --samples 2 --json {saved}"
    assert howsmooth(line).code == 0
    lines = saved.read_text().splitlines(keepends=True)
    saved.write_text("".join(lines[:-1]))
    again = howsmooth(f"{line} --report {page}")
    assert again.code == 0 and "7 depths had been in" in again.err and "wrote 1 depth " in again.err
    monkeypatch.setattr("howsmooth.models.layers.layer_chain", None)  # the page needs no model
    records = package.read(str(saved)).records
    assert depth_page(records[::-1]).count('"choice"') == page.read_text().count('"choice"') == 2


def test_the_depths_of_a_chunk_are_in_order_whatever_that_of_the_records(tiny, text_file):
    found = package.ask("depth", tiny, text_file, lengths=[6], samples=1, no_growth=True).records
    (run,) = depth_runs(found[::-1])
    assert run == found
