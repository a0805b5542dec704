"""The question weights: the flow of a model's attention, its spec, its records and resuming."""

from __future__ import annotations

import json
import math

import pytest
import torch

import howsmooth as package
from howsmooth.dynamics import integrate_example
from howsmooth.models import load
from howsmooth.questions import question_of, record_error
from howsmooth.questions.particles import ParticlesRecord
from howsmooth.questions.weights import flow_of
from howsmooth.texts.corpora import read_corpus
from tests.models.tiny import tiny_network, tiny_tokenizer
from tests.tolerances import assert_close

TEXT = read_corpus("embedded")
SMALL = {"lengths": [6], "frames": 3, "until": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    tiny_network("gpt2", n_embd=12).save_pretrained(folder)
    tiny_tokenizer("gpt2").save_pretrained(folder)
    return load(str(folder), dtype=torch.float64)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"layers": [3]}, "layers of .* between 0 and 2, got 3"),
        ({"layers": [0], "heads": [9]}, "heads of .* between 0 and 3, got 9"),
        ({"frames": 1}, "frames: expected a whole number from 2"),
        ({"attention": "l2"}, "unknown key 'attention'"),
        ({"solver": "residual", "steps": 3, "noise": 1.0, "growth": 2}, "without noise"),
    ],
)
def test_what_the_spec_refuses(model, fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("weights", model, TEXT, **{"lengths": [6], **fields})


@pytest.mark.parametrize("layers, head", [([1], None), ([2], 1), ([0, 1, 2], None), ([0, 2], 3)])
def test_the_attention_of_the_model_is_the_velocity(model, layers, head, tmp_path):
    """With as many residual steps as the model has layers, the flow is the residual stream of its attention."""
    from safetensors.torch import load_file

    heads, path = None if head is None else [head], tmp_path / "a.safetensors"
    steps = 6  # two for each of the model's three layers
    options = {"solver": "residual", "steps": steps, "sphere": False, "frames": 2, "artefacts": str(path)}
    found = package.ask("weights", model, TEXT, layers=layers, heads=heads, lengths=[6], **options)
    (chunk,) = model.chunks(TEXT.content, 6, 1)
    maps = [model.attention(layer, 6) for layer in layers]
    maps = [f if head is None else f.head(head) for f in maps]
    x = model.activations(chunk, layers[:1])[layers[0]]
    for k in range(steps):
        x = x + 0.5 * maps[k * len(maps) // steps](x)
    assert_close(load_file(path)["tokens"][-1], x)
    assert {(r["layer"], r["head"]) for r in found} == {(layers[0] if len(layers) == 1 else None, head)}
    assert found[0]["layers"] == layers


def test_tokens_stay_on_spheres_and_the_flow_is_as_deep_as_the_model(model):
    f, (chunk,) = model.attention(0, 6), model.chunks(TEXT.content, 6, 1)
    x = model.activations(chunk, [0])[0]
    declared = flow_of(model.name, model.layers, [0], None, x, "embedded")
    assert math.isclose(declared.flow.until, 3.0)
    trajectory, _ = integrate_example(declared.replace("flow", until=0.5, frames=3), layers=[f], x=x)
    assert_close(trajectory.last.norm(dim=-1), x.norm(dim=-1), 1e-4)


def test_records_are_those_of_particles(model):
    found = package.ask("weights", model, TEXT, layers=[0, 1], heads=[0, 2], **SMALL, growth=2, residual_layers=3)
    assert all(record_error(record) is None and question_of(record) == "particles" for record in found)
    assert len(found) == 2 * (3 + 2) and len({record["flow"] for record in found}) == 2  # each head alone
    assert {record["kind"] for record in found} == {ParticlesRecord.kind_name, "perturbation growth"}
    assert [record["maps"] for record in found if "maps" in record] == [2, 4] * 2  # 3 became 4, for two layers
    assert "layers 0,1 one after the other, head 2" in str(found)


def test_its_command_resumes(howsmooth, tiny, text_file, tmp_path):
    lines = tmp_path / "a.jsonl"
    line = f"flow weights {tiny} --text {text_file} --lengths 6 --frames 3 --until 1 --json {lines}"
    assert howsmooth(f"{line} --layers 1").code == 0
    again = howsmooth(f"{line} --layers 1")
    assert again.code == 0 and "3 records had been in" in again.err and "attention of layer 1" in again.out
    assert howsmooth(line).code == 0
    records = [json.loads(written) for written in lines.read_text().splitlines()]
    assert len(records) == 6 and len({record["flow"] for record in records}) == 2
