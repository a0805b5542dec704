"""Every family against its own eager code in float64: outputs, tokens, the whole Jacobian, and its norm."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from howsmooth import SelfAttention, load, local_lipschitz
from howsmooth.lipschitz.local import jacobian
from howsmooth.models import KINDS
from tests.oracles.eager import dense, eager, lifted, stretch
from tests.tolerances import assert_close, at_most

from .zoo import HEADS, ZOO, inputs

LAYER, HEAD = 1, 2


def oracle(name: str, network, kind: str, layer: int = LAYER):
    """The same map by the model's own code, and the tokens that enter it; parts are found by hand-written paths."""
    family = ZOO[name]
    shared = name == "albert"  # one module for all layers: calls count, not modules
    base = f"{family.layers}.{0 if shared else layer}"
    call = layer if shared else 0
    leaves = ("output", f"{base}.{family.projection}", call)
    enters = (f"{base}.{family.attention}", call)
    if kind == "normed":
        norm = family.norm
        below = f"{family.layers}.{0 if shared else layer - 1}"
        enters = (f"{base}.{norm}", call) if isinstance(norm, str) else (f"{below}.{norm[1]}", call - shared)
    if kind in ("block", "layer"):
        enters = (base, call)
        if family.block != "sum" or kind == "layer":
            leaves = ("output", base, call) if kind == "layer" else (family.block[0], f"{base}.{family.block[1]}", call)
    if kind == "model":
        enters = (f"{family.layers}.0", 0)
        stack = {"vision": "vision_model", "text": "text_model"}.get(family.part, family.part or "")
        leaves = ("output", stack, 0)
    given = inputs(name)
    if family.part in ("vision", "text", "encoder"):  # the other part has no input, and no say
        prefix = {"vision": "vision_model", "text": "text_model", "encoder": "encoder"}[family.part]
        network = network.get_submodule(prefix)
        enters = (enters[0].removeprefix(prefix + "."), enters[1])
        leaves = (leaves[0], leaves[1].removeprefix(prefix).removeprefix("."), leaves[2])
    f, x = stretch(network, given, enters, leaves)
    if kind == "head":  # after x is known: ALBERT's other layers have the same projection
        silence_other_heads(network.get_submodule(leaves[1]))
    return ((lambda t: t + f(t)), x) if kind == "block" and family.block == "sum" else (f, x)


def silence_other_heads(projection) -> None:
    """Zero what the other heads give to the projection, and take its bias away."""

    def keep(_module, args):
        heads = args[0].unflatten(-1, (HEADS, -1))
        return ((heads * (torch.arange(HEADS) == HEAD).to(heads)[:, None]).flatten(-2),)

    projection.register_forward_pre_hook(keep)
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


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_map_is_the_models_own(name, kind, networks):
    network = networks(name)
    with lifted():
        model = load(network, part=ZOO[name].part)
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
        # So many draws of a start would miss a confidence of 0.999 now and then.
        estimate = local_lipschitz(at.f, at.x, tol=1e-8, confidence=1 - 1e-9)
    assert at_most(abs(estimate.value - sigma), 1e-10 * sigma)
    assert at_most(estimate.lower, sigma) and at_most(sigma, estimate.upper)


@pytest.mark.parametrize("name", ZOO)
def test_as_the_model_runs_with_its_casts(name, networks):
    network = networks(name)
    f, x = oracle(name, eager(network), "attention")
    sigma = float(torch.linalg.matrix_norm(dense(f, x), 2))
    at = load(network, part=ZOO[name].part).map_at(inputs(name), LAYER)
    found = local_lipschitz(at.f, at.x, tol=1e-6, confidence=1 - 1e-9, strict=False)
    assert found.value == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3_text", "t5", "phi"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_intervals_hold_the_map_with_and_without_its_casts(name, dtype):
    """What was captured (masks, rotary tables) is exact; what is computed in float32 on the way is rounded."""
    network = ZOO[name].network(dtype)
    model = load(network, part=ZOO[name].part)
    for kind in ("attention", "normed", "layer"):
        at = model.map_at(inputs(name), LAYER, kind)
        found = local_lipschitz(at.f, at.x)
        exact = at.f.converted(dtype=torch.float64) if isinstance(at.f, SelfAttention) else copy.deepcopy(at.f).double()
        x = at.x.double()
        with lifted():
            truths = [dense(exact, x)]
        if dtype == torch.float64:  # in the others no cast is to a coarser dtype than theirs
            truths += [dense(at.f, x)]
        for truth in truths:
            assert at_most(found.lower, float(torch.linalg.matrix_norm(truth, 2)), found.upper)


@pytest.mark.parametrize("name", ZOO)
def test_heads_add_up_and_layers_differ(name, networks):
    model = load(networks(name), part=ZOO[name].part)
    given = inputs(name)
    whole = model.map_at(given, LAYER)
    parts = [model.map_at(given, LAYER, "head", head=head)() for head in range(model.heads)]
    bias = whole() - sum(parts)
    assert_close(bias, bias[:1].expand_as(bias), 1e-6)  # one vector for all tokens: the projection's
    assert all(not torch.allclose(a, b, rtol=0.1) for a, b in itertools.pairwise(parts))
    if name != "albert":
        assert not torch.allclose(model.map_at(given, 0).f(whole.x), whole(), rtol=0.1)


@pytest.mark.parametrize("name", ["modernbert", "mistral", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("layer", [0, 1])
def test_windows_differ_by_layer_and_are_the_models_own(name, layer, networks):
    """Long enough for the window to cut; full attention in place of a window would be seen."""
    given = inputs(name, 9)
    with lifted():
        at = load(networks(name)).map_at(given, layer)
        family, base = ZOO[name], f"{ZOO[name].layers}.{layer}."
        ends = (base + family.attention, 0), ("output", base + family.projection, 0)
        f, x = stretch(eager(networks(name)), given, *ends)
        assert_close(at(), f(x).detach())
    moved = at.x.clone()
    moved[0] += 1
    blind = torch.equal(at.f(moved)[-1], at()[-1])
    full = {"modernbert": 0, "gemma2": 1}
    assert blind == (full.get(name) != layer)


@pytest.mark.parametrize("name", ["bert", "gemma2", "clip_vision"])
def test_half_precision_is_measured_in_single(name, networks):
    network = ZOO[name].network(torch.bfloat16)
    model = load(network, part=ZOO[name].part)
    for kind in ("attention", "block"):
        at = model.map_at(inputs(name), LAYER, kind)
        found = local_lipschitz(at.f, at.x)
        want = load(ZOO[name].network(torch.float32), part=ZOO[name].part).map_at(inputs(name), LAYER, kind)
        assert abs(found.value / local_lipschitz(want.f, want.x).value - 1) < 0.2
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}


def test_a_network_that_was_given_is_left_as_it_was(networks):
    network = networks("gemma2")
    before, kept = network.config.to_dict(), network.config._attn_implementation
    grads = [p.requires_grad for p in network.parameters()]
    model = load(network)
    at = model.map_at(inputs("gemma2"), 1, "layer")
    local_lipschitz(at.f, at.x)
    assert network.config.to_dict() == before and network.config._attn_implementation == kept
    assert [p.requires_grad for p in network.parameters()] == grads
    assert all(p.grad is None for p in network.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.twin.modules())
    pairs = zip(network.parameters(), model.twin.parameters(), strict=True)
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)  # no second copy of the weights


def test_generic_normalisation(networks):
    """LayerNorm, RMSNorm and Gemma's, which stores its gain less one, read by what they do."""
    for name, centred in (("opt", True), ("qwen3", False), ("gemma3_text", False), ("vit", True), ("t5", False)):
        model = load(networks(name), part=ZOO[name].part)
        at = model.map_at(inputs(name), LAYER, "normed")
        norm = model.normalisation(LAYER)
        assert norm.centred == centred
        assert_close(norm(at.x), model.map_at(inputs(name), LAYER).x, 1e-6)
