"""The table of families agrees with the tests and with the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from howsmooth import SelfAttention, load
from howsmooth.errors import InputError
from howsmooth.models import compatibility
from howsmooth.models.families import FAMILIES
from tests.tolerances import FLOAT32, assert_close, close

from .zoo import ZOO, D, inputs, tiny

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_page_shows_the_table():
    """To update the page, put the output of `howsmooth models --markdown` between the two comments."""
    shown = re.search(r"<!-- families: .*? -->\n(.*?)<!-- end of families -->", PAGE.read_text(), re.S)
    assert shown and shown[1].strip() == compatibility.markdown().strip()


def test_every_family_of_the_table_is_tested():
    assert [family.key for family in compatibility.FAMILIES] == list(ZOO)
    for family in compatibility.FAMILIES:
        tiny_one = ZOO[family.key]
        assert family.part == tiny_one.part
        assert (family.how == "formula") == (tiny_one.model_type in FAMILIES)
        assert (family.how == "refused") == ("attention" in tiny_one.refused)


@pytest.mark.parametrize("family", compatibility.FAMILIES, ids=lambda family: family.key)
def test_sizes_and_modality(family):
    known, n, layer = ZOO[family.key], ZOO[family.key].tokens, 1
    model = load(known.network(torch.float32), part=family.part)
    assert (model.modality, model.layers, model.heads, model.width) == (family.modality, *known.shape)
    assert (model.positions is None) == (family.modality != "text")
    given = inputs(family.key)
    if family.how == "refused":
        with pytest.raises(InputError, match=r"in layer 1 of .*; it has the maps layer, model"):
            model.map_at(given, layer)
    else:
        at = model.map_at(given, layer)
        how = "attend" if getattr(at.f, "attends", False) else "autodiff"
        assert family.how == ("formula" if isinstance(at.f, SelfAttention) else how)
        assert model.activations(given, [layer])[layer].shape[0] == 1 and at.x.shape[1] == D
    # A map for a given length, or for any image or sound, is the same as that at the input.
    f = model.map(layer, "layer", n=n if family.modality == "text" else None)
    at = model.map_at(given, layer, "layer")
    if family.modality == "text":
        assert at.x.shape == (n, D)
    if family.key != "whisper_decoder":  # its layer depends on the sound
        assert torch.allclose(f(at.x), at(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("key", ["roberta", "mpnet"])
def test_positions_after_padding(key):
    """The position table has 40 rows, of which padding takes two: at most 38 tokens."""
    model = load(ZOO[key].network(torch.float32))
    assert model.positions == 38
    assert model.map_at(torch.full((38,), 30), 0).x.shape == (38, 16)
    with pytest.raises(InputError, match="at most 38 tokens"):
        model.map_at(torch.full((39,), 30), 0)


def test_invalid_parts_and_kinds_and_cross_attention_are_refused():
    t5, clip, bert = ZOO["t5"].network(), ZOO["clip_text"].network(), ZOO["bert"].network()
    for network, part, match in (
        (t5, "cross", r"part='encoder' or part='decoder' \(--part encoder or decoder\), got 'cross'; cross attention"),
        (clip, None, r"part='vision' or part='text' \(--part vision or text\), got None"),
        (bert, "encoder", "no part"),
    ):
        with pytest.raises(InputError, match=match):
            load(network, part=part)
    model = load(bert)
    for arguments, options, match in (
        ((0, "mpl"), {}, "a map among attention, head, .* did you mean 'mlp'"),
        ((0, "head"), {}, 'head= with map "head"'),
        ((0, "block"), {"head": 1}, 'head= with map "head"'),
        ((None, "layer"), {}, "a layer for every map"),
        ((0, "model"), {}, "a layer for every map"),
        ((0, "layer"), {}, r"model\.map\(layer, map, n=\.\.\.\)"),
        ((0, "head"), {"head": 4}, "a head from 0 to 3, got 4"),
        ((0, "block"), {"n": 41}, "a length from 1 to 40"),
    ):
        with pytest.raises(InputError, match=match):
            model.map(*arguments, **options)
    with pytest.raises(InputError, match="got a batch"):
        model.map_at(torch.full((2, 5), 9), 0)
    albert = load(ZOO["albert"].network())
    with pytest.raises(InputError, match=r"normed: expected a normalisation .* in layer 0 of AlbertModel"):
        albert.map(0, "normed", n=5)
    with pytest.raises(InputError, match="a head from 0 to 3, got 7"):
        albert.map(0, "head", n=5, head=7)


def test_the_decoder_of_t5():
    model = load(tiny("t5", ZOO["t5"].sizes, torch.float32), part="decoder")
    at = model.map_at(torch.arange(10, 16), 1, "layer")
    assert at.x.shape == (6, 16) and torch.isfinite(at()).all()
    moved = at.x.clone()
    moved[-1] += 1
    assert close(at.f(moved)[:-1], at()[:-1], FLOAT32)  # causal


def test_a_generic_family_has_the_interface_that_studies_need():
    """attention(layer, n), its heads, and the activations of a batch."""
    model = load(ZOO["opt"].network())
    ids = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
    f, x = model.attention(1, 7), model.activations(ids, [0, 1])
    assert x[1].shape == (2, 7, 16)
    assert_close(model.activations(ids[1], [1])[1], x[1][1])
    assert torch.allclose(sum(f.head(h)(x[1][0]) for h in range(4)) + f.projection.bias, f(x[1][0]))
    with pytest.raises(InputError, match="expected the number of tokens"):
        model.attention(1)
