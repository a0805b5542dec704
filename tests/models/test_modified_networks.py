"""Networks with LoRA, hooks or other changes: the map is what the module computes, or it is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Lfm2Config, Lfm2Model

from howsmooth import InputError, SelfAttention, load, local_lipschitz
from howsmooth.models import layer_chain, replace_attention
from howsmooth.models.embedding import TokenEmbedding
from tests import reasons
from tests.oracles.eager import dense, eager, stretch
from tests.tolerances import assert_close

from .test_zoo import HEAD, KINDS, LAYER, oracle
from .tiny import tiny_network
from .zoo import ZOO, inputs

WITH_ADAPTER = ("llama", "bert")  # of the families below; the others are measured as modules


class LowRank(torch.nn.Module):
    """A projection with a low-rank update, like peft's: its attribute `weight` is that of the base layer."""

    def __init__(self, base_layer: torch.nn.Linear, rank: int = 2):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.base_layer = base_layer
        self.down, self.up = (
            torch.nn.Linear(*size, bias=False, dtype=base_layer.weight.dtype)
            for size in ((base_layer.in_features, rank), (rank, base_layer.out_features))
        )
        for part in (self.down, self.up):
            part.weight.data.copy_(torch.randn(part.weight.shape, generator=generator))

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base_layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.up(self.down(x))


def wrap(network, path: str) -> None:
    parent, _, name = path.rpartition(".")
    owner = network.get_submodule(parent)
    setattr(owner, name, LowRank(getattr(owner, name)).eval())


def projections(name: str) -> tuple[str, str]:
    """Return the paths of the query projection and of the output projection."""
    base = f"{ZOO[name].layers}.{LAYER}"
    return f"{base}.{ZOO[name].attention}.{'query' if 'bert' in name else 'q_proj'}", f"{base}.{ZOO[name].projection}"


def assert_measured(name: str, network) -> None:
    """Assert that the map, at an input and for a length, is that of the model's own eager code."""
    f, x = oracle(name, eager(network), "attention")
    truth = dense(f, x)
    sigma = float(torch.linalg.matrix_norm(truth, 2))
    model = load(network)
    at = model.map_at(inputs(name), LAYER)
    assert_close(at(), f(x).detach(), 1e-6)  # some families cast to float32 inside
    found = local_lipschitz(at.f, at.x, tol=1e-5, confidence=1 - 1e-9, strict=False)
    assert found.value == pytest.approx(sigma, rel=1e-4)
    ids = inputs(name)
    ids = ids["input_ids"][0] if isinstance(ids, dict) else ids
    tokens = model.activations(ids, [LAYER])[LAYER]
    assert_close(model.attention(LAYER, len(tokens))(tokens).detach(), f(x).detach(), 1e-6)


@pytest.mark.parametrize("which", [0, 1], ids=["queries", "output"])
@pytest.mark.parametrize("name", ["llama", "bert", "mistral", "qwen2", "qwen3", "roberta"])
def test_low_rank_updates_are_part_of_the_map(name, which):
    network = ZOO[name].network()
    plain = load(network).map_at(inputs(name), LAYER)
    assert isinstance(plain.f, SelfAttention) == (name in WITH_ADAPTER)
    wrap(network, projections(name)[which])
    assert_measured(name, network)
    other = load(network).map_at(inputs(name), LAYER)
    assert (other() - plain()).abs().max() > 1e-3 and not isinstance(other.f, SelfAttention)
    if name in WITH_ADAPTER:  # the other layers are plain
        assert isinstance(load(network).map_at(inputs(name), 0).f, SelfAttention)


@pytest.mark.parametrize("name", ["llama", "bert", "mistral", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}], ids=["lora", "rslora", "dora"])
def test_updates_by_peft_are_part_of_the_map(name, options):
    peft = pytest.importorskip("peft", reason=reasons.PEFT)
    network = ZOO[name].network()
    plain = load(network).map_at(inputs(name), LAYER)
    targets = {"bert": ["query", "attention.output.dense"], "gpt2": ["attn.c_attn", "attn.c_proj"]}
    config = peft.LoraConfig(
        r=2,
        target_modules=targets.get(name, ["q_proj", "o_proj"]),
        init_lora_weights=False,
        fan_in_fan_out=name == "gpt2",
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wrapped = peft.get_peft_model(network, config).double().eval()
    with pytest.raises(InputError, match=r"got an object of type PeftModel; .*get_base_model\(\)"):
        load(wrapped)
    assert_measured(name, wrapped.get_base_model())
    assert (load(wrapped.get_base_model()).map_at(inputs(name), LAYER)() - plain()).abs().max() > 1e-3
    wrapped.merge_adapter()  # the update is now part of the weights, which an adapter can read
    assert_measured(name, wrapped.get_base_model())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch.compile
def test_a_wrapped_network_is_refused_with_what_it_wraps():
    """The hint was that of peft for every wrapper."""
    network = ZOO["bert"].network()
    for wrapped, inside in [
        (torch.compile(network), "._orig_mod"),
        (torch.nn.DataParallel(network), ".module"),
        (torch.nn.Sequential(network), "the transformers model inside"),
    ]:
        with pytest.raises(InputError, match=rf"an object of type {type(wrapped).__name__}; give {inside}") as refused:
            load(wrapped)
        assert "peft" not in str(refused.value)
    assert_measured("bert", torch.compile(network)._orig_mod)


@pytest.mark.parametrize("name", ["llama", "bert", "mistral"])
def test_forward_pre_hooks_are_part_of_the_map(name):
    network = ZOO[name].network()
    module = network.get_submodule(projections(name)[0])
    module.register_forward_pre_hook(lambda _module, args: (3 * args[0], *args[1:]))
    assert_measured(name, network)


def scale_hidden_states(_module, args, kwargs):
    """A pre-hook that is not linear in the tokens, so that applying it twice is another map."""
    x = args[0] if args else kwargs["hidden_states"]
    y = x + (3 * x).sin()
    return ((y, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": y})


@pytest.mark.parametrize(
    "name, where, kind",
    [
        *((name, "attention", kind) for name in ("llama", "bert", "mistral") for kind in KINDS),
        *((name, "attention", "attention") for name in ("gpt2", "roberta", "bloom", "vit")),
        *((name, "layer", kind) for name in ("llama", "bert", "mistral") for kind in ("attention", "layer", "block")),
        *((name, "first layer", "model") for name in ("llama", "bert", "mistral")),
        *((name, "norm", kind) for name in ("llama", "mistral") for kind in ("normed", "block")),
    ],
)
def test_pre_hooks_of_every_module_are_part_of_the_map(name, where, kind):
    family, network = ZOO[name], ZOO[name].network()
    layer = f"{family.layers}.{0 if where == 'first layer' else LAYER}"
    path = {"attention": f"{layer}.{family.attention}", "norm": f"{layer}.{family.norm}"}.get(where, layer)
    network.get_submodule(path).register_forward_pre_hook(scale_hidden_states, with_kwargs=True)
    if kind == "block" and where == "layer":
        with pytest.raises(InputError, match="block: expected attention to be added to what enters the layer"):
            load(network).map_at(inputs(name), LAYER, kind)
        return
    f, x = oracle(name, eager(network), kind)
    at = load(network).map_at(
        inputs(name), None if kind == "model" else LAYER, kind, head=HEAD if kind == "head" else None
    )
    assert_close(at.x, x, 1e-6)
    assert_close(at(), f(x).detach(), 1e-6)
    found = local_lipschitz(at.f, at.x, tol=1e-5, confidence=1 - 1e-9, strict=False)
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-4)


def test_a_pre_hook_without_keywords_is_part_of_the_map():
    network = ZOO["bert"].network()
    module = network.get_submodule(f"{ZOO['bert'].layers}.{LAYER}.attention.self")
    module.register_forward_pre_hook(lambda _module, args: (args[0] + (3 * args[0]).sin(), *args[1:]))
    assert_measured("bert", network)


@pytest.mark.parametrize("name", ["llama", "bert", "mistral"])
def test_forward_hooks_are_part_of_the_map(name):
    network = ZOO[name].network()
    network.get_submodule(projections(name)[1]).register_forward_hook(lambda _module, _args, output: 2 * output)
    assert_measured(name, network)


def test_heads_with_a_low_rank_update_add_up():
    network = ZOO["mistral"].network()
    wrap(network, projections("mistral")[1])
    model = load(network)
    parts = [model.map_at(inputs("mistral"), LAYER, "head", head=head)() for head in range(model.heads)]
    assert_close(sum(parts), model.map_at(inputs("mistral"), LAYER)(), 1e-6)


def test_an_adapter_that_differs_from_the_module_at_some_length_is_refused(monkeypatch):
    """Here an adapter with a wrong factor, for more than eight tokens."""
    model = load(tiny_network("llama", dtype=torch.float64))
    real = model._adapter.self_attention

    def wrong_factor(network, layer, n):
        f = real(network, layer, n)
        if n > 8 and layer == 2:
            return f.replaced(wo=1.01 * f.wo)
        return f

    monkeypatch.setattr(model._adapter, "self_attention", wrong_factor)
    assert set(model.activations(torch.arange(8), [0, 2])) == {0, 2}
    with pytest.raises(InputError, match=r"attention map of layer 2 .* differ by 0.0099 of their size"):
        model.activations(torch.arange(12), [0, 2])
    with pytest.raises(InputError, match="attention map of layer 2"):
        model.map_at(torch.arange(12), 2)


@pytest.fixture
def faulty(monkeypatch):
    """A tiny Llama whose adapter has a wrong factor in layers 0 and 2, at every length."""
    model = load(tiny_network("llama", dtype=torch.float64))
    real = model._adapter.self_attention

    def wrong_factor(network, layer, n):
        f = real(network, layer, n)
        if layer in (0, 2):
            return f.replaced(wo=1.01 * f.wo)
        return f

    monkeypatch.setattr(model._adapter, "self_attention", wrong_factor)
    return model, real


def test_an_adapter_that_differs_at_every_length_is_reported_once(faulty):
    model, real = faulty
    with pytest.warns(UserWarning, match=r"layers 0, 2 of .* module itself is measured") as seen:
        at = model.map_at(torch.arange(6), 2)
        model.map_at(torch.arange(6), 0)
        model.activations(torch.arange(12), [0, 1, 2])
    assert len(seen) == 1
    assert not isinstance(at.f, SelfAttention) and isinstance(model.map_at(torch.arange(6), 1).f, SelfAttention)
    with torch.no_grad():
        assert_close(at(), real(model.network, 2, 6)(at.x), 1e-9)


def test_a_module_that_the_user_changed_is_measured_without_a_warning(monkeypatch):
    """Warnings are errors in these tests, also in those above with LoRA or a hook."""
    network = tiny_network("llama", dtype=torch.float64)
    module = network.layers[1].self_attn.o_proj
    module.forward = lambda x: 2 * torch.nn.functional.linear(x, module.weight, module.bias)
    model = load(network)
    assert not isinstance(model.map_at(torch.arange(6), 1).f, SelfAttention)

    def declines(network, layer, n):
        raise InputError("expected another network, got this one")

    monkeypatch.setattr(model._adapter, "self_attention", declines)
    assert not isinstance(load(network).map_at(torch.arange(6), 0).f, SelfAttention)


@pytest.mark.parametrize("kind, head", [("attention", None), ("head", 1)])
def test_the_map_of_an_adapter_is_built_once(monkeypatch, kind, head):
    model = load(tiny_network("llama", dtype=torch.float64))
    real, built = model._adapter.self_attention, []
    model.map_at(torch.arange(6), 1)  # compares all layers
    monkeypatch.setattr(model._adapter, "self_attention", lambda *given: built.append(given[1:]) or real(*given))
    model.map_at(torch.arange(6), 1, kind, head=head)
    assert built == [(1, 6)]


def hybrid() -> Lfm2Model:
    """Convolutions in layers 0, 2 and 3, attention in layers 1 and 4."""
    kinds = ["full_attention" if layer in (1, 4) else "conv" for layer in range(5)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return (
            Lfm2Model(
                Lfm2Config(
                    vocab_size=60,
                    hidden_size=16,
                    intermediate_size=20,
                    num_hidden_layers=5,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    layer_types=kinds,
                    max_position_embeddings=40,
                )
            )
            .double()
            .eval()
        )


def test_layers_of_a_hybrid_are_numbered_as_in_the_model():
    network = hybrid()
    model, ids = load(network), torch.arange(9)
    seen = {}
    for layer in (1, 4):
        network.layers[layer].self_attn.register_forward_hook(
            lambda _module, args, kwargs, output, layer=layer: seen.update({layer: kwargs.get("hidden_states", *args)}),
            with_kwargs=True,
        )
    with torch.no_grad():
        network(input_ids=ids[None])
    for layer in (1, 4):
        assert_close(model.map_at(ids, layer).x, seen[layer][0], 1e-6)
    with pytest.raises(InputError, match=r"self-attention in layer 0 of Lfm2Model, got a .*\(layers with it: 1, 4\)"):
        model.map_at(ids, 0)


# Of families with an adapter, with one that makes the modules use the registry, and of the generic path.
SHARING = ("llama", "bert", "gpt2", "mpnet", "bloom", "falcon", "mistral", "qwen3", "roberta", "gpt_neox", "vit")


def with_shared_layer(name: str):
    """Return a network of three layers whose layers 1 and 2 are one module."""
    size = {"gpt2": "n_layer", "bloom": "n_layer"}.get(name, "num_hidden_layers")
    network = ZOO[name].network(**{size: 3})
    stack = network.get_submodule(ZOO[name].layers)
    stack[2] = stack[1]
    network.config.use_cache = False  # the module's key-value cache would contain the tokens of both calls
    return network


@pytest.mark.parametrize("kind", ["attention", "layer", "model"])
@pytest.mark.parametrize("name", SHARING)
def test_a_layer_module_used_twice_is_measured_at_each_of_its_calls(name, kind):
    family, network, given = ZOO[name], with_shared_layer(name), inputs(name)
    base = f"{family.layers}.1"
    for layer, call in [(1, 0)] if kind == "model" else [(1, 0), (2, 1)]:
        if kind == "model":
            start, end = (f"{family.layers}.0", 0), ("output", "", 0)
        elif kind == "layer":
            start, end = (base, call), ("output", base, call)
        else:
            start, end = (f"{base}.{family.attention}", call), ("output", f"{base}.{family.projection}", call)
        f, x = stretch(eager(network), given, start, end)
        at = load(network).map_at(given, None if kind == "model" else layer, kind)
        assert_close(at.x, x, 1e-6)
        assert_close(at(), f(x).detach(), 1e-6)
        found = local_lipschitz(at.f, at.x, tol=1e-5, confidence=1 - 1e-9, strict=False)
        assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-4)


@pytest.mark.parametrize("name", ["mistral", "llama", "bert", "vit"])
def test_a_layer_that_was_copied_from_another_is_measured(name):
    """Its attention has a copy of the config, which says how attention is computed."""
    network, shared = ZOO[name].network(num_hidden_layers=3), with_shared_layer(name)
    stack = network.get_submodule(ZOO[name].layers)
    stack[2] = copy.deepcopy(stack[1])
    found, expected = (load(net).map_at(inputs(name), 2) for net in (network, shared))
    assert_close(found.x, expected.x, 1e-6)
    assert_close(found(), expected(), 1e-6)


@pytest.mark.parametrize("name", ["mistral", "llama"])
def test_layers_that_share_a_module_are_a_chain(name):
    network = with_shared_layer(name)
    chain = layer_chain(load(network), inputs(name)["input_ids"][0])
    with torch.no_grad():
        truth = network(**inputs(name), output_hidden_states=True)
    for mine, theirs in zip(chain.states()[:3], truth.hidden_states[:3], strict=True):
        assert_close(mine, theirs[0], 1e-6)
    assert_close(chain.states()[-1], truth.last_hidden_state[0], 1e-6)


@pytest.mark.parametrize("name", ["mistral", "albert"])
def test_attention_of_embedding_vectors_is_that_of_the_call_of_the_layer(name):
    network = with_shared_layer(name) if name == "mistral" else ZOO[name].network()
    model, ids = load(network), inputs(name)["input_ids"]
    embedding = TokenEmbedding(model)
    for layer in (1, model.layers - 1):
        with torch.no_grad():
            found = embedding.attention(embedding.matrix[ids], layer)[0]
        assert_close(found, model.map_at(ids[0], layer)(), 1e-6)


@pytest.mark.parametrize("name, layer", [("mistral", 2), ("albert", 0)])
def test_attention_that_layers_share_is_not_replaced(name, layer):
    model = load(with_shared_layer(name) if name == "mistral" else ZOO[name].network())
    with (
        pytest.raises(InputError, match=f"got layer {layer} of .* other layers use too"),
        replace_attention(model, {layer: torch.zeros_like}),
    ):
        pass
