"""The question "splitting": heads and whole layers of a model, its spec, and its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import howsmooth as package
from howsmooth import InputError, load
from howsmooth.lipschitz import splits
from howsmooth.questions import record_error
from howsmooth.questions.inputs import NormalisedInputs
from tests import data
from tests.oracles.splitting import split_norm
from tests.tolerances import at_most


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_heads_of_a_model(howsmooth, tiny, text_file, tmp_path):
    plot = tmp_path / "heads.png"
    result = howsmooth(f"meanfield splitting {tiny} --text {text_file} --lengths 4,8 --json - --plot {plot}")
    assert result.code == 0, result.err
    records = read(result.out)
    assert len(records) == 2 * 2 * 2 and plot.stat().st_size > 1000 and "split" in result.err
    model = load(tiny, dtype=torch.float64)
    record = next(r for r in records if (r["layer"], r["head"], r["n"]) == (1, 1, 8))
    (chunk,) = model.chunks(Path(text_file).read_text(), 8, 1)
    x = model.activations(chunk, [1])[1]
    head = model.attention(1).head(1)
    truth = splits(head, x, tol=1e-6)
    assert at_most(record["ratio_lower"], truth.ratio, record["ratio_upper"], tol=1e-6)
    assert max(record["norm"]["value"], record["own"]) == pytest.approx(split_norm(head, x, 2), rel=2e-2)
    assert record["token"] == chunk.words[record["atom"]] and len(record["own_norms"]) == 8


def test_the_whole_model_is_neither_offered_nor_loaded(howsmooth):
    """The criterion is that of one layer."""
    for command, names in (("splitting", "attention, head, normed"), ("splitting-copies", "attention, normed")):
        offered = howsmooth(f"meanfield {command} --help").out
        assert f"{names.replace(', ', '|')}|block|layer" in offered and "layer|model" not in offered
        result = howsmooth(f"meanfield {command} no-such-model --map model")
        assert result.code == 2 and result.out == ""
        assert result.err.strip() == (f"howsmooth: --map: expected a map among {names}, block, layer, got 'model'")


def test_whole_layers_are_the_norm_of_the_duplicated_input(howsmooth, tiny, text_file):
    """GPT-2 adds positions to the tokens, so that copies keep theirs; the mask lets copies attend to each other."""
    result = howsmooth(
        f"meanfield splitting {tiny} --text {text_file} --lengths 6 --layers 1 --map layer --tol 0.001 "
        "--dtype float64 --json -"
    )
    assert result.code == 0, result.err
    (record,) = read(result.out)
    model = load(tiny, dtype=torch.float64)
    (chunk,) = model.chunks(Path(text_file).read_text(), 6, 1)
    at = model.map_at(chunk, 1, "layer")
    time = torch.arange(6).repeat_interleave(2)
    mask = torch.where(time[None, :] <= time[:, None], 0.0, -torch.inf).double()[None, None]
    call = at.f.call

    def together(t):
        return mask if hasattr(t, "howsmooth_pattern") else t

    args, kwargs = [together(t) for t in call.args[1:]], {name: together(t) for name, t in call.kwargs.items()}
    assert any(t is mask for t in [*args, *kwargs.values()])
    doubled = torch.autograd.functional.jacobian(
        lambda y: call.module(y[None], *args, **{**kwargs, "position_ids": None})[0].reshape(12, -1),
        at.x.repeat_interleave(2, 0),
    )
    truth = float(torch.linalg.matrix_norm(doubled.reshape(12 * at.x.shape[1], -1), ord=2))
    assert max(record["norm"]["value"], record["own"]) == pytest.approx(truth, rel=2e-3)


def split(path: Path) -> dict:
    (record,) = package.ask("splitting", path, layers=[6], heads=[3], lengths=[3])
    return record


@pytest.mark.parametrize("source", data.SOURCES)
def test_heads_are_read_and_normalised(source, tmp_path):
    path = data.gpt2_file(source, tmp_path)
    record, file = split(path), load(path, dtype="float64")
    x = NormalisedInputs(load(path)).draw(3, 0, 6)
    truth = splits(file.attention(6).head(3), x.double(), tol=1e-6)
    assert at_most(record["ratio_lower"], truth.ratio, record["ratio_upper"])
    assert (record["layer"], record["head"], record["verdict"]) == (6, 3, truth.status)
    assert record["source"]["sha256"] and record["inputs"] == "normalised" and record_error(record) is None


@data.needs(data.GPT2)
def test_a_true_head_does_not_split():
    assert split(data.DATA / data.GPT2)["verdict"] == "does not split"


def test_a_missing_file_is_refused():
    with pytest.raises(InputError, match="expected the file"):
        load("nowhere.safetensors")


def test_existing_records_are_not_computed_again(howsmooth, tiny, text_file, tmp_path):
    lines = tmp_path / "found.jsonl"
    command = f"meanfield splitting {tiny} --text {text_file} --lengths 4 --json {lines}"
    assert howsmooth(f"{command} --layers 0").code == 0
    both = howsmooth(f"{command} --layers 0,1")
    assert both.code == 0 and "2 records had been in" in both.err, both.err
    found = read(lines.read_text())
    assert [(r["layer"], r["head"]) for r in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    again = howsmooth(f"{command} --layers 0,1")
    assert "4 records had been in" in again.err and read(lines.read_text()) == found
    assert all(record_error(record) is None for record in found)
    assert howsmooth(f"report {lines} --report {tmp_path / 'page.html'}").code == 0
    assert "mass splitting" in (tmp_path / "page.html").read_text()


def test_a_ratio_to_zero_is_shown(tiny, text_file):
    """JSON writes ∞ as null: tables and figures of such records are made."""
    (record,) = package.ask("splitting", tiny, text_file, layers=[0], heads=[0], lengths=[4])
    infinite = package.Measurements([record | {"ratio": None, "ratio_upper": None}])
    assert "∞" in str(infinite) and infinite.plot() is not None


@pytest.mark.parametrize(
    "line, message",
    [
        ("--heads 0 --map layer", "--heads only with"),
        ("--layers 9 {tiny}", "layers of"),
        ("--a 2", "No such option"),
        ("--which", "No such option"),
        ("nowhere.safetensors", "safetensors file"),
        ("nowhere.safetensors --map layer", "whose tokens come from a model"),
    ],
)
def test_bad_input(howsmooth, tiny, line, message):
    result = howsmooth(f"meanfield splitting {line.format(tiny=tiny)}")
    assert result.code == 2 and message.lower() in result.err.lower() and len(result.errors) == 1
