"""Pretrained models: constants of the instrumented network, checked by products of the model's own eager code."""

from __future__ import annotations

import pytest
import torch

from howsmooth import load, local_lipschitz
from howsmooth.errors import InputError
from howsmooth.models import sites
from howsmooth.models.maps import AttentionMap
from howsmooth.texts import default_text
from tests.oracles.eager import eager, stretch
from tests.tolerances import assert_close, at_most

BERT = {
    "attention": ("attention.self", "output", "attention.output.dense"),
    "block": ("", "output", "attention"),
    "layer": ("", "output", ""),
}
MPNET = {**BERT, "attention": ("attention.attn", "output", "attention.attn.o")}
LLAMA = {
    "attention": ("self_attn", "output", "self_attn.o_proj"),
    "normed": ("input_layernorm", "output", "self_attn.o_proj"),
    "block": ("", "input", "post_attention_layernorm"),
    "layer": ("", "output", ""),
}


def embedded(name: str, **options):
    try:
        return load(name, **options)
    except InputError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(f"needs the model {name}, which is not installed: {error}")


def assert_eager_agrees(model, chunk, layers: str, layer: int, ends: dict, tol: float):
    """Assert that σ, u and v of our map are a singular triplet of the eager map, up to the certified interval."""
    plain, ids = eager(model.network), {"input_ids": chunk.ids[None]}
    for kind, (entry, side, exit) in ends.items():
        at = model.map_at(chunk, layer, kind)
        base = f"{layers}.{layer}"
        f, x = stretch(plain, ids, (f"{base}.{entry}".rstrip("."), 0), (side, f"{base}.{exit}".rstrip("."), 0))
        assert_close(at.x, x, tol)
        assert_close(at(), f(x).detach(), tol)
        found = local_lipschitz(at.f, at.x, tol=1e-4)
        y, back = torch.func.vjp(f, x)
        (gradient,) = back(found.response.to(y))
        # Jᵀu = σ v by eager reverse mode checks both vectors and the value.
        assert at_most((gradient - found.value * found.direction).norm(), max(10 * tol, 1.1e-2) * found.value), kind
        assert at_most(abs(float((gradient * found.direction).sum()) - found.value), 10 * tol * found.value), kind


def test_minilm():
    model = embedded("minilm", dtype=torch.float64)
    chunk = model.chunks(default_text(), 24, 1)[0]
    assert_eager_agrees(model, chunk, "encoder.layer", 3, BERT, 1e-10)


def test_both_paths_agree_on_minilm():
    model = embedded("minilm")
    chunk = model.chunks(default_text(), 48, 1)[0]
    at = model.map_at(chunk, 2)
    site = sites.find_sites(model.instrumented, model._inputs(chunk), [2])[2]
    generic = AttentionMap(site.require_softmax(), model.heads)
    assert abs(local_lipschitz(generic, at.x).value / local_lipschitz(at.f, at.x).value - 1) < 1e-5


def test_smollm2():
    model = embedded("smollm2", dtype=torch.float64)
    assert_eager_agrees(model, model.chunks(default_text(), 24, 1)[0], "layers", 13, LLAMA, 1e-5)


@pytest.mark.slow
def test_mpnet():
    model = embedded("mpnet", dtype=torch.float64)
    assert (model.layers, model.width, model.heads, model.positions) == (12, 768, 12, 512)
    assert_eager_agrees(model, model.chunks(default_text(), 24, 1)[0], "encoder.layer", 6, MPNET, 1e-10)
