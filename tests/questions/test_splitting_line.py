"""The question "splitting-line": two or three atoms on a line."""

from __future__ import annotations

import json

import pytest

import howsmooth as package
from howsmooth.lipschitz.criterion import line_splitting_grid
from howsmooth.questions import record_error
from tests.tolerances import close


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_line(howsmooth, tmp_path):
    plot = tmp_path / "picture.svg"
    result = howsmooth(f"meanfield splitting-line --resolution 100 --plot {plot} --json {tmp_path / 'p.json'}")
    assert result.code == 0 and plot.exists()
    (record,) = read((tmp_path / "p.json").read_text())
    assert record["share"] == pytest.approx(0.067, abs=2e-3) and "6.84 %" in result.out
    three = howsmooth("meanfield splitting-line --resolution 50 --third 1 --masses 1,1.5,2 --json -")
    assert read(three.out)[0]["masses"] == [1.0, 1.5, 2.0]  # exact: as given on the command line
    masked = howsmooth("meanfield splitting-line --resolution 50 --masses 1,1 --masked --json -")
    assert close(
        read(masked.out)[0]["share"], line_splitting_grid(points=50, masked=True)[1].splits.double().mean(), tol=1e-3
    )
    assert "masked" in masked.err


def test_a_figure_is_drawn_from_the_record_alone(tmp_path):
    found = package.ask("splitting-line", masses=[1, 3], resolution=30)
    assert record_error(found[0]) is None and len(json.dumps(found[0])) < 2000
    kept = package.read(found.save(tmp_path / "line.jsonl"))
    figure = kept.plot()
    image = figure.axes[0].images[0].get_array()
    _, truth = line_splitting_grid(points=30, masses=(1.0, 3.0))
    assert image.shape == (30, 30) and close(torch_of(image), truth.ratio)
    assert str(kept) == str(found) and f"{100 * found[0]['share']:.3g} %" in str(found)


def torch_of(array):
    import torch

    return torch.tensor(array.data)


def test_several_records_are_panels_of_one_figure():
    found = [package.ask("splitting-line", resolution=20, masked=masked)[0] for masked in (False, True)]
    assert found[0]["task"] != found[1]["task"]
    titles = [panel.get_title(loc="left") for panel in package.Measurements(found).plot().axes]
    assert titles[0].startswith("a = −1, masses 1 : 1\n") and titles[1].startswith("a = −1, masses 1 : 1, masked\n")


def test_an_existing_record_is_not_computed_again(howsmooth, tmp_path):
    command = f"meanfield splitting-line --resolution 20 --json {tmp_path / 'line.jsonl'}"
    assert howsmooth(command).code == 0
    assert "1 record had been in" in howsmooth(command).err
    assert "had been in" not in howsmooth(f"{command} --extent 5").err


@pytest.mark.parametrize(
    "line, message",
    [
        ("--masses 1,2,3", "--masses: expected a number for each of 2 atoms, got 3"),
        ("--third 1 --masses 1,2", "--masses: expected a number for each of 3 atoms, got 2"),
        ("--masses 1,-2", "positive numbers"),
        ("--a nan", "--a: expected a finite number"),
        ("--extent 0", "--extent: expected a finite number between 0 and 1000"),
        ("--lengths 8", "No such option"),
        ("minilm", "unexpected extra argument"),
    ],
)
def test_bad_input(howsmooth, line, message):
    result = howsmooth(f"meanfield splitting-line {line}")
    assert result.code == 2 and message.lower() in result.err.lower() and len(result.errors) == 1
