"""The normalisation before attention: its output is the input of attention, and lies in an ellipsoid."""

import pytest
import torch

from howsmooth import load
from tests.models.tiny import tiny_network
from tests.tolerances import assert_close

FAMILIES = ("gpt2", "bert", "llama")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, 2])
def test_its_output_is_the_input_of_attention(family, layer):
    network = tiny_network(family, torch.float64)
    model = load(network)
    captured = []
    modules = {
        "gpt2": lambda: network.h[layer].ln_1,
        "llama": lambda: network.layers[layer].input_layernorm,
        "bert": lambda: (network.encoder.layer[layer - 1].output if layer else network.embeddings).LayerNorm,
    }
    hook = modules[family]().register_forward_pre_hook(lambda _, args: captured.append(args[0][0].detach()))
    x = model.activations(list(range(7, 19)), [layer])[layer]
    hook.remove()
    norm = model.normalisation(layer)
    # Llama's own RMSNorm computes in float32.
    assert_close(norm(captured[0]), x, 1e-6 if family == "llama" else 1e-11)
    z, _ = norm.standardise(captured[0])
    assert (z.square().sum(-1) <= norm.d).all()
    assert norm.centred == (family != "llama")


def test_the_normalisation_of_an_embedded_model():
    model = load("minilm")
    for layer in (0, model.layers - 1):
        norm = model.normalisation(layer)
        x = model.inputs("The harbour was quiet, and the keeper counted the ships.", layer)
        z = (x - norm.bias) / norm.gain
        assert_close(z.mean(-1), torch.zeros(len(x)), 1e-5)
        assert_close(z.square().mean(-1), torch.ones(len(x)), 1e-4)
