"""`howsmooth flow model`, and `howsmooth flow weights`."""

from __future__ import annotations

import json
import re

import pytest

from tests.tolerances import at_most


@pytest.fixture(scope="module")
def river(text_file) -> str:
    return f"--text {text_file}"


def test_tables_records_figure_and_page(howsmooth, tiny, river, tmp_path):
    files = {name: tmp_path / name for name in ("a.jsonl", "a.csv", "a.png", "a.html")}
    shown = howsmooth(
        f"flow model {tiny} {river} --lengths 6,8 --samples 2",
        "--json",
        str(files["a.jsonl"]),
        "--csv",
        str(files["a.csv"]),
        "--plot",
        str(files["a.png"]),
        "--report",
        str(files["a.html"]),
    )
    assert shown.code == 0, shown.err
    records = [json.loads(line) for line in files["a.jsonl"].read_text().splitlines()]
    assert len(records) == 2 * 2 * 4  # two layers, the embeddings before and the norm after
    assert [(r["n"], r["sample"]) for r in records[::4]] == [(6, 0), (6, 1), (8, 0), (8, 1)]
    assert [(r["depth"], r["normed"]) for r in records[:4]] == [(0, False), (1, False), (2, False), (2, True)]
    assert all(at_most(r["lower"], r["value"], r["product"] * 1.02) for r in records)
    assert len(files["a.csv"].read_text().splitlines()) == 17
    assert files["a.png"].read_bytes()[:4] == b"\x89PNG"
    assert "through 2 layers" in shown.out and "2, norm" in shown.out and "σ₁ of all so far" in shown.out
    assert "wrote 16 depths" in shown.err
    page = files["a.html"].read_text()
    assert page.count('"choice"') == 4 and "http" not in re.sub("http-equiv|http://www.w3.org/", "", page)


def test_without_growth_one_forward_pass(howsmooth, tiny, river):
    shown = howsmooth(f"flow model {tiny} {river} --lengths 6 --no-growth --together 0.5 --json -")
    records = [json.loads(line) for line in shown.out.splitlines()]
    assert shown.code == 0 and len(records) == 4 and all(r["own"] is None for r in records)
    assert [len(r["clusters"]) for r in records] == [1] * 4
    assert "growth of a perturbation" not in shown.err and "clusters" in shown.err  # the table goes where it may


def test_some_depths_and_a_dark_figure(howsmooth, tiny, river, tmp_path):
    plot = tmp_path / "a.svg"
    shown = howsmooth(f"flow model {tiny} {river} --lengths 6 --depths 2 --tokens no-first --theme dark --plot {plot}")
    assert shown.code == 0 and "first token held fixed" in shown.out and plot.stat().st_size > 1000


@pytest.mark.parametrize(
    "line, words",
    [
        ("flow model no-such-model", "no-such-model"),
        ("flow model {tiny} {river} --depths 3", "depths from 1 to 2, the layers of"),
        ("flow model {tiny} {river} --depths 0", "integers from 1"),
        ("flow model {tiny} {river} --lengths 65", "at most 64 tokens, the positions of"),
        ("flow model {tiny} {river} --lengths 60 --samples 40", "give a longer text"),
        ("flow model {tiny} {river} --lengths 3", "at least 4 tokens"),
        ("flow model {tiny} {river} --together 0.1,2.5", "between 0 and 2"),
        ("flow model {tiny} {river} --depths 1 --no-growth", "leave one of the two out"),
        ("flow model {tiny} --text none.txt", "none.txt"),
        ("flow model {tiny} --report a.pdf", "ending in .html"),
        ("flow model {tiny} --report a.html --plot a.xyz", "ending in .png"),
        ("flow model {tiny} --json a.html --report a.html", "different files"),
        ("flow weights {tiny} --layers 9 {river}", "between 0 and 1, got 9"),
        ("flow weights {tiny} --layers 0 --heads 7 {river}", "between 0 and 1, got 7"),
        ("flow weights {tiny} --together 0 {river}", "--together: expected a finite number"),
        ("flow weights {tiny} --noise 1 --growth 2 --solver residual --solver-steps 4", "--growth without noise"),
        ("flow particles --report a.htmx", "ending in .html"),
    ],
)
def test_bad_input_is_one_line(howsmooth, tiny, river, line, words):
    shown = howsmooth(line.format(tiny=tiny, river=river))
    assert shown.code == 2 and words in shown.err and len(shown.errors) == 1


def test_real_weights_move_particles(howsmooth, tiny, river, tmp_path):
    page, plot = tmp_path / "a.html", tmp_path / "a.png"
    shown = howsmooth(
        f"flow weights {tiny} {river} --lengths 7 --frames 5 --lipschitz --growth 2 "
        f"--residual-layers 3 --report {page} --plot {plot} --json -"
    )
    assert shown.code == 0, shown.err
    records = [json.loads(line) for line in shown.out.splitlines()]
    depths, grown = ([r for r in records if r["kind"] == kind] for kind in ("particles", "perturbation growth"))
    assert [r["t"] for r in depths] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])
    assert depths[0]["n"] == 7 and depths[0]["d"] == 16
    assert all(r["local"] > 0 and r["sphere"] for r in depths)
    assert [r["maps"] for r in grown] == [2, 4]  # no step crosses from one layer to the next: 3 became 4
    assert page.stat().st_size > 10_000 and plot.stat().st_size > 1000
    one = howsmooth(f"flow weights {tiny} --layers 1 --heads 0 {river} --lengths 7 --frames 3 --no-sphere --until 1")
    assert one.code == 0 and "attention of layer 1, head 0" in one.out and "finished at depth 1" in one.out
