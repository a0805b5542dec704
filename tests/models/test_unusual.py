"""Families that read masks themselves, mix attention with other layers, or have several streams.

The constant is that of the module's dense Jacobian, or the map is refused.
"""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig

from howsmooth import InputError, load, local_lipschitz
from howsmooth.lipschitz.local import jacobian
from howsmooth.models.hook import NAME_WITH_TABLES
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close

from .zoo import _GROUPED, _SHAPE, _VISION, VOCABULARY, tiny

_EXPERTS = dict(num_local_experts=3, num_experts_per_tok=2)
_MAMBA = dict(mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4, mamba_d_conv=2, mamba_chunk_size=8)
_HYBRID = dict(_SHAPE, num_hidden_layers=4, num_key_value_heads=2)
_LATENT = dict(
    _SHAPE,
    num_key_value_heads=4,
    q_lora_rank=8,
    kv_lora_rank=6,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=5,
    head_dim=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
)
_SPARSE = dict(_LATENT, index_topk=3, index_head_dim=8, index_n_heads=2)

# name: (model type, sizes, layers with attention, list of layers, attention, its output projection)
DECODER = ("layers", "self_attn", "self_attn.o_proj")
FAMILIES = {
    "mixtral": ("mixtral", dict(_GROUPED, **_EXPERTS), (0, 1), *DECODER),
    "deepseek_v3": ("deepseek_v3", _LATENT, (0, 1), *DECODER),
    "deepseek_v32": ("deepseek_v32", _SPARSE, (0, 1), *DECODER),
    "glm_moe_dsa": ("glm_moe_dsa", _SPARSE, (0, 1), *DECODER),
    "doge": ("doge", dict(_SHAPE, num_key_value_heads=2, keep_window_size=4), (0, 1), *DECODER),
    "doge, all keys": ("doge", dict(_SHAPE, num_key_value_heads=2, keep_window_size=40), (0, 1), *DECODER),
    "gemma3n": (
        "gemma3n_text",
        dict(
            _GROUPED,
            num_hidden_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=4,
            laurel_rank=2,
            altup_num_inputs=2,
            num_kv_shared_layers=0,
            sliding_window=3,
            activation_sparsity_pattern=[0.0] * 2,
            layer_types=["sliding_attention", "full_attention"],
        ),
        (0, 1),
        *DECODER,
    ),
    "dinov3": (
        "dinov3_vit",
        dict(_VISION, num_register_tokens=2),
        (0, 1),
        "model.layer",
        "attention",
        "attention.o_proj",
    ),
    "mobilebert, no bottleneck": (
        "mobilebert",
        dict(_SHAPE, embedding_size=8, use_bottleneck=False, intra_bottleneck_size=16),
        (0, 1),
        "encoder.layer",
        "attention.self",
        "attention.output.dense",
    ),
    "jamba": (
        "jamba",
        dict(
            _HYBRID,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=0,
            num_experts=2,
            mamba_d_state=4,
            mamba_d_conv=2,
            mamba_dt_rank=2,
        ),
        (1, 3),
        *DECODER,
    ),
    "zamba": (  # its layers with attention share their weights
        "zamba",
        dict(
            _HYBRID,
            attention_hidden_size=32,
            attention_head_dim=8,
            layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
            mamba_d_state=4,
            mamba_d_conv=2,
            mamba_dt_rank=2,
        ),
        (1, 3),
        "layers",
        "shared_transf.self_attn",
        "shared_transf.self_attn.o_proj",
    ),
    "bamba": ("bamba", dict(_HYBRID, attn_layer_indices=[1, 2], **_MAMBA), (1, 2), *DECODER),
    "granitemoehybrid": (
        "granitemoehybrid",
        dict(
            _HYBRID,
            layer_types=["mamba", "mamba", "attention", "attention"],
            shared_intermediate_size=12,
            **_MAMBA,
            **_EXPERTS,
        ),
        (2, 3),
        *DECODER,
    ),
    "minimax": (
        "minimax",
        dict(
            _HYBRID,
            head_dim=6,
            block_size=4,
            **_EXPERTS,
            layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        ),
        (1, 3),
        *DECODER,
    ),
}


def given_to(network, n: int = 7) -> dict:
    generator = torch.Generator().manual_seed(2)
    if network.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(1, 3, 8, 8, generator=generator).double()}
    return {"input_ids": torch.randint(5, VOCABULARY, (1, n), generator=generator)}


@pytest.fixture(scope="module")
def family():
    made = {}

    def network(name: str):
        if name not in made:
            made[name] = tiny(*FAMILIES[name][:2])
        return made[name], *FAMILIES[name][2:]

    return network


@pytest.mark.parametrize(
    "name, kind",
    [(name, kind) for name in FAMILIES for kind in ("attention", "layer") if (name, kind) != ("gemma3n", "layer")],
)  # has several streams, see below
def test_maps_and_layer_numbers_are_those_of_the_model(family, name, kind):
    network, layers, stack, attention, projection = family(name)
    given = given_to(network)
    for layer in layers:
        with lifted():
            model = load(network)
            at = model.map_at(given, layer, kind)
            base, own = f"{stack}.{layer}", eager(network)
            ends = (
                ((base, 0), ("output", base, 0))
                if kind == "layer"
                else ((f"{base}.{attention}", 0), ("output", f"{base}.{projection}", 0))
            )
            if name.startswith("mobilebert"):
                use_queries_as_keys_and_values(own.get_submodule(f"{base}.{attention}"))
            f, x = stretch(own, given, *ends)
            assert_close(at.x, x)
            assert_close(at(), f(x).detach())
            truth, ours = dense(f, x), jacobian(at.f, at.x)
            for side, product in ((truth, ours.matvec), (truth.T, ours.rmatvec)):
                v = torch.randn(side.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
                assert_close(product(v), side @ v, 1e-9)
            found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9)
        assert found.value == pytest.approx(float(torch.linalg.matrix_norm(truth, 2)), rel=1e-6)
    for layer in set(range(model.layers)) - set(layers):
        with pytest.raises(
            InputError, match=rf"self-attention in layer {layer} of .* \(layers with it: .*\); it has the maps"
        ):
            model.map_at(given, layer)


def use_queries_as_keys_and_values(module) -> None:
    """MobileBERT takes the same tokens three times, as queries, keys and values; `stretch` replaces only the first."""
    forward = module.forward
    module.forward = lambda x, _keys, _values, *args, **kwargs: forward(x, x, x, *args, **kwargs)


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_sum_to_the_map(family, name):
    network, layers, *_ = family(name)
    model, given = load(network), given_to(network)
    whole = model.map_at(given, layers[-1])
    parts = [model.map_at(given, layers[-1], "head", head=head)() for head in range(model.heads)]
    bias = whole() - sum(parts)
    assert_close(bias, bias[:1].expand_as(bias), 1e-6)


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_attention_uses_the_selected_keys(family, name):
    """With all keys it would be another map."""
    model = load(family(name)[0])
    given = given_to(model.network)
    at = model.map_at(given, 1)
    assert model.instrumented.config._attn_implementation == NAME_WITH_TABLES
    all_keys = load(tiny(name, dict(_SPARSE, index_topk=40)))
    assert not torch.allclose(all_keys.map_at(given, 1).f(at.x), at(), rtol=1e-2)


def test_values_of_other_tokens_are_refused():
    network = tiny("mobilebert", dict(_SHAPE, embedding_size=8, intra_bottleneck_size=8))
    model, given = load(network), given_to(network)
    for kind in ("attention", "normed", "block"):
        with pytest.raises(InputError, match=f"{kind}: .* got value_tensor from elsewhere in layer 1 of .*; measure"):
            model.map_at(given, 1, kind)
    with lifted():
        at = model.map_at(given, 1, "layer")
        f, x = stretch(eager(network), given, ("encoder.layer.1", 0), ("output", "encoder.layer.1", 0))
        assert_close(at(), f(x).detach())
        found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9)
        assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-6)


def test_several_streams_and_shared_keys_are_refused():
    kind, sizes, *_ = FAMILIES["gemma3n"]
    model = load(
        tiny(
            kind,
            dict(
                sizes,
                num_hidden_layers=4,
                num_kv_shared_layers=2,
                layer_types=["sliding_attention", "full_attention"] * 2,
                activation_sparsity_pattern=[0.0] * 4,
            ),
        )
    )
    given = given_to(model.network)
    for layer, kind in ((1, "layer"), (1, "block"), (None, "model")):
        with pytest.raises(
            InputError, match=rf"{kind}: .* \(1, n, d\) to enter layer {layer or 0} .*has the maps attention"
        ):
            model.map_at(given, layer, kind)
    assert local_lipschitz(model.map_at(given, 1).f, model.map_at(given, 1).x).value > 0
    with pytest.raises(InputError, match="keys and values of a layer below from elsewhere in layer 3"):
        model.map_at(given, 3)


def test_an_exception_of_the_network_is_reported_with_its_layer(monkeypatch):
    network = tiny("qwen3", _GROUPED)

    def forward(*_args, **_kwargs):
        raise IndexError("too many indices")

    monkeypatch.setattr(network.layers[1].self_attn, "forward", forward)
    match = r"expected Qwen3Model to run .*, got IndexError in layer 1 \(Qwen3Attention\) \(too many indices\); choose"
    with pytest.raises(InputError, match=match):
        load(network).map_at(given_to(network), 1)


@pytest.mark.parametrize("size", ["num_attention_heads", "hidden_size", "num_hidden_layers", "num_key_value_heads"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_sizes_of_zero_are_refused(tmp_path, kind, size):
    config = AutoConfig.for_model(kind, **_GROUPED).to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**config, size: 0}))
    with pytest.raises(InputError, match="; "):
        load(f"random:{tmp_path}").map_at(torch.arange(4), 0)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_heads_of_width_zero_are_refused(tmp_path, kind):
    config = AutoConfig.for_model(kind, **_GROUPED).to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": 0}))
    with pytest.raises(InputError, match="; "):
        load(f"random:{tmp_path}").map_at(torch.arange(4), 0)


_MASKED = dict(
    _VISION, image_size=8, patch_size=2, mask_ratio=0.5, decoder_hidden_size=8, decoder_num_attention_heads=2
)


def test_a_mask_that_is_drawn_at_each_pass_is_refused_unless_it_is_given():
    network = tiny("vit_mae", _MASKED)
    model, given = load(network), given_to(network)
    for ask in (
        lambda: model.map_at(given, 1),
        lambda: model.map_at(given, map="model"),
        lambda: model.activations(given["pixel_values"][0], [0, 1]),
        lambda: model.attention(1),
        lambda: model.normalisation(1),
    ):
        with pytest.raises(InputError, match=r"ViTMAEModel, which draws random numbers .* pixel_values and noise"):
            ask()
    given["noise"] = torch.rand(1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with lifted():
        at = model.map_at(given, 1)
        f, x = stretch(eager(network), given, ("layers.1.attention", 0), ("output", "layers.1.attention.o_proj", 0))
        assert_close(at.x, x)
        assert_close(at(), f(x).detach())
        found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9)
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-6)


def test_random_numbers_that_are_drawn_and_not_used_are_allowed():
    network = tiny(
        "wav2vec2",
        dict(
            _SHAPE,
            conv_dim=(8, 8),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
    )
    sound = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    before = torch.get_rng_state()
    first, second = (load(network).map_at(sound, 1) for _ in range(2))
    assert not torch.equal(before, torch.get_rng_state())  # exact: states of a generator
    assert_close(first.x, second.x)
