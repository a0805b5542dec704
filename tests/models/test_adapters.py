"""Adapters of families that do not use the attention registry, in variants that `zoo.py` does not have."""

from __future__ import annotations

import pytest
import torch
from transformers.models.falcon import modeling_falcon

from howsmooth import load
from howsmooth.models import sites
from howsmooth.models.maps import AttentionMap
from tests.oracles.eager import lifted, stretch
from tests.tolerances import assert_close

from .zoo import ZOO, inputs

PLAIN = dict(new_decoder_architecture=False, num_kv_heads=None)
VARIANTS = [
    ("falcon", dict(num_kv_heads=4)),
    ("falcon", dict(PLAIN, multi_query=True)),
    ("falcon", dict(PLAIN, multi_query=False, parallel_attn=False, bias=False)),
    ("falcon", dict(PLAIN, multi_query=False, alibi=True)),
    ("falcon", dict(PLAIN, multi_query=True, alibi=True, num_attention_heads=8)),
    ("bloom", dict(n_head=2)),
    ("bloom", dict(n_head=8, apply_residual_connection_post_layernorm=True)),
    ("mpnet", dict(num_attention_heads=2)),
]


@pytest.mark.parametrize("name, changes", VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_both_paths_agree_with_the_module(name, changes):
    """Against sdpa, not eager: transformers' eager Falcon adds ALiBi twice, once in the mask."""
    family, given = ZOO[name], inputs(name, 9)
    network = family.network(**changes)
    with lifted():
        model = load(network)
        base = f"{family.layers}.1."
        f, x = stretch(network, given, (base + family.attention, 0), ("output", base + family.projection, 0))
        at = model.map_at(given, 1)
        assert_close(at.x, x)
        assert_close(at(), f(x).detach())
        site = sites.find_sites(model.instrumented, model._inputs(given), [1])[1]
        inside = AttentionMap(site.require_softmax(), model.heads)
        assert_close(inside(x), at())
        assert_close(inside.head(1)(x), at.f.head(1)(x))
        assert torch.is_tensor(model.normalisation(1).gain)
        whole = model.map_at(given, map="model")
        assert_close(whole(), network(**given).last_hidden_state[0].detach(), 1e-10)


def test_eager_falcon_counts_alibi_twice(monkeypatch):
    """The reason for the comparison above. If this test fails, eager is correct again and can be the reference."""
    network, given = ZOO["falcon"].network(**PLAIN, multi_query=False, alibi=True), inputs("falcon", 9)
    expected = network(**given).last_hidden_state
    eager = type(network)._from_config(network.config, attn_implementation="eager").double().eval()
    eager.load_state_dict(network.state_dict())
    assert not torch.allclose(eager(**given).last_hidden_state, expected, rtol=1e-3)
    whole = modeling_falcon.build_alibi_tensor
    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", lambda *args, **options: whole(*args, **options) / 2)
    assert_close(eager(**given).last_hidden_state, expected)
