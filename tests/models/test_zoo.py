"""Every family against its own eager code in float64: outputs, tokens, the whole Jacobian, and its norm."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from howsmooth import SelfAttention, load, local_lipschitz
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close, at_most

from .zoo import FIRST, HEADS, HYBRID, ZOO, inputs

LAYER, HEAD = 1, 2
KINDS = ("attention", "head", "normed", "block", "layer", "model")


def oracle(name: str, network, kind: str, layer: int = LAYER):
    """Return the same map by the model's own code, and its input; modules are given by paths, not searched for."""
    family = ZOO[name]
    shared = name == "albert"  # one module for all layers: layers are calls of it
    base = f"{family.layers}.{0 if shared else layer}"
    call = layer if shared else 0
    end = ("output", f"{base}.{family.projection}", call)
    start = (f"{base}.{family.attention}", call)
    if kind == "normed":
        norm = family.norm
        below = f"{family.layers}.{0 if shared else layer - 1}"
        start = (f"{base}.{norm}", call) if isinstance(norm, str) else (f"{below}.{norm[1]}", call - shared)
    if kind in ("block", "layer"):
        start = (base, call)
        if family.block != "sum" or kind == "layer":
            end = ("output", base, call) if kind == "layer" else (family.block[0], f"{base}.{family.block[1]}", call)
    if kind == "model":
        start = (f"{family.layers}.0", 0)
        stack = {"vision": "vision_model", "text": "text_model"}.get(family.part, family.part or "")
        end = ("output", stack, 0)
    given = inputs(name)
    if family.part in ("vision", "text", "encoder"):  # the other part has no input
        prefix = {"vision": "vision_model", "text": "text_model", "encoder": "encoder"}[family.part]
        network = network.get_submodule(prefix)
        start = (start[0].removeprefix(prefix + "."), start[1])
        end = (end[0], end[1].removeprefix(prefix).removeprefix("."), end[2])
    f, x = stretch(network, given, start, end)
    if kind == "head":  # after x is computed: ALBERT's other layers share the projection
        zero_other_heads(network.get_submodule(end[1]))
    return ((lambda t: t + f(t)), x) if kind == "block" and family.block == "sum" else (f, x)


def zero_other_heads(projection) -> None:
    """Set the other heads to zero before the projection, and remove its bias."""

    def select_head(_module, args):
        heads = args[0].unflatten(-1, (HEADS, -1))
        return ((heads * (torch.arange(HEADS) == HEAD).to(heads)[:, None]).flatten(-2),)

    projection.register_forward_pre_hook(select_head)
    if projection.bias is not None:
        torch.nn.init.zeros_(projection.bias)


@pytest.fixture(scope="module")
def networks():
    made = {}

    def network(name: str):
        if name not in made:
            made[name] = ZOO[name].network()
        return made[name]

    return network


# Quick for each family: attention and the whole layer. The other maps of later families are made of the same parts.
CASES = [
    pytest.param(name, kind, marks=[] if name in FIRST or kind in ("attention", "layer") else pytest.mark.slow)
    for kind in KINDS
    for name in ZOO
]
WITH_ATTENTION = [name for name in ZOO if "attention" not in ZOO[name].refused]


@pytest.mark.parametrize("name, kind", CASES)
def test_every_kind_of_map_agrees_with_the_model(name, kind, networks):
    network = networks(name)
    with lifted():
        model = load(network, part=ZOO[name].part)
        if kind in ZOO[name].refused:
            with pytest.raises(InputError, match=r"expected .*, got .*; it has the maps .*layer, model"):
                model.map_at(inputs(name), LAYER, kind, head=HEAD if kind == "head" else None)
            return
        at = model.map_at(inputs(name), None if kind == "model" else LAYER, kind, head=HEAD if kind == "head" else None)
        f, x = oracle(name, eager(network), kind)
        assert_close(at.x, x)
        assert_close(at(), f(x).detach())
        truth = dense(f, x)
        ours = jacobian(at.f, at.x)
        for side, product in ((truth, ours.matvec), (truth.T, ours.rmatvec)):
            v = torch.randn(side.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            assert_close(product(v), side @ v, 1e-10)
        sigma = float(torch.linalg.matrix_norm(truth, 2))
        # With so many random starts, a few intervals of confidence 0.999 would miss.
        estimate = local_lipschitz(at.f, at.x, tol=1e-8, confidence=1 - 1e-9)
    assert at_most(abs(estimate.value - sigma), 1e-10 * sigma)
    assert at_most(estimate.lower, sigma) and at_most(sigma, estimate.upper)


@pytest.mark.parametrize("name", FIRST)
def test_constants_with_the_casts_of_the_model(name, networks):
    network = networks(name)
    f, x = oracle(name, eager(network), "attention")
    sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
    at = load(network, part=ZOO[name].part).map_at(inputs(name), LAYER)
    found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9, strict=False)
    assert found.value == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3_text", "t5", "phi"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_intervals_contain_the_constants_with_and_without_casts(name, dtype):
    """Captured tensors (masks, rotary tables) are exact; intermediate results in float32 are rounded."""
    network = ZOO[name].network(dtype)
    model = load(network, part=ZOO[name].part)
    for kind in ("attention", "normed", "layer"):
        at = model.map_at(inputs(name), LAYER, kind)
        found = local_lipschitz(at.f, at.x)
        exact = at.f.converted(dtype=torch.float64) if isinstance(at.f, SelfAttention) else copy.deepcopy(at.f).double()
        x = at.x.double()
        with lifted():
            truths = [dense(exact, x)]
        if dtype == torch.float64:  # otherwise no cast is to a coarser dtype
            truths += [dense(at.f, x)]
        for truth in truths:
            assert at_most(found.lower, float(torch.linalg.matrix_norm(truth, 2)), found.upper)


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_heads_sum_to_the_map_and_layers_differ(name, networks):
    model = load(networks(name), part=ZOO[name].part)
    given = inputs(name)
    whole = model.map_at(given, LAYER)
    parts = [model.map_at(given, LAYER, "head", head=head)() for head in range(HEADS)]
    bias = whole() - sum(parts)
    assert_close(bias, bias[:1].expand_as(bias), 1e-6)  # one vector for all tokens: the bias of the projection
    assert all(not torch.allclose(a, b, rtol=0.1) for a, b in itertools.pairwise(parts))
    if name != "albert" and name not in HYBRID:
        assert not torch.allclose(model.map_at(given, 0).f(whole.x), whole(), rtol=0.1)


@pytest.mark.parametrize("name", ["modernbert", "mistral", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("layer", [0, 1])
def test_windows_differ_by_layer_and_agree_with_the_model(name, layer, networks):
    """The input is longer than the window, so that full attention would differ."""
    given = inputs(name, 9)
    with lifted():
        at = load(networks(name)).map_at(given, layer)
        family, base = ZOO[name], f"{ZOO[name].layers}.{layer}."
        ends = (base + family.attention, 0), ("output", base + family.projection, 0)
        f, x = stretch(eager(networks(name)), given, *ends)
        assert_close(at(), f(x).detach())
    moved = at.x.clone()
    moved[0] += 1
    unaffected = torch.equal(at.f(moved)[-1], at()[-1])
    full = {"modernbert": 0, "gemma2": 1}
    assert unaffected == (full.get(name) != layer)


@pytest.mark.parametrize("name", ["bert", "gemma2", "clip_vision"])
def test_half_precision_is_measured_in_float32(name, networks):
    network = ZOO[name].network(torch.bfloat16)
    model = load(network, part=ZOO[name].part)
    for kind in ("attention", "block"):
        at = model.map_at(inputs(name), LAYER, kind)
        found = local_lipschitz(at.f, at.x)
        want = load(ZOO[name].network(torch.float32), part=ZOO[name].part).map_at(inputs(name), LAYER, kind)
        assert abs(found.value / local_lipschitz(want.f, want.x).value - 1) < 0.2
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}


def test_a_given_network_is_not_modified(networks):
    network = networks("gemma2")
    before, kept = network.config.to_dict(), network.config._attn_implementation
    grads = [p.requires_grad for p in network.parameters()]
    model = load(network)
    at = model.map_at(inputs("gemma2"), 1, "layer")
    local_lipschitz(at.f, at.x)
    assert network.config.to_dict() == before and network.config._attn_implementation == kept
    assert [p.requires_grad for p in network.parameters()] == grads
    assert all(p.grad is None for p in network.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.instrumented.modules())
    pairs = zip(network.parameters(), model.instrumented.parameters(), strict=True)
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)  # the weights are shared


def test_generic_normalisation(networks):
    """LayerNorm, RMSNorm and Gemma's, which stores its gain minus one, recognised by their values."""
    for name, centred in (("opt", True), ("qwen3", False), ("gemma3_text", False), ("vit", True), ("t5", False)):
        model = load(networks(name), part=ZOO[name].part)
        at = model.map_at(inputs(name), LAYER, "normed")
        norm = model.normalisation(LAYER)
        assert norm.centred == centred
        assert_close(norm(at.x), model.map_at(inputs(name), LAYER).x, 1e-6)
