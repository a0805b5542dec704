"""`howsmooth reproduce`: figures, records, an index, and messages about missing models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.data import make_gpt2


@pytest.fixture(autouse=True)
def _neither_hub_nor_corpora(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HOWSMOOTH_DATA", str(tmp_path))
    for package in ("nltk", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_figures_of_a_named_model_and_one_that_is_missing(howsmooth, tiny, tmp_path):
    out = tmp_path / "out"
    line = (
        f"reproduce text radius norms --models {tiny},nobody/nothing --lengths 4,6,8,12,16 --samples 2 --workers 0 "
        f"--tol 1e-2 --out {out}"
    )
    first = howsmooth(line)
    assert first.code == 0 and "missing nobody/nothing: " in first.out
    pictures = sorted(path.name for path in out.glob("*.png"))
    assert len(pictures) == 5 and "text-nobody-nothing.png" in pictures and "norms.png" in pictures
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    index = (out / "index.md").read_text(encoding="utf-8")
    assert "### Missing" in index and "embedded text is used instead" in index
    assert "Consecutive pieces of the embedded text, cut as in the paper." in index and "Alice" not in index
    assert "records, 2 pictures, 1 model missing" in first.out and "records, 1 picture, 1 model missing" in first.out
    assert all(name.removesuffix(".png") in index and name in (out / "index.html").read_text() for name in pictures)
    records = lines(out / "text.jsonl")
    assert {record["quantity"] for record in records} == {"lipschitz", "released", "released-map", "bound"}
    assert {record["text"] for record in records if record["quantity"] != "bound"} == {"embedded"}
    # The second figure has the first one's numbers, and the same command finds all of them again.
    tasks = [
        {record["task"] for record in lines(out / f"{name}.jsonl") if record["quantity"] == "lipschitz"}
        for name in ("text", "radius")
    ]
    assert tasks[0] == tasks[1] != set()
    # exact: read from the store
    assert howsmooth(line.replace("radius norms ", "")).code == 0 and lines(out / "text.jsonl") == records
    # Our report reads every record of every figure.
    page = tmp_path / "page.html"
    shown = howsmooth(f"report {' '.join(map(str, sorted(out.glob('*.jsonl'))))} --report {page}")
    assert shown.code == 0 and [line.split()[0] for line in shown.errors] == ["wrote"]  # nothing was left out
    assert "Further records" in page.read_text(encoding="utf-8")


def test_a_file_of_gpt2s_attention_in_place_of_the_hub(howsmooth, tmp_path):
    done = howsmooth(
        f"reproduce synthetic --lengths 4,8 --samples 1 --tol 1e-2 "
        f"--gpt2-attention {make_gpt2(tmp_path)} --out {tmp_path}"
    )
    assert done.code == 0 and "missing" not in done.out and (tmp_path / "synthetic.png").is_file()
    assert {record["layer"] for record in lines(tmp_path / "synthetic.jsonl")} == {0, 6, 11}


@pytest.mark.parametrize(
    "line, message",
    [
        ("reproduce txt", "did you mean 'text'?"),
        ("reproduce text --lengths 1..8", "lengths of at least 2, got 1"),
        ("reproduce text --lengths a", "expected lengths such as"),
        ("reproduce text --layers x", "--layers"),
        ("reproduce text --data nowhere", "expected a folder for --data, got nowhere"),
        ("reproduce synthetic --gpt2-attention nothing.safetensors", "expected a file for --gpt2-attention"),
    ],
)
def test_bad_input(howsmooth, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    done = howsmooth(line)
    assert done.code == 2 and message in done.err and not list(tmp_path.iterdir())
