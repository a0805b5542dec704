"""Two models side by side: both constants against dense ones, the angle, and pairs that cannot be compared."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from transformers import GPT2Config, GPT2Model

import howsmooth
from howsmooth.errors import InputError
from tests.studies import conftest
from tests.studies.conftest import TEXT, save_tiny
from tests.tolerances import at_most

FIELDS = dict(lengths=[6], samples=1, seed=3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    return save_tiny(folder / "a", seed=0), save_tiny(folder / "b", seed=1)


def dense(name: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The Jacobian in float64, and its worst direction."""
    model = howsmooth.load(name, dtype=torch.float64)
    (chunk,) = model.chunks(TEXT, 6, 1)
    at = model.map_at(chunk, layer)
    J = torch.func.jacrev(lambda x: at.f(x.view_as(at.x)).flatten())(at.x.flatten())
    return J, torch.linalg.svd(J).Vh[0]


def test_constants_ratio_angle_and_gain_are_those_of_the_dense_jacobians(pair):
    found = howsmooth.compare(*pair, TEXT, tol=1e-5, **FIELDS)
    assert [record["layer"] for record in found] == [0, 1]
    for record in found:
        (J, v), (K, w) = dense(pair[0], record["layer"]), dense(pair[1], record["layer"])
        sizes = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (J, K)]
        assert [record["first"]["value"], record["second"]["value"]] == pytest.approx(sizes, rel=1e-4)
        assert at_most(record["first"]["lower"], sizes[0], record["first"]["upper"], tol=1e-6)
        assert at_most(record["ratio"]["lower"], sizes[1] / sizes[0], record["ratio"]["upper"], tol=1e-6)
        assert record["angle"] == pytest.approx(math.degrees(math.acos(min(1.0, abs(float(v @ w))))), abs=0.5)
        assert record["along"] == pytest.approx(float((K @ v).norm()), rel=1e-2)
        assert record["changed"] == (abs(math.log(sizes[1] / sizes[0])) > 1e-4)


def test_a_model_has_not_changed_against_itself(pair):
    for record in howsmooth.compare(pair[0], pair[0], TEXT, **FIELDS):
        assert not record["changed"] and record["angle"] == pytest.approx(0, abs=0.1)
        assert record["along"] == pytest.approx(record["first"]["value"], rel=1e-3)


def test_rounded_weights_of_a_model_in_memory(pair):
    model = GPT2Model.from_pretrained(pair[0]).eval()
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16().float())
    tokenizer = howsmooth.load(pair[0]).tokenizer
    found = howsmooth.compare(model, rounded, TEXT, tokenizer=tokenizer, tol=1e-5, **FIELDS)
    ratios = [record["ratio"]["value"] for record in found]
    assert ratios == pytest.approx([1.0, 1.0], rel=0.05) and any(record["changed"] for record in found)
    assert {(record["model"], record["against"]) for record in found} == {("GPT2Model", "GPT2Model")}


def test_an_adapter_on_and_off(pair):
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(
        GPT2Model.from_pretrained(pair[0]), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    tuned.eval()
    off, on = copy.deepcopy(tuned).unload(), copy.deepcopy(tuned).merge_and_unload()
    tokenizer = howsmooth.load(pair[0]).tokenizer
    found = howsmooth.compare(off, on, TEXT, tokenizer=tokenizer, **FIELDS)
    before = howsmooth.measure(pair[0], TEXT, lengths=[6], samples=1)
    assert [r["first"]["value"] for r in found] == pytest.approx([r["value"] for r in before], rel=2e-3)
    assert all(record["changed"] for record in found)


def test_it_is_a_study_too(pair, tmp_path, howsmooth):
    text = tmp_path / "river.txt"
    text.write_text(TEXT)
    file = tmp_path / "pair.toml"
    file.write_text(
        f'question = "compare"\nmodels = ["{pair[0]}"]\nagainst = "{pair[1]}"\ntexts = ["{text}"]\nlengths = [6]\n'
        "samples = 1\n[engine]\nworkers = 0\n"
    )
    ran = howsmooth(f"study run {file} --store {tmp_path / 's.sqlite'}")
    assert ran.code == 0, ran.err
    assert "against" in ran.out


def save(folder, **changes) -> str:
    sizes = dict(vocab_size=13, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    save_tiny(folder)
    GPT2Model(GPT2Config(**(sizes | changes))).save_pretrained(folder)
    return str(folder)


class TestBadInput:
    def test_one_model(self, pair):
        with pytest.raises(InputError, match="expected two models, got one; name the one to compare with"):
            howsmooth.ask("compare", pair[0], TEXT)

    def test_another_width_is_refused_by_layer(self, pair, tmp_path):
        wide = save(tmp_path / "wide", n_embd=24)
        with pytest.raises(
            InputError, match=r"expected maps of the same tokens, got \(6, 16\) .* \(6, 24\) .* layer 0"
        ):
            howsmooth.compare(pair[0], wide, TEXT, **FIELDS)

    def test_fewer_layers_are_refused_by_layer(self, pair, tmp_path):
        short = save(tmp_path / "short", n_layer=1)
        with pytest.raises(InputError, match=r"layers of .* between 0 and 0, got 1|expected layer 1 in both models"):
            howsmooth.compare(pair[0], short, TEXT, layers=[0, 1], **FIELDS)

    def test_another_tokenizer(self, pair, tmp_path, monkeypatch):
        monkeypatch.setattr(conftest, "WORDS", conftest.WORDS[::-1])
        other = save_tiny(tmp_path / "other")
        with pytest.raises(InputError, match="expected two models with one tokenizer, got different vocabularies"):
            howsmooth.compare(pair[0], other, TEXT, **FIELDS)
