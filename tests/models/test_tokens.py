"""Chunks of text: lengths, special tokens, words, and activations of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.texts import default_text
from tests.tolerances import FLOAT32, close

SPECIALS = {"gpt2": 0, "bert": 2, "llama": 1}


@pytest.fixture(scope="module", params=sorted(SPECIALS))
def model(request, tiny_folders):
    return load(tiny_folders[request.param], dtype=torch.float64)


def test_the_shipped_text():
    text = default_text()
    assert 4000 <= len(text.split()) <= 4600 and text.isascii()


def test_chunks_are_consecutive_and_have_special_tokens(model):
    specials = SPECIALS[model.family]
    chunks = model.chunks(default_text(), 20, 5)
    assert [len(c) for c in chunks] == [20] * 5
    assert all(len(c.words) == 20 and c.special.sum() == specials for c in chunks)
    body = torch.cat([c.ids[~c.special] for c in chunks]).tolist()
    assert body == model.tokenize(default_text())[: len(body)]
    full = model.tokenizer("In the spring")["input_ids"]
    (chunk,) = model.chunks("In the spring", 3 + specials, 1)
    assert chunk.ids.tolist() == full
    assert [w for w, s in zip(chunk.words, chunk.special, strict=True) if not s] == ["In", "the", "spring"]


def test_chunks_without_special_tokens(model):
    chunks = model.chunks(default_text(), 7, special_tokens=False)
    assert len(chunks) == len(model.tokenize(default_text())) // 7
    assert not any(c.special.any() for c in chunks)


def test_inputs_are_the_activations_of_the_first_chunk(model):
    chunks = model.chunks(default_text(), 16, 3)
    together = model.activations(chunks, [0, 2])
    assert together[0].shape == together[2].shape == (3, 16, 24)
    for i, chunk in enumerate(chunks):
        alone = model.activations(chunk, [2])[2]
        assert torch.allclose(alone, together[2][i], rtol=1e-10, atol=1e-12)
    assert close(model.inputs(default_text(), 2, 16), model.activations(chunks[0], [2])[2], FLOAT32)
    plain = chunks[1].ids.tolist()
    assert close(model.activations(plain, [1])[1], model.activations(chunks[1], [1])[1], FLOAT32)
    without = model.inputs(default_text(), 0, 16, special_tokens=False)
    assert without.shape == (16, 24)


def test_a_forward_pass_that_was_stopped_does_not_change_the_network(model):
    ids = torch.arange(10, 20)
    before = model.network(input_ids=ids[None]).last_hidden_state
    model.activations(ids, [0])
    assert close(model.network(input_ids=ids[None]).last_hidden_state, before, FLOAT32)
    assert model.activations(ids, []) == {}


def test_a_long_text_is_truncated_with_a_warning(model):
    with pytest.warns(UserWarning, match="64 positions"):
        x = model.inputs(default_text(), 1)
    assert close(x, model.inputs(default_text(), 1, 64), FLOAT32)
    short = model.inputs("In the spring", 1)
    assert short.shape == (3 + SPECIALS[model.family], 24)


def test_numpy_integers_are_layer_numbers(model):
    layer = np.int64(1)
    assert close(model.inputs("In the spring", layer), model.inputs("In the spring", 1), FLOAT32)
    assert torch.equal(model.attention(layer).wq, model.attention(1).wq)  # exact: the same weights
    (key,) = model.activations([7, 8], np.array([1]))
    assert type(key) is int


def test_inputs_of_token_ids(model):
    (chunk,) = model.chunks(default_text(), 12, 1)
    expected = model.activations(chunk, [1])[1]
    for ids in (chunk, chunk.ids, chunk.ids.tolist()):
        assert close(model.inputs(ids, 1), expected, FLOAT32)
    assert close(model.inputs(chunk.ids, 1, 5), model.activations(chunk.ids[:5], [1])[1], FLOAT32)
    for wrong, n in ((chunk.ids[None], None), (chunk.ids, 13), (chunk.ids, 0)):
        with pytest.raises(InputError, match=r"expected token numbers \(n,\)"):
            model.inputs(wrong, 1, n)


@pytest.mark.parametrize("layer", [-4, 3, 1.0, "0", True, np.int64(3), np.float64(1), np.True_, None])
def test_layers_out_of_range(model, layer):
    for call in (model.attention, lambda i: model.inputs("In the", i), lambda i: model.activations([7], [i])):
        with pytest.raises(InputError, match="layer from 0 to 2"):
            call(layer)


def test_invalid_texts_and_lengths_are_refused(model):
    text = default_text()
    for empty in ("", "  \n"):
        with pytest.raises(InputError, match="empty"):
            model.inputs(empty, 0)
    with pytest.raises(InputError, match="expected a text"):
        model.tokenize(b"bytes")
    for n in (0, -3, 2.5):
        with pytest.raises(InputError, match="n >= 1"):
            model.inputs(text, 0, n)
    with pytest.raises(InputError, match="64 positions"):
        model.chunks(text, 65, 1)
    with pytest.raises(InputError, match=r"tokens of text .* for n = 10.*, got 3; give a longer text"):
        model.inputs("In the spring", 0, 10)
    with pytest.raises(InputError, match="fewer samples"):
        model.chunks(text, 60, 1000)
    with pytest.raises(InputError, match="samples >= 1"):
        model.chunks(text, 10, 0)
    if SPECIALS[model.family]:
        with pytest.raises(InputError, match="special_tokens=False; --special-tokens none"):
            model.chunks(text, SPECIALS[model.family], 1)
    for n in (0, 65):
        with pytest.raises(InputError, match="1 to 64"):
            model.attention(0, n)


def test_invalid_token_numbers_are_refused(model):
    chunks = [*model.chunks(default_text(), 8, 1), *model.chunks(default_text(), 9, 1)]
    for bad, match in [
        (chunks, "one length"),
        ([], "shape"),
        ([1.5], "shape"),
        ([[[1]]], "shape"),
        ([-1], "from 0 to 799"),
        ([800], "from 0 to 799"),
        (list(range(65)), "at most 64"),
        ("text", "token numbers"),
        ([[1, 2], [3]], "token numbers"),
    ]:
        with pytest.raises(InputError, match=match):
            model.activations(bad, [0])
