"""Attention that is found by its softmax: what is found in small layers, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from howsmooth import InputError, load, local_lipschitz
from howsmooth.models import OwnTokenMap, layer_chain
from howsmooth.models.calls import ModuleCall
from howsmooth.models.tracing import find_attention, mixes_tokens
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close

from .zoo import _SHAPE, ZOO, inputs, tiny


class Softmax(nn.Module):
    """Attention with one head; keys and values may come from other tokens, and a gate may follow."""

    def __init__(self, d: int = 6, gate: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.positions, self.o = (nn.Linear(d, d) for _ in range(5))
        self.gate = nn.Linear(d, d) if gate else None

    def forward(self, x, others=None, table=None):
        others = x if others is None else others
        scores = self.q(x) @ self.k(others).mT
        if table is not None:
            scores = scores + self.q(x) @ self.positions(table).mT
        heads = scores.softmax(-1) @ self.v(others)
        return self.o(heads if self.gate is None else heads * self.gate(x).sigmoid())


class Layer(nn.Module):
    def __init__(self, mixer, combine):
        super().__init__()
        self.mixer, self.norm, self.up, self.down = mixer, nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.combine = combine

    def forward(self, x):
        x = x + self.combine(self, x)
        return x + self.down(self.up(x).relu())


def found(mixer, combine):
    torch.manual_seed(0)
    layer = Layer(mixer, combine).double()
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    return layer, find_attention(ModuleCall(layer, (x,), {}), [mixer])


@pytest.mark.parametrize("gate", [False, True])
def test_the_projection_is_the_matrix_that_only_the_softmax_feeds(gate):
    """Not a matrix of the tokens, of the gate, of fixed positions, or of the MLP, which also sees the residual."""
    table = torch.randn(5, 6, dtype=torch.float64)
    mixer = Softmax(gate=gate)
    _, attention = found(mixer, lambda layer, x: layer.mixer(layer.norm(x), table=table))
    assert not isinstance(attention, str)
    assert attention.module is mixer and attention.projection is mixer.o and attention.earlier == 0


def test_other_tokens_make_it_no_map_of_its_hidden_states():
    _, reason = found(Softmax(), lambda layer, x: layer.mixer(layer.norm(x), others=x))
    assert reason == "no module that queries, keys and values enter as the same tokens"


class Router(nn.Module):
    """A mixture of experts: its softmax weights experts, not tokens, before or after their matrices."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.gate, self.a, self.b = nn.Linear(6, 2), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        if self.before:
            return self.a(w[..., :1] * x) + self.b(w[..., 1:] * x)
        return w[..., :1] * self.a(x) + w[..., 1:] * self.b(x)


@pytest.mark.parametrize(
    "before, reason",
    [(True, "a softmax that weights no tokens"), (False, "no matrix that is applied to what a softmax has weighted")],
)
def test_a_softmax_over_experts_is_no_attention(before, reason):
    layer, why = found(Router(before), lambda layer, x: layer.mixer(layer.norm(x)))
    assert why == reason
    assert not mixes_tokens(layer, torch.randn(1, 5, 6, dtype=torch.float64))
    assert mixes_tokens(Softmax().double(), torch.randn(1, 5, 6, dtype=torch.float64))


def test_stages_have_their_own_widths_and_heads():
    """Swin's second stage has 8 heads and 32 channels; its windows are measured together, in their order."""
    network = ZOO["swin"].network()
    given, path = inputs("swin"), "encoder.layers.1.blocks.0"
    with lifted():
        model = load(network)
        for map, end in (("attention", f"{path}.attention.o_proj"), ("layer", path)):
            at = model.map_at(given, 2, map)
            start = path if map == "layer" else f"{path}.attention"
            f, x = stretch(eager(network), given, (start, 0), ("output", end, 0))
            assert at.x.shape == (16, 32)
            assert_close(at(), f(x).detach())
            sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
            assert local_lipschitz(at.f, at.x, tol=1e-8).value == pytest.approx(sigma, rel=1e-8)
    heads = sum(model.map_at(given, 2, "head", head=head)() for head in range(8))
    bias = model.map_at(given, 2)() - heads
    assert_close(bias, bias[:1].expand_as(bias), 1e-6)
    with pytest.raises(InputError, match="a head from 0 to 3, got 4"):
        model.map_at(given, 0, "head", head=4)
    with pytest.raises(InputError, match=r"layer 2 .* to take the output of the layer before, .* merges or pools"):
        layer_chain(model, given)


def test_patches_that_are_one_sequence():
    """The vision part of Qwen2-VL takes patches (n, c) of all images, not batches; they come from its processor."""
    vision = dict(depth=2, embed_dim=16, hidden_size=16, num_heads=4, patch_size=4, mlp_ratio=2, spatial_merge_size=2)
    rope = dict(rope_type="default", mrope_section=[1, 1, 0], rope_theta=1e4)
    network = tiny("qwen2_vl", dict(vision_config=vision, text_config=dict(_SHAPE, rope_parameters=rope)))
    patches = torch.randn(16, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = dict(hidden_states=patches, grid_thw=torch.tensor([[1, 4, 4]]))
    with lifted():
        model = load(network, part="vision")
        for map, path in (("attention", "blocks.1.attn"), ("layer", "blocks.1")):
            at = model.map_at(given, 1, map)
            f, x = stretch(eager(network.visual), given, (path, 0), ("output", path, 0))
            assert_close(at(), f(x).detach())
            sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
            assert local_lipschitz(at.f, at.x, tol=1e-8).value == pytest.approx(sigma, rel=1e-8)
        assert model.activations(given, [1])[1].shape == (1, 16, 16)
    with pytest.raises(InputError, match=r"a dict with the arguments of .* \(hidden_states, grid_thw\), got Tensor"):
        model.map_at(patches, 1)
    with pytest.raises(InputError, match="got a batch"):
        model.map_at(dict(given, grid_thw=torch.tensor([[1, 2, 4], [1, 2, 4]])), 1)


def test_linear_attention_is_a_mixer():
    """A layer without a softmax has the maps mixer and layer; the mixer is the module itself."""
    network = ZOO["qwen3_next"].network()
    given = inputs("qwen3_next")
    with lifted():
        at = load(network).map_at(given, 0, "mixer")
        f, x = stretch(eager(network), given, ("layers.0.linear_attn", 0), ("output", "layers.0.linear_attn", 0))
        assert_close(at.x, x)
        assert_close(at(), f(x).detach())
        sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
        assert local_lipschitz(at.f, at.x, tol=1e-8).value == pytest.approx(sigma, rel=1e-8)


@pytest.mark.parametrize("change", ["state", "random"])
def test_a_layer_that_is_another_map_at_each_call_is_refused(change):
    network = ZOO["gptj"].network()
    attention, calls = network.h[1].attn.out_proj, []

    def forward(x, inner=attention.forward):
        calls.append(1)
        return inner(x) * (len(calls) if change == "state" else torch.rand(()))

    attention.forward = forward
    for map in ("attention", "layer"):
        with pytest.raises(InputError, match=r"layer 1 of GPTJModel to return the same .*a state \(a cache, say\)"):
            load(network).map_at(inputs("gptj"), 1, map)


def test_padding_of_the_network_itself_is_refused():
    model = load(ZOO["longformer"].network())
    with pytest.raises(InputError, match=r"expected 6 tokens to enter layer 1 of .*, got 8: .*; try n = 8"):
        model.map_at(inputs("longformer", 6), 1)


def test_heads_under_a_common_norm_are_refused():
    """BitNet normalises all heads together before its projection: they do not sum to the map."""
    model = load(tiny("bitnet", dict(_SHAPE, num_key_value_heads=2)))
    given = inputs("llama")
    assert model.map_at(given, 1).x.shape == (5, 16)
    with pytest.raises(InputError, match="head: expected 4 heads that enter the output projection side by side"):
        model.map_at(given, 1, "head", head=0)


def test_keys_and_values_of_own_code_cannot_be_held_fixed():
    """Otherwise splitting would be measured without its coupling between tokens."""
    model = load(ZOO["gptj"].network())
    for map in ("attention", "block", "layer"):
        with pytest.raises(InputError, match="whose attention goes through transformers' attention registry"):
            OwnTokenMap(model.map_at(inputs("gptj"), 1, map).f)


@pytest.mark.parametrize("name", ["gptj", "deberta_v2", "qwen3_next"])
def test_half_precision(name):
    """Attention is found in bfloat16, whose roundings are large, and measured in float32."""
    at, exact = (load(ZOO[name].network(dtype)).map_at(inputs(name), 1) for dtype in (torch.bfloat16, torch.float32))
    assert at.x.dtype == torch.float32
    assert abs(local_lipschitz(at.f, at.x).value / local_lipschitz(exact.f, exact.x).value - 1) < 0.3


def test_one_token():
    """With one token softmax is 1, and attention still a map of it."""
    model = load(ZOO["mpt"].network())
    at = model.map_at(torch.tensor([7]), 1)
    f, x = stretch(
        eager(model.network),
        {"input_ids": torch.tensor([[7]])},
        ("blocks.1.attn", 0),
        ("output", "blocks.1.attn.out_proj", 0),
    )
    sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
    assert local_lipschitz(at.f, at.x, tol=1e-6).value == pytest.approx(sigma, rel=1e-6)
