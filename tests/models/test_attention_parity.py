"""model.attention(layer) on model.inputs(...) against the output of the model's own attention module."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2Model

from howsmooth.errors import InputError
from howsmooth.models import Model, load
from howsmooth.models.embedded import embedded_path
from howsmooth.models.families import FAMILIES
from howsmooth.texts import default_text
from tests import data, reasons
from tests.tolerances import FLOAT32, at_most, close

from .tiny import tiny_network, tiny_tokenizer


def module_outputs(network, ids, dtype=torch.float64):
    """Return the output of each attention module of an eager network for (n,) ids, output projection included."""
    eager = copy.deepcopy(network).to(dtype)
    eager.set_attn_implementation("eager")
    assert network.config._attn_implementation == "sdpa"  # the copy has its own config
    outputs = {}
    for layer, module in enumerate(FAMILIES[network.config.model_type].attention_modules(eager)):
        if network.config.model_type == "bert":  # BertSelfAttention stops before the projection
            module = eager.encoder.layer[layer].attention.output.dense

        def capture(_module, _args, output, layer=layer):
            outputs[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        module.register_forward_hook(capture)
    with torch.no_grad():
        eager(input_ids=ids[None])
    return outputs


def assert_near(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    assert a.shape == b.shape and torch.isfinite(a).all()
    assert at_most((a - b).abs().max(), tolerance * b.abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        ("gpt2", {}),
        ("gpt2", {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
        ("bert", {}),
        ("bert", {"is_decoder": True}),
        ("llama", {}),
        ("llama", {"attention_bias": False, "num_key_value_heads": 4, "head_dim": 6}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 500.0,
                    "original_max_position_embeddings": 16,
                }
            },
        ),
    ],
    ids=lambda c: f"{c[0]}-{'-'.join(map(str, c[1])) or 'plain'}",
)
def test_tiny_models(changes, tmp_path):
    family, options = changes
    network = tiny_network(family, **options)
    network.save_pretrained(tmp_path)
    tiny_tokenizer(family).save_pretrained(tmp_path)
    model = load(tmp_path, dtype=torch.float64)
    (chunk,) = model.chunks(default_text(), 40, 1)
    want = module_outputs(network, chunk.ids)
    inputs = model.activations(chunk, range(model.layers))
    for layer in range(model.layers):
        # eager Llama computes softmax and RMSNorm in float32
        assert_near(model.attention(layer)(inputs[layer]), want[layer], 1e-5 if family == "llama" else 1e-12)
        another = model.attention((layer + 1) % model.layers)
        assert not torch.allclose(another(inputs[layer]), want[layer], rtol=0.1)


def test_activations_are_the_input_of_attention_as_in_the_paper():
    """GPT-2 and Llama: after the first norm. BERT: the block's input."""
    ids = torch.arange(10, 30)
    for family, norm in (("gpt2", lambda m: m.h[1].ln_1), ("llama", lambda m: m.layers[1].input_layernorm)):
        network = tiny_network(family, torch.float64)
        captured = []
        norm(network).register_forward_hook(lambda _m, _a, out, captured=captured: captured.append(out[0]))
        model = Model(network, FAMILIES[family], name="tiny")
        assert close(model.activations(ids, [1])[1], captured[0], FLOAT32)
    network = tiny_network("bert", torch.float64)
    hidden = network(input_ids=ids[None], output_hidden_states=True).hidden_states
    model = Model(network, FAMILIES["bert"], name="tiny")
    assert torch.allclose(model.activations(ids, [1])[1], hidden[1][0], rtol=1e-12)


def test_longrope_needs_a_length(tmp_path):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0] * 5,
        "long_factor": [8.0] * 5,
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    }
    network = tiny_network("llama", rope_parameters=rope)
    network.save_pretrained(tmp_path)
    model = load(tmp_path, dtype=torch.float64)
    with pytest.raises(InputError, match=r"model\.attention\(layer, n\)"):
        model.attention(0)
    for n in (12, 40):
        ids = torch.arange(20, 20 + n)
        assert_near(model.attention(1, n)(model.activations(ids, [1])[1]), module_outputs(network, ids)[1], 1e-5)


def embedded(name, **options):
    try:
        embedded_path(name)
    except InputError:
        pytest.skip(reasons.embedded(name))
    return load(name, **options)


def test_minilm():
    model = embedded("minilm", dtype=torch.float64)
    assert (model.family, model.layers, model.width) == ("bert", 6, 384)
    assert (model.heads, model.positions) == (12, 512)
    assert model.source["origin"] == "embedded" and model.source["weights"] == "safetensors"
    (chunk,) = model.chunks(default_text(), 48, 1)
    assert chunk.words[0] == "[CLS]" and chunk.words[-1] == "[SEP]" and chunk.special.sum() == 2
    want = module_outputs(model.network, chunk.ids)
    inputs = model.activations(chunk, range(6))
    for layer in range(6):
        assert_near(model.attention(layer)(inputs[layer]), want[layer], 1e-12)
    assert close(model.inputs(default_text(), 3, 48), inputs[3], FLOAT32)


@pytest.fixture(scope="module")
def smollm2():
    return embedded("smollm2")  # in the user's own cache: half a gigabyte is written once, not in every run


def test_smollm2(smollm2):
    model = smollm2
    assert (model.family, model.layers, model.width) == ("llama", 30, 576)
    assert (model.heads, model.positions) == (9, 8192)
    assert model.source["weights"] == "Q4_1 GGUF, dequantised"
    (chunk,) = model.chunks(default_text(), 40, 1)
    want = module_outputs(model.network, chunk.ids, torch.float32)
    inputs = model.activations(chunk, [0, 13, 29])
    for layer, x in inputs.items():
        assert_near(model.attention(layer)(x), want[layer], 1e-4)


def test_smollm2_predicts_english(smollm2):
    """Wrongly permuted or dequantised weights would still be finite; the loss detects them."""
    model = smollm2
    (chunk,) = model.chunks(default_text(), 128, 1)
    with torch.no_grad():
        hidden = model.network(input_ids=chunk.ids[None]).last_hidden_state[0]
        logits = hidden @ model.network.embed_tokens.weight.T  # tied embeddings
        loss = torch.nn.functional.cross_entropy(logits[:-1], chunk.ids[1:])
    assert loss < 4.5  # 10.8 for a uniform prediction


def one_layer(width):
    return GPT2Config(n_layer=1, n_embd=width, n_head=12, vocab_size=8, bos_token_id=0, eos_token_id=0)


@pytest.mark.parametrize("source", data.SOURCES)
def test_gpt2_weights_of_a_file(source, tmp_path):
    from safetensors.torch import load_file

    weights = load_file(data.gpt2_file(source, tmp_path))
    width = weights["wpe.weight"].shape[1]
    for layer in (0, 6, 11):
        part = {key.split(f"h.{layer}.")[1]: value for key, value in weights.items() if f"h.{layer}." in key}
        network = GPT2Model(one_layer(width)).double().eval()
        report = network.h[0].load_state_dict({k: v.double() for k, v in part.items()}, strict=False)
        assert not report.unexpected_keys and len(part) == 6
        x = torch.randn(1, 32, width, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))
        x = network.h[0].ln_1(x + weights["wpe.weight"][:32].double())
        eager = GPT2Model._from_config(one_layer(width), attn_implementation="eager").double().eval()
        eager.load_state_dict(network.state_dict())
        future = torch.full((32, 32), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
        want = eager.h[0].attn(x, attention_mask=future[None, None])[0][0]
        assert_near(FAMILIES["gpt2"].self_attention(network, 0, None)(x[0]).detach(), want.detach(), 1e-12)
