"""`howsmooth attack` on a tiny checkpoint: worst cases, and certified balls around a text."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from howsmooth import load, local_lipschitz
from tests.tolerances import at_most


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("within", ["norm", "ball", "sphere --radius data", "near --eps 0.5"])
def test_worst_case_exceeds_text_and_can_be_measured_again(howsmooth, tiny, text_file, tmp_path, within):
    result = howsmooth(
        f"attack worst-case {tiny} --text {text_file} --layers 1 --lengths 8 --within {within} "
        f"--restarts 4 --steps 15 --json - --artefacts {tmp_path}"
    )
    assert result.code == 0, result.err
    (record,) = read(result.out)
    assert at_most(record["lower"], record["value"], record["upper"])
    assert at_most(record["best_start"], record["value"])
    assert at_most(torch.tensor(record["lower"]).log(), record["upper_bound"]["log_value"])
    if within.startswith("near"):
        assert at_most(record["on_text"]["value"] * (1 - 1e-3), record["value"])
    assert sum(record["masses"]) == pytest.approx(8)
    assert record["file"].startswith("layer1-n8-")
    tokens = load_file(tmp_path / record["file"])["tokens"]
    again = local_lipschitz(load(tiny, dtype=torch.float64).attention(1), tokens.double(), tol=1e-6)
    assert at_most(abs(again.value - record["value"]), 2e-3 * again.value)


def test_certificate_bounds_what_ascent_finds(howsmooth, tiny, text_file):
    result = howsmooth(
        f"attack ball {tiny} --text {text_file} --layers 0 --lengths 8 --eps 0.001,0.1 --restarts 2 --steps 5 --json -"
    )
    assert result.code == 0, result.err
    small, large = read(result.out)
    for record in (small, large):
        for inside in (record["centre"], record["found"]):
            assert at_most(inside["lower"], record["certified"])
        assert record["tightness"] == pytest.approx(record["certified"] / record["found"]["value"])
    assert small["certified"] <= large["certified"]


def test_tables(howsmooth, tiny, text_file):
    chosen = f"{tiny} --text {text_file} --layers 0 --lengths 8 --restarts 2 --steps 3"
    worst = howsmooth(f"attack worst-case {chosen}")
    assert worst.code == 0 and "tokens per point" in worst.out and "1 worst case" not in worst.out
    ball = howsmooth(f"attack ball {chosen} --heads 1 --eps 0.01")
    assert ball.code == 0 and "certified" in ball.out and "vacuous" in ball.out


@pytest.mark.parametrize(
    "line, message",
    [
        ("worst-case --within near", "--eps with --within near"),
        ("worst-case --eps 0.1", "--eps with --within near"),
        ("worst-case --within cube", "cube"),
        ("ball --eps 0.1,-2", "positive numbers"),
        ("ball --eps soon", "positive numbers"),
        ("ball --eps 1e200", "up to 1e+100"),
        ("worst-case --restarts 0", "0"),
    ],
)
def test_bad_input(howsmooth, tiny, text_file, line, message):
    command, *options = line.split(" ", 1)
    result = howsmooth(f"attack {command} {tiny} --text {text_file} {' '.join(options)}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1


def test_a_folder_that_cannot_be_created(howsmooth, tiny, text_file):
    result = howsmooth(f"attack worst-case {tiny} --text {text_file} --lengths 8 --artefacts {text_file}/under")
    assert result.code == 2 and "folder that can be created" in result.err
