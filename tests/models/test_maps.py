"""Maps beside those of `test_zoo`, each against the model's own eager code, dense and in float64."""

from __future__ import annotations

import pytest
import torch

from howsmooth import load, local_lipschitz
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian
from howsmooth.models.map_types import MAPS, parse_map
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close, at_most

from .test_zoo import KINDS, LAYER, oracle
from .zoo import FIRST, ZOO, inputs

# Paths in the layer: the module whose input is that of the MLP, and the one whose output is its output.
MLP = {
    **dict.fromkeys(("bert", "roberta", "mpnet"), ("intermediate", "output.dense")),
    **dict.fromkeys(("deberta", "deberta_v2", "longformer"), ("intermediate", "output.dense")),
    "mpt": ("ffn.up_proj", "ffn.down_proj"),
    **dict.fromkeys(("whisper_encoder", "whisper_decoder"), ("fc1", "fc2")),
    "distilbert": ("ffn", "ffn"),
    "albert": ("ffn", "ffn_output"),
    "bloom": ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    **dict.fromkeys(("jamba", "falcon_h1", "lfm2"), ("feed_forward", "feed_forward")),
    "t5": ("layer.1.DenseReluDense", "layer.1.DenseReluDense"),
}

# Without an MLP, or with one that mixes tokens (RWKV), or whose output is not the last sum.
NO_MLP = ("mamba", "mamba2", "rwkv", "mobilebert")
QUICK = (*FIRST, "gptj", "swin", "mamba", "rwkv")


def assert_same(at, f, x) -> None:
    """Compare input, output, and products with the Jacobian and its transpose."""
    assert_close(at.x, x)
    assert_close(at(), f(x).detach())
    truth, ours = dense(f, x), jacobian(at.f, at.x)
    for side, product in ((truth, ours.matvec), (truth.T, ours.rmatvec)):
        v = torch.randn(side.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        assert_close(product(v), side @ v, 1e-10)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ZOO])
def test_norm_mlp_and_mixer(name):
    family, network = ZOO[name], ZOO[name].network()
    shared = name == "albert"
    call, layer = (LAYER, 0) if shared else (0, LAYER)
    with lifted():
        model, own = load(network, part=family.part), eager(network)
        if family.attention:
            assert_same(model.map_at(inputs(name), LAYER, "mixer"), *oracle(name, eager(network), "attention"))
        if (norm := family.norm) is not None:
            place, path = (layer, norm) if isinstance(norm, str) else (0 if shared else LAYER - 1, norm[1])
            module = own.get_submodule(f"{family.layers}.{place}.{path}")
            assert_same(model.map_at(inputs(name), LAYER, "norm"), module, oracle(name, own, "normed")[1])
        if name in NO_MLP:
            with pytest.raises(InputError, match="mlp: expected modules whose output is added"):
                model.map_at(inputs(name), LAYER, "mlp")
            return
        at = model.map_at(inputs(name), LAYER, "mlp")
        prefix = {"vision": "vision_model", "text": "text_model", "encoder": "encoder"}.get(family.part, "")
        base = f"{family.layers}.{layer}".removeprefix(prefix).removeprefix(".")
        part = own.get_submodule(prefix)
        if name == "opt":  # its MLP takes the tokens of all sequences as rows
            seen, decoder = [], part.get_submodule(base)
            decoder.fc1.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()))
            part(**inputs(name))
            assert_same(at, lambda x: decoder.fc2(torch.relu(decoder.fc1(x))), seen[0])
        else:
            start, end = (f"{base}.{path}" for path in MLP.get(name, ("mlp", "mlp")))
            assert_same(at, *stretch(part, inputs(name), (start, call), ("output", end, call)))


def test_every_map_is_tested():
    tested = {*KINDS, "norm", "mlp", "mixer"}
    assert tested == set(MAPS)


def test_a_map_that_a_layer_does_not_have_names_those_it_has():
    model = load(ZOO["albert"].network())
    with pytest.raises(
        InputError, match=r"norm: .* in layer 0 of AlbertModel; it has the maps attention, head, block,"
    ):
        model.map_at(inputs("albert"), 0, "norm")


def test_the_constant_of_an_mlp_is_the_largest_of_its_tokens():
    model = load(ZOO["llama"].network())
    at = model.map_at(inputs("llama"), LAYER, "mlp")
    found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9)
    each = [float(torch.linalg.matrix_norm(dense(at.f, x[None]), 2)) for x in at.x]
    assert at_most(found.lower, max(each), found.upper)


@pytest.mark.parametrize(
    "name, match",
    [
        ("atention", "did you mean 'attention'"),
        ("mpl", "did you mean 'mlp'"),
        ("block:3", "expected block without an argument, got 'block:3'"),
        (3, "expected a map among .*, got 3"),
    ],
)
def test_invalid_names_of_maps(name, match):
    with pytest.raises(InputError, match=match):
        parse_map(name)
