"""A disk that fills up during a run: one line, exit code 2, and the table is still printed."""

from __future__ import annotations

import csv
import json
import os

import pytest

from howsmooth.cli import demo
from howsmooth.cli.outputs import RecordFile
from tests import reasons

FULL = "/dev/full"  # every write to it fails as on a full disk
pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason=reasons.device_file(FULL))


def describe_validation_errors(result) -> list[str]:
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    return [line for line in result.err.splitlines() if line.startswith("howsmooth: ")]


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_records(howsmooth, tiny, text_file, option):
    line = f"measure {tiny} --text {text_file} --layers 0 --lengths 8 --samples 2"
    result = howsmooth(line, option, FULL)
    (line,) = describe_validation_errors(result)
    assert f"{option}, got {FULL} (no space left on device)" in line
    assert "99.9 % sure" in result.out
    assert "wrote" not in result.err


def test_the_other_outputs_are_still_written(howsmooth, tiny, text_file, tmp_path):
    kept, plot = tmp_path / "kept.csv", tmp_path / "growth.png"
    result = howsmooth(
        f"measure {tiny} --text {text_file} --layers 0 --lengths 8 --samples 2 --json {FULL} --csv {kept} --plot {plot}"
    )
    assert len(describe_validation_errors(result)) == 1
    with kept.open() as stream:
        assert len(list(csv.DictReader(stream))) == 1
    assert f"wrote 1 estimate to {kept}" in result.err
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_disk_that_fills_up_while_closing(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    def close(self, close=RecordFile.close):
        close(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordFile, "close", close)
    path = tmp_path / "m.jsonl"
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --json {path}")
    (line,) = describe_validation_errors(result)
    assert f"--json, got {path} (no space" in line and "interval" in result.out


def test_plot(howsmooth, tiny, text_file, tmp_path):
    plot = tmp_path / "growth.png"
    plot.symlink_to(FULL)
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --plot {plot}")
    (line,) = describe_validation_errors(result)
    assert f"--plot, got {plot} (no space" in line
    assert "drew" not in result.err and "interval" in result.out


@pytest.mark.parametrize("option", ["", "--json -"])
def test_stdout(start, tmp_path, option):
    """In its own process, because Python flushes stdout again at exit."""
    plot = tmp_path / "regimes.png"
    line = f"meanfield regimes --gamma-r2 0.5 --to 4 --plot {plot} {option}"
    with open(FULL, "w") as full:
        process = start(line, stdout=full)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "stdout (no space left on device)" in err
    assert "Traceback" not in err and "Exception ignored" not in err
    assert plot.exists(), "the plot does not depend on stdout"


@pytest.mark.parametrize("name", ["growth.png", "index.html", "measurements.jsonl"])
def test_demo(howsmooth, tiny, tmp_path, monkeypatch, name):
    monkeypatch.setattr(demo, "SPECS", ({"models": tiny, "layers": [0, 1], "lengths": [8, 16], "samples": 2},))
    full = tmp_path / name
    full.symlink_to(FULL)
    result = howsmooth(f"demo --out {tmp_path}")
    (line,) = describe_validation_errors(result)
    assert f"--out, got {full} (no space" in line
    assert "99.9 % sure" in result.out and str(full) not in result.out
    others = {"growth.png", "index.html", "measurements.jsonl"} - {name}
    assert others <= {path.name for path in tmp_path.iterdir()}
    if name != "measurements.jsonl":
        lines = (tmp_path / "measurements.jsonl").read_text().splitlines()
        assert len([json.loads(line) for line in lines]) == 8
