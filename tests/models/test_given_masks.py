"""Maps of networks that are given more than tokens: a mask with zeros, positions of their own."""

import pytest
import torch

from howsmooth import SelfAttention, load, local_lipschitz
from tests.oracles.eager import dense, eager, stretch
from tests.tolerances import assert_close

from .test_zoo import LAYER
from .zoo import ZOO, inputs

HIDDEN = {"end": [1, 1, 1, 0, 0], "middle": [1, 0, 1, 1, 0]}


def assert_measured(name: str, given: dict) -> None:
    """Assert that map and tokens of a layer are those of the model's own eager code on the same input."""
    family, network = ZOO[name], ZOO[name].network()
    base = f"{family.layers}.{LAYER}"
    f, x = stretch(
        eager(network), given, (f"{base}.{family.attention}", 0), ("output", f"{base}.{family.projection}", 0)
    )
    model = load(network)
    at = model.map_at(given, LAYER)
    assert_close(at.x, x, 1e-6)
    assert_close(at(), f(x).detach(), 1e-6)
    found = local_lipschitz(at.f, at.x, tol=1e-5, confidence=1 - 1e-9, strict=False)
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-4)
    assert_close(model.activations(given, [LAYER])[LAYER][0], x, 1e-6)
    heads = sum(model.map_at(given, LAYER, "head", head=h)() for h in range(model.heads))
    bias = getattr(network.get_submodule(f"{base}.{family.projection}"), "bias", None)
    assert_close(heads if bias is None else heads + bias.detach(), at(), 1e-6)


@pytest.mark.parametrize("where", HIDDEN)
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "mistral"])
def test_a_mask_with_zeros_is_part_of_the_map(name, where):
    given = {**inputs(name), "attention_mask": torch.tensor([HIDDEN[where]])}
    assert_measured(name, given)
    plain = load(ZOO[name].network()).map_at(inputs(name), LAYER)
    assert (load(ZOO[name].network()).map_at(given, LAYER).f(plain.x) - plain()).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_given_positions_are_part_of_the_map(name):
    """Positions that jump are packed documents to transformers, where there is no cache."""
    given = {**inputs(name), "position_ids": torch.tensor([[0, 1, 2, 0, 1]]), "use_cache": False}
    assert_measured(name, given)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_a_mask_of_ones_leaves_the_map_of_the_adapter(name):
    given = {**inputs(name), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    assert_measured(name, given)
    assert isinstance(load(ZOO[name].network()).map_at(given, LAYER).f, SelfAttention)
