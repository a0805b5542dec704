"""`python -m experiments.prediction` on a tiny checkpoint: records, resuming, correlations, figure, bad input."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from experiments.prediction.__main__ import main
from tests.cli.conftest import ENVIRONMENT, WORDS
from tests.docs.comparison import ROOT
from tests.paused import start_paused
from tests.tolerances import FLOAT32, at_most, same_record

LINE = "{model} --texts {text} --count 4 --length 8 --steps 2 --calls 5 --edits 1 --resamples 100"


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def prediction(capfd):
    """Run the experiment in this process."""

    def run(line: str) -> SimpleNamespace:
        capfd.readouterr()
        try:
            code = main(shlex.split(line))
        except SystemExit as left:
            code = left.code
        printed = capfd.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return run


@pytest.fixture(scope="module")
def line(tiny, tmp_path_factory) -> str:
    """Return documents in the format of AG_NEWS, with one that is too short and one duplicate."""
    draw = random.Random(0)
    documents = [" ".join(draw.choices(WORDS, k=9)) for _ in range(6)]
    documents[1:1] = ["old stone", documents[0]]
    path = tmp_path_factory.mktemp("news") / "news.csv"
    path.write_text("".join(f"1,news,{document}\n" for document in documents), encoding="utf-8")
    return LINE.format(model=tiny, text=path)


@pytest.fixture(scope="module")
def whole(line, tmp_path_factory):
    """Return the file of an uninterrupted run in a process of its own."""
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "experiments.prediction",
        *shlex.split(line),
        "--out",
        str(path),
        "--json",
        str(path.with_suffix(".json")),
    ]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_records_have_predictors_and_attacks_of_every_text(whole):
    records = read(whole)
    places = [(record["text"], record["place"], record["layer"]) for record in records]
    assert places == [
        (text, place, layer)
        for text in range(4)
        for place, layer in (("layer", 0), ("layer", 1), ("model", None), ("tokens", None))
    ]
    assert len({record["key"] for record in records}) == len(records)
    for record in records:
        if record["place"] == "layer":
            sigma, values = record["sigma"], record["predictors"]
            assert at_most(sigma["lower"], values["sigma"], sigma["upper"])
            assert at_most(sigma["upper"], values["local_bound"], tol=1e-6)
            assert at_most(values["sigma"], values["yudin"]) and at_most(values["sigma"], values["after_splitting"])
            # exact: as given on the command line
            assert {attack["share"] for attack in record["attacks"]} == {0.001, 0.1}
        assert "seconds" not in json.dumps(record)


def test_correlations_are_written_with_reasons_for_undefined_ones(whole):
    rows = read(whole.with_suffix(".json"))
    correlations = [row for row in rows if row["kind"] == "correlation"]
    assert {row["scope"] for row in correlations} == {"within", "pooled", "layer"}
    small = next(
        row
        for row in correlations
        if (row["outcome"], row["predictor"], row["scope"]) == ("layer_gain_small", "sigma", "within")
    )
    assert small["value"] > 0.7 and small["texts"] == 4 and small["family"] > 50
    assert all(row["status"].startswith("undefined") for row in correlations if row["value"] is None)
    curves = [row for row in rows if row["kind"] == "calibration"]
    assert {(curve["place"], curve["layer"]) for curve in curves} == {("layer", 0), ("layer", 1), ("model", None)}
    ratios = [curve["ratio"] for curve in curves if curve["place"] == "layer" and curve["share"] == 0.001]
    assert ratios == pytest.approx([1] * len(ratios), abs=0.05)


def test_a_killed_run_is_resumed_to_the_same_file(line, whole, prediction, tmp_path):
    out = tmp_path / "out.jsonl"
    process = start_paused(
        f"{line} --out {out}", "experiments.records:Records.append", 4, ENVIRONMENT, "experiments.prediction.__main__"
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = out.read_bytes()
    assert kept.count(b"\n") == 3
    out.write_bytes(kept + b'{"model": "cut sh')  # what a kill may leave of a line
    result = prediction(f"{line} --out {out}")
    assert result.code == 0, result.err
    assert "3 of them from before" in result.err
    assert out.read_bytes().startswith(kept)
    assert same_record(read(out), read(whole), tol=FLOAT32)


def test_nothing_is_computed_twice_and_more_texts_are_added(prediction, line, whole, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole.read_bytes())
    result = prediction(f"{line} --out {out}")
    assert result.code == 0 and "16 of them from before" in result.err
    assert out.read_bytes() == whole.read_bytes()
    assert len({tuple(record["ids"]) for record in read(out)}) == 4
    more = prediction(f"{line.replace('--count 4', '--count 6')} --out {out} --attacks layer")
    assert more.code == 0, more.err
    assert "12 records" in more.err and len(read(out)) == 20


def test_tables_and_plot(prediction, line, whole, tmp_path):
    out, plot = tmp_path / "out.jsonl", tmp_path / "plot.png"
    out.write_bytes(whole.read_bytes())
    result = prediction(f"{line} --out {out} --plot {plot} --predictors sigma,max_norm,ball_lower,entropy")
    assert result.code == 0, result.err
    for said in (
        "attacks on a layer",
        "attacks on the model's input",
        "attacks on tokens",
        "layers alone",
        "do not trust the intervals",
        "ranks as above",
        "Achieved change over the predicted",
    ):
        assert said in result.out
    assert plot.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "options, said",
    [
        ("--count 2", "expected at least 3 texts to rank, got 2"),
        ("--count 60", "60 different texts of 8 tokens, got 6"),
        ("--length 1", "length of at least 2 tokens"),
        ("--length 65", "length of at most 64 tokens"),
        ("--layers 7", "between 0 and 1"),
        ("--predictors luck", "expected predictors among sigma"),
        ("--attacks layer,heads", "expected places among layer, model, tokens"),
        ("--shares 0.1", "a small and a large budget"),
        ("--shares 0.1,0.001", "a small and a large budget"),
        ("--edits 9", "edit budget of at most"),
        ("--plot picture.xyz", ".png"),
        ("--confidence 2", "between 0 and 1"),
    ],
)
def test_bad_options(prediction, line, tmp_path, options, said):
    result = prediction(f"{line} --out {tmp_path / 'out.jsonl'} {options}")
    assert result.code == 2 and said in result.err, result.err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "content, said",
    [
        ("", "expected some text"),
        (" \n", "expected some text"),
        ("river", "got 0 in"),
        ("the river moves slowly", "got 0 in"),
    ],
)
def test_bad_texts(prediction, tiny, tmp_path, content, said):
    file = tmp_path / "text.txt"
    file.write_text(content, encoding="utf-8")
    result = prediction(f"{LINE.format(model=tiny, text=file)} --out {tmp_path / 'out.jsonl'}")
    assert result.code == 2 and said in result.err, result.err


def test_a_file_with_other_records_is_refused(prediction, line, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text('{"value": 1}\n{"value": 2}\n', encoding="utf-8")
    result = prediction(f"{line} --out {out}")
    assert result.code == 2 and "expected predictors and attacks" in result.err
    assert out.read_text(encoding="utf-8").count("value") == 2
    missing = prediction(line)
    assert missing.code == 2 and "--out" in missing.err
