"""`howsmooth meanfield distance` on tiny checkpoints and on files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from howsmooth import load
from howsmooth.attention import SoftmaxField
from howsmooth.transport import TokenMeasure, conditional_distance, push_forward, read_measure, wasserstein
from tests.tolerances import close


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_texts_before_and_after_attention(howsmooth, tiny, text_file):
    result = howsmooth(
        f"meanfield distance {tiny} --text {text_file} --layers 1 --lengths 8 --p 1,2,inf --distance W --json -"
    )
    assert result.code == 0, result.err
    records = read(result.out)
    assert [record["p"] for record in records] == [1, 2, "inf"]
    model = load(tiny)
    chunks = model.chunks(Path(text_file).read_text(encoding="utf-8"), 8, 2)
    x, y = (model.activations(chunk, [1])[1] for chunk in chunks)
    f = model.attention(1, 8)
    for record, p in zip(records, (1, 2, math.inf), strict=True):
        before = wasserstein(TokenMeasure(x), TokenMeasure(y), p).value
        after = wasserstein(TokenMeasure(f(x)), TokenMeasure(f(y)), p).value
        assert record["before"]["value"] == pytest.approx(before, rel=1e-9)
        assert record["quotient"] == pytest.approx(after / before, rel=1e-9)
        assert record["distance"] == "W" and record["status"] == "converged"


def test_positions_as_times(howsmooth, tiny, text_file):
    """The default distance for a causal layer."""
    result = howsmooth(
        f"meanfield distance {tiny} --text {text_file} --other {text_file} --layers 0 --lengths 8 --p 2 --json -"
    )
    (record,) = read(result.out)
    assert record["distance"] == "d" and close(record["before"]["value"], 0) and record["quotient"] is None
    assert record["before"]["slices"] == 8


@pytest.fixture
def pair(tmp_path):
    draw = np.random.default_rng(1)
    np.savez(tmp_path / "a.npz", points=draw.normal(size=(6, 16)), times=np.arange(6) // 2 / 2)
    np.savez(tmp_path / "b.npz", points=draw.normal(size=(3, 16)), times=np.arange(3) / 2)
    return tmp_path / "a.npz", tmp_path / "b.npz"


def test_files_alone_and_through_a_layer(howsmooth, tiny, pair):
    first, second = (read_measure(path) for path in pair)
    (alone,) = read(howsmooth(f"meanfield file-distance --files {pair[0]} {pair[1]} --p 2 --json -").out)
    assert alone["before"]["value"] == pytest.approx(conditional_distance(first, second).value, rel=1e-12)
    assert alone["after"] is None and alone["quotient"] is None
    model = load(tiny, dtype=torch.float64)
    result = howsmooth(
        f"meanfield file-distance {tiny} --files {pair[0]} {pair[1]} --layers 0 --p 2 --dtype float64 --json -"
    )
    assert result.code == 0, result.err
    (record,) = read(result.out)
    images = [push_forward(SoftmaxField(model.attention(0)), m) for m in (first, second)]
    assert record["after"]["value"] == pytest.approx(conditional_distance(*images).value, rel=1e-9)


def test_tables(howsmooth, tiny, text_file, tmp_path):
    shown = howsmooth(f"meanfield distance {tiny} --text {text_file} --layers 0 --lengths 8")
    assert shown.code == 0 and "d₂" in shown.out and "quotient" in shown.out and "two chunks of" in shown.out
    for name, time in (("a", 0.5), ("b", 0.7)):
        (tmp_path / f"{name}.csv").write_text(f"time,x\n{time},1\n")
    plot = tmp_path / "layers.svg"
    drawn = howsmooth(f"meanfield distance {tiny} --text {text_file} --lengths 4,8 --p 1,2,∞ --plot {plot}")
    assert drawn.code == 0 and "p = ∞, n = 8" in plot.read_text()
    apart = howsmooth(
        f"meanfield file-distance --files {tmp_path}/a.csv {tmp_path}/b.csv --p 2 --plot {tmp_path}/bars.png"
    )
    assert (tmp_path / "bars.png").stat().st_size > 1000
    assert apart.code == 0 and "∞" in apart.out and "time 0.5 occurs in the" in " ".join(apart.out.split())


@pytest.mark.parametrize(
    "line, message",
    [
        ("--p 0.5", "numbers from 1"),
        ("--p two", "numbers from 1"),
        ("--other absent.txt", "--other: "),
        ("--other -", "expected --other as a file"),
        ("--distance x", "--distance"),
        ("--lengths 0", "greater than or equal to 1"),
    ],
)
def test_bad_input_is_one_line_and_code_2(howsmooth, tiny, line, message):
    result = howsmooth(f"meanfield distance {tiny} {line}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "expected files of two measures, got none"),
        ("--files a.npz b.npz", "that exist, got a.npz"),
        ("--files a.npz b.txt", "end in .npz, .safetensors, .csv, got b.txt"),
        ("--files a.csv a.csv --layers 9", "expected layers of"),
        ("--files a.csv a.csv --p 0.5", "numbers from 1"),
    ],
)
def test_bad_input_of_files_is_one_line_and_code_2(howsmooth, tiny, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x\n1\n")
    result = howsmooth(f"meanfield file-distance {tiny} {line}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1


def test_weights_that_do_not_sum_to_one_name_the_option(howsmooth, tmp_path):
    (tmp_path / "a.csv").write_text("x,weight\n1,2\n")
    result = howsmooth(f"meanfield file-distance --files {tmp_path}/a.csv {tmp_path}/a.csv")
    assert result.code == 2 and "pass --normalise" in result.err


def test_suffixes_are_those_of_the_library():
    """The command lists them itself: the module of measures imports torch."""
    from howsmooth.questions import file_distance
    from howsmooth.transport import files

    assert file_distance.SUFFIXES == files.SUFFIXES
