"""A transformers model in memory: used as it is, and not modified."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, DacConfig, DacModel

from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import load
from howsmooth.texts import default_text
from tests.tolerances import FLOAT32, close

from .tiny import tiny_config, tiny_network, tiny_tokenizer
from .zoo import ZOO

FAMILIES = ("gpt2", "bert", "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_and_its_folder_give_the_same_model(family, tiny_folders):
    folder = tiny_folders[family]
    tokenizer = tiny_tokenizer(family)
    from_object, from_folder = load(tiny_network(family), tokenizer=tokenizer), load(folder)
    text = default_text()
    x = from_object.inputs(text, 1, 12)
    assert close(x, from_folder.inputs(text, 1, 12), FLOAT32)
    ours, theirs = (local_lipschitz(m.attention(1), x).value for m in (from_object, from_folder))
    assert close(ours, theirs, FLOAT32)
    assert from_object.tokenizer is tokenizer
    assert from_object.source["origin"] == "object"
    json.dumps(from_object.source)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_is_left_out(family, tiny_folders):
    auto = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    network = auto.from_pretrained(tiny_folders[family])
    model = load(network.eval(), tokenizer=tiny_folders[family])
    assert model.network is network.base_model
    assert model.name == tiny_folders[family] and model.source["class"] == type(network).__name__
    assert close(model.inputs(default_text(), 2, 9), load(tiny_folders[family]).inputs(default_text(), 2, 9), FLOAT32)


def test_the_network_is_not_modified():
    network = tiny_network("llama", dtype=torch.float64)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    config, state = network.config.to_dict(), torch.get_rng_state()
    model = load(network)
    assert model.network is network and model.name == "LlamaModel" and model.dtype == torch.float64
    ids = torch.arange(10, 20)
    assert local_lipschitz(model.attention(0), model.activations(ids, [0])[0]).value > 0
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())
    # exact: weights are left as they were
    assert all(torch.equal(value, weights[key]) for key, value in network.state_dict().items())
    assert network.config.to_dict() == config and torch.equal(torch.get_rng_state(), state)
    with pytest.raises(InputError, match=r"comes without one.*tokenizer="):
        model.tokenize("In the spring")


def assert_refused(network, match: str, **options) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load(network, **options)
    assert "\n" not in str(caught.value)


def test_training_mode_is_refused_and_not_changed():
    network = tiny_network("gpt2").train()
    assert_refused(network, r"GPT2Model in evaluation mode.*\.eval\(\)")
    assert network.training
    network.eval().h[1].attn.train()  # dropout in one module would be enough to change the result
    assert_refused(network, "evaluation mode")


def test_options_of_named_models_are_refused_for_a_network():
    network = tiny_network("gpt2")
    assert_refused(network, "no dtype, device or revision.*got torch.float64", dtype=torch.float64)
    assert_refused(network, "got cpu", device="cpu")
    assert_refused(network, "got main", revision="main")


def test_unsupported_networks_are_refused():
    codec = DacConfig(encoder_hidden_size=8, downsampling_ratios=[2], decoder_hidden_size=8, codebook_size=4)
    assert_refused(DacModel(codec).eval(), "gives its layers and their width, got 'dac' without a number of layers")
    with torch.device("meta"):
        empty = type(tiny_network("gpt2"))(tiny_config("gpt2"))
    assert_refused(empty.eval(), "one device, got them on meta")
    damaged = tiny_network("bert")
    damaged.encoder.layer[0].attention.self.query.weight.data[0, 0] = torch.nan
    assert_refused(damaged, "NaN or infinity in encoder")


def test_tokenizers_of_another_vocabulary():
    network = tiny_network("gpt2", vocab_size=50)
    assert_refused(network, "within the model's vocabulary of 50", tokenizer=tiny_tokenizer("gpt2"))


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "vit"])
def test_quantised_networks_are_refused_by_that_name(family):
    network = ZOO[family].network(torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch names the successor of its quantisation
        quantised = torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear})
    for network in (quantised, quantised.eval()):
        assert_refused(network, r"a quantised one \(torch.ao.nn.quantized.* in .*\), whose derivative is zero")


def test_weights_that_were_dequantised_are_used_whatever_the_config_says():
    network = tiny_network("llama")
    network.config.quantization_config = {"quant_method": "gguf"}
    assert load(network).map_at(torch.arange(5), 1).x.shape == (5, 24)
