"""Maps beside those of `test_zoo`, each against the model's own eager code, dense and in float64."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from howsmooth import load, local_lipschitz
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian
from howsmooth.models.map_types import MAPS, parse_map
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close, at_most

from .test_zoo import KINDS, LAYER, oracle
from .zoo import FIRST, ZOO, D, inputs, tiny

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


def assert_same(at, f, x) -> torch.Tensor:
    """Compare input, output, and products with the Jacobian and its transpose; return the dense one."""
    assert_close(at.x, x)
    assert_close(at(), f(x).detach())
    truth, ours = dense(f, x), jacobian(at.f, at.x)
    for side, product in ((truth, ours.matvec), (truth.T, ours.rmatvec)):
        v = torch.randn(side.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        assert_close(product(v), side @ v, 1e-10)
    return truth


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


# The layers of Swin are in stages.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ZOO if n != "swin"]
)
def test_chains_of_layers(name):
    family = ZOO[name]
    longer = name in ("llama", "albert", "t5", "bert")
    first, last = (1, 2) if longer else (0, 1)
    network = family.network(**(more_layers(family) if longer else {}))
    shared = name == "albert"
    with lifted():
        model, own = load(network, part=family.part), eager(network)
        prefix = {"vision": "vision_model", "text": "text_model", "encoder": "encoder"}.get(family.part, "")
        part, layers = own.get_submodule(prefix), family.layers.removeprefix(prefix).removeprefix(".")
        ends = [(f"{layers}.{0 if shared else layer}", layer if shared else 0) for layer in (first, last)]
        f, x = stretch(part, inputs(name), ends[0], ("output", *ends[1]))
        assert_same(model.map_at(inputs(name), None, f"chain:{first}..{last}"), f, x)
        whole = model.map_at(inputs(name), None, "chain")
        assert whole.map == "chain" and len(whole.f.layers) == last + 1


def more_layers(family) -> dict:
    """Return the change of the config that makes three layers."""
    return {name: 3 for name in ("num_hidden_layers", "num_layers") if name in family.sizes}


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gemma3_text", "phi"])
def test_from_the_embedding_to_the_logits(name):
    """Against the causal language model of the family, run on its own embeddings."""
    config = copy.deepcopy(ZOO[name].network().config)
    config.tie_word_embeddings = name != "phi"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = AutoModelForCausalLM.from_config(config).double().eval()
    with lifted():
        at = load(whole).map_at(inputs(name), None, "logits")
        own = eager(whole)
        x = own.get_input_embeddings()(inputs(name)["input_ids"])[0].detach()
        assert_same(at, lambda x: own(inputs_embeds=x[None]).logits[0], x)
    assert at().shape == (5, 60)


def test_maps_of_the_whole_model_are_refused_where_there_are_none():
    bert = load(ZOO["bert"].network())
    with pytest.raises(InputError, match=r"logits: .* reads its text|logits: .*; it has the maps attention, .* chain"):
        bert.map_at(inputs("bert"), None, "logits")
    with pytest.raises(InputError, match=r"layers from 0 to 1 of BertModel, got chain:0\.\.2"):
        bert.map_at(inputs("bert"), None, "chain:0..2")
    for name, match in (("chain:3", "chain:FIRST..LAST, such as chain:0..3"), ("chain:2..1", "got 'chain:2..1'")):
        with pytest.raises(InputError, match=match):
            parse_map(name)


def test_every_map_is_tested():
    tested = {*KINDS, "norm", "mlp", "mixer", "chain", "logits", "weights", "cache", "cross"}
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


def attention_of(name: str, layer: int = LAYER):
    """Return an eager copy of a tiny network, its attention module and output projection, and its own input."""
    network = eager(ZOO[name].network())
    base = f"{ZOO[name].layers}.{layer}"
    attention, projection = (network.get_submodule(f"{base}.{path}") for path in _paths(name))
    return network, attention, projection


def _paths(name: str) -> tuple[str, str]:
    return ZOO[name].attention, ZOO[name].projection


def output_of(network, projection, given) -> torch.Tensor:
    """Return what the projection returns in a pass of the network, (n, d)."""
    seen = []
    handle = projection.register_forward_hook(lambda _module, _args, output: seen.append(output))
    try:
        network(**given)
    finally:
        handle.remove()
    return seen[0][0]


# Modules of the weights in attention, or the columns of a matrix that makes queries, keys and values.
WEIGHTS = {
    "llama": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
    "bert": {"q": "query", "k": "key", "v": "value", "o": None},
    "gpt2": {"q": slice(0, D), "k": slice(D, 2 * D), "v": slice(2 * D, None), "o": "c_proj"},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_attention_as_a_function_of_its_weights(name):
    with lifted():
        model, found = load(ZOO[name].network()), []
        for part, where in WEIGHTS[name].items():
            network, attention, projection = attention_of(name)
            fused = isinstance(where, slice)
            module = projection if where is None else attention.c_attn if fused else attention.get_submodule(where)
            columns = type(module).__name__ == "Conv1D"  # its weight is (in, out)
            whole = module._parameters.pop("weight").detach()

            def f(w):
                set_rows(module, whole, w, where if fused else slice(None), columns)  # noqa: B023
                return output_of(network, projection, inputs(name))  # noqa: B023

            at = model.map_at(inputs(name), LAYER, f"weights:{part}")
            rows = whole.T if columns else whole
            found.append(assert_same(at, f, rows[where] if fused else rows))
        everything = model.map_at(inputs(name), LAYER, "weights")
        assert everything.map == "weights:all" and len(everything.x) == 1
        v = torch.randn(everything.x.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        assert_close(jacobian(everything.f, everything.x).matvec(v), torch.cat(found, 1) @ v, 1e-10)


def set_rows(module, whole, rows, where, columns) -> None:
    weight = (whole.T if columns else whole).clone()
    weight[where] = rows
    module.weight = weight.T if columns else weight


@pytest.mark.parametrize("name", ["llama", "bert", "gemma2"])
@pytest.mark.parametrize("argument", ["keys", "values", "both"])
def test_attention_as_a_function_of_its_cache(name, argument, monkeypatch):
    """Keys and values are replaced where the family's own eager attention takes them, after rotary positions."""
    network, attention, projection = attention_of(name)
    code = importlib.import_module(type(attention).__module__)
    original, held = code.eager_attention_forward, {}

    def patched(module, query, key, value, *args, **kwargs):
        if module is attention:
            held.setdefault("start", (key.detach(), value.detach()))
            key, value = held.get("new", (key, value))
        return original(module, query, key, value, *args, **kwargs)

    monkeypatch.setattr(code, "eager_attention_forward", patched)

    def rows(t):
        return t[0].transpose(0, 1).flatten(1)

    def f(x):
        k, v = held["start"]
        k_rows, v_rows = {
            "keys": (x, rows(v)),
            "values": (rows(k), x),
            "both": (x[:, : rows(k).shape[1]], x[:, rows(k).shape[1] :]),
        }[argument]
        held["new"] = tuple(r.unflatten(-1, (k.shape[1], -1)).transpose(0, 1)[None] for r in (k_rows, v_rows))
        return output_of(network, projection, inputs(name))

    with lifted():
        output_of(network, projection, inputs(name))
        k, v = map(rows, held["start"])
        x = {"keys": k, "values": v, "both": torch.cat([k, v], -1)}[argument]
        assert_same(load(ZOO[name].network()).map_at(inputs(name), LAYER, f"cache:{argument}"), f, x)


BART = dict(
    vocab_size=60,
    d_model=D,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    max_position_embeddings=40,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=3,
    forced_eos_token_id=None,
)
CROSS = {
    "t5": ("decoder.block.1.layer.1.EncDecAttention", "o"),
    "bart": ("decoder.layers.1.encoder_attn", "out_proj"),
    "whisper": ("decoder.layers.1.encoder_attn", "out_proj"),
}


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("argument", ["queries", "memory", "both"])
def test_cross_attention(name, argument):
    ids = {"input_ids": torch.arange(5, 12)[None], "decoder_input_ids": torch.arange(20, 25)[None]}
    if name == "whisper":
        network, given = ZOO["whisper_decoder"].network(), inputs("whisper_decoder")
    else:
        network, given = tiny(name, BART if name == "bart" else ZOO["t5"].sizes), ids
    own = eager(network)
    path, last = CROSS[name]
    attention, seen = own.get_submodule(path), []

    def names(kwargs):
        return [key for key in ("key_value_states", "encoder_hidden_states") if kwargs.get(key) is not None]

    def run(queries=None, memory=None):
        def enter(_module, args, kwargs):
            (key,) = names(kwargs)
            seen.append((args[0] if args else kwargs["hidden_states"], kwargs[key]))
            q, m = (old if new is None else new[None] for old, new in zip(seen[-1], (queries, memory), strict=True))
            return (q, *args[1:]) if args else args, {**kwargs, **({} if args else {"hidden_states": q}), key: m}

        handle = attention.register_forward_pre_hook(enter, with_kwargs=True)
        try:
            return output_of(own, attention.get_submodule(last), given)
        finally:
            handle.remove()

    with lifted():
        run()
        queries, memory = (t[0].detach() for t in seen[0])
        f, x = {
            "queries": (lambda x: run(queries=x), queries),
            "memory": (lambda x: run(memory=x), memory),
            "both": (lambda x: run(*x.split([len(queries), len(memory)])), torch.cat([queries, memory])),
        }[argument]
        assert_same(load(network, part="decoder").map_at(given, LAYER, f"cross:{argument}"), f, x)


def test_maps_of_arguments_are_refused_where_there_are_none():
    model = load(ZOO["llama"].network())
    with pytest.raises(
        InputError, match=r"cross: .* \(--part decoder\); it has the maps attention, .*, weights, cache"
    ):
        model.map_at(inputs("llama"), LAYER, "cross")
    with pytest.raises(
        InputError, match="weights:all or weights:q or weights:k or weights:v or weights:o, got 'weights:x'"
    ):
        parse_map("weights:x")
    with pytest.raises(InputError, match="did you mean 'cache:values'"):
        parse_map("cache:value")


def test_a_product_costs_at_most_three_passes_in_operations():
    """Multiplications of J v and of the map, counted; times are in the documentation."""
    model = load(ZOO["llama"].network())
    for name in ("mlp", "mixer", "layer", "weights:q", "cache"):
        at = model.map_at(inputs("llama"), LAYER, name)
        J = jacobian(at.f, at.x)
        with torch.no_grad(), FlopCounterMode(display=False) as own:
            at()
        with FlopCounterMode(display=False) as forward:
            J.matvec(torch.ones(J.shape[1], dtype=torch.float64))
        with FlopCounterMode(display=False) as backward:
            J.rmatvec(torch.ones(J.shape[0], dtype=torch.float64))
        assert max(forward.get_total_flops(), backward.get_total_flops()) <= 3 * own.get_total_flops()
