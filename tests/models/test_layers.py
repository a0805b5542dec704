"""A model as a chain of maps, against the hidden states that the network itself returns."""

from __future__ import annotations

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import layer_chain, load
from tests.tolerances import FLOAT32, assert_close

IDS = torch.tensor([5, 9, 300, 41, 9, 77])


@pytest.mark.parametrize("family, normed", [("gpt2", True), ("llama", True), ("bert", False)])
def test_states_are_the_networks_own(tiny_folders, family, normed):
    model = load(tiny_folders[family], dtype=torch.float64)
    chain = layer_chain(model, IDS)
    assert len(chain.layers) == 3 and (chain.norm is not None) == normed
    with torch.no_grad():
        truth = model.network(input_ids=IDS[None], output_hidden_states=True)
    states = chain.states()
    assert len(states) == 4 + normed
    for mine, theirs in zip(states[:3], truth.hidden_states[:3], strict=True):
        assert_close(mine, theirs[0])
    # The last hidden state of transformers is that after the norm.
    assert_close(states[-1], truth.last_hidden_state[0])
    if normed:
        assert float((states[-2] - states[-1]).abs().max()) > 0.1


def test_half_precision_gives_maps_in_float32(tiny_folders):
    chain = layer_chain(load(tiny_folders["llama"], dtype=torch.bfloat16), IDS)
    assert chain.x.dtype == torch.float32
    exact = layer_chain(load(tiny_folders["llama"], dtype=torch.float32), IDS)
    assert_close(chain.states()[-1], exact.states()[-1], 0.1)  # weights were rounded to 8 bits
    assert_close(chain.x, exact.x, 0.02)


def test_single_precision(tiny_folders):
    single, double = (layer_chain(load(tiny_folders["gpt2"], dtype=d), IDS) for d in (torch.float32, torch.float64))
    assert_close(single.states()[-1], double.states()[-1], FLOAT32)


def test_a_batch_is_refused(tiny_folders):
    with pytest.raises(InputError, match="one input, got a batch"):
        layer_chain(load(tiny_folders["gpt2"]), torch.stack([IDS, IDS]))
