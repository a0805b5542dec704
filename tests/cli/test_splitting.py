"""`howsmooth meanfield splitting` on a tiny checkpoint, the picture, the table of maps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from howsmooth import load
from howsmooth.lipschitz import splits
from howsmooth.lipschitz.criterion import line_splitting_grid
from tests.oracles.splitting import split_norm
from tests.tolerances import at_most, close


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
    offered = howsmooth("meanfield splitting --help").out
    assert "attention|head|normed|block|layer" in offered and "layer|model" not in offered
    for more in ("", " --repeat 2"):
        result = howsmooth(f"meanfield splitting no-such-model --map model{more}")
        assert result.code == 2 and result.out == ""
        assert result.err.strip() == (
            "howsmooth: expected --map as one of attention, head, normed, block, layer, got 'model'; take one"
        )


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


def test_repeated_tokens(howsmooth, tiny, text_file):
    """Both constants agree with the dense derivative at the longer input, with explicit tokens and positions."""
    result = howsmooth(
        f"meanfield splitting {tiny} --text {text_file} --lengths 2 --layers 0 --map layer --repeat 3 "
        "--dtype float64 --tol 0.001 --json -"
    )
    assert result.code == 0 and "kept position" in result.err, result.err
    records = read(result.out)
    assert [r["position"] for r in records] == [0, 1] and {r["copies"] for r in records} == {3}
    model = load(tiny, dtype=torch.float64)
    (chunk,) = model.chunks(Path(text_file).read_text(), 2, 1)
    orders = ([0, 0, 0, 1], [0, 1, 1, 1])
    for record, order in zip(records, orders, strict=True):
        for which, places in (("next", [0, 1, 2, 3]), ("kept", order)):
            inputs = {
                "input_ids": torch.tensor([[chunk.ids[i] for i in order]]),
                "position_ids": torch.tensor([places]),
                "attention_mask": torch.ones(1, 4, dtype=torch.long),
            }
            at = model.map_at(inputs, 0, "layer")
            J = torch.autograd.functional.jacobian(at.f, at.x).reshape(at.x.numel(), -1)
            truth = float(torch.linalg.matrix_norm(J, ord=2))
            assert record[which]["value"] == pytest.approx(truth, rel=1e-3)
            assert record[f"{which}_over_before"] == pytest.approx(truth / record["before"]["value"], rel=1e-3)
        assert not close(record["next"]["value"], record["kept"]["value"]) and record["status"] == "converged"


def test_picture(howsmooth, tmp_path):
    plot = tmp_path / "picture.svg"
    result = howsmooth(f"meanfield splitting --picture --resolution 100 --plot {plot} --json {tmp_path / 'p.json'}")
    assert result.code == 0 and plot.exists()
    (record,) = read((tmp_path / "p.json").read_text())
    assert record["share"] == pytest.approx(0.067, abs=2e-3) and "6.84 %" in result.out
    three = howsmooth("meanfield splitting --picture --resolution 50 --third 1 --masses 1,1.5,2 --json -")
    assert read(three.out)[0]["masses"] == [1.0, 1.5, 2.0]  # exact: as given on the command line
    masked = howsmooth("meanfield splitting --picture --resolution 50 --masses 1,1 --masked --json -")
    assert close(
        read(masked.out)[0]["share"], line_splitting_grid(points=50, masked=True)[1].splits.double().mean(), tol=1e-3
    )
    assert "masked" in masked.err


def test_which(howsmooth):
    result = howsmooth("meanfield splitting --which")
    assert result.code == 0 and "mean pooling" in result.out and "Sinkhorn" in result.out


@pytest.mark.parametrize(
    "line, message",
    [
        ("--picture --which", "one of --picture"),
        ("--picture --masses 1,2,3", "a number for each of 2 atoms"),
        ("--picture --masses 1,-2", "positive numbers"),
        ("--which --plot x.png", "--plot with a model"),
        ("--heads 0 --map layer", "--heads only with"),
        ("--layers 9 {tiny}", "layers of"),
        ("--repeat 1", "1"),
        ("--repeat 2 --heads 0", "no --heads with --repeat"),
        ("--repeat 2 --samples 3", "no --samples with --repeat"),
        ("--repeat 2 --map head", "whole map with --repeat"),
        ("--a 2", "no --a with a model"),
        ("--third 1 --masses 1,1,1", "no --masses with a model"),
        ("minilm --picture", "no MODEL with --picture"),
        ("--picture --lengths 8", "no --lengths with --picture"),
        ("--which --resolution 8", "no --resolution with --which"),
        ("--picture --a nan", "a finite number"),
        ("nowhere.safetensors", "safetensors file"),
        ("nowhere.safetensors --map layer", "whose tokens come from a model"),
    ],
)
def test_bad_input(howsmooth, tiny, text_file, line, message):
    result = howsmooth(f"meanfield splitting {line.format(tiny=tiny)}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1
