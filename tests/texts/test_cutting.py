"""The three rules of cutting, against slices of the tokenised text, `model.chunks`, and chunks written by hand."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from howsmooth.choices import CUTTINGS
from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import Cutter, TokenChunk, surrounding_special_tokens, tokenize
from tests.studies.conftest import TEXT, WORDS

RIVER = Corpus("river", (TEXT,))
THREE = Corpus("three", ("the river moves", "of", "old stone bridge under light"))


@pytest.fixture(scope="module")
def model(tiny):
    return load(tiny)


@pytest.fixture
def special_model(tiny, monkeypatch):
    """A separate model, whose tokenizer adds token 3 before a text and tokens 4, 5 after it."""
    monkeypatch.setattr("howsmooth.texts.cutting.surrounding_special_tokens", lambda tokenizer: ([3], [4, 5]))
    return load(tiny)


def test_another_tokenizer_has_another_cutter(tiny, tiny_bert):
    model = load(tiny)
    before = model.cutter(RIVER)
    assert model.cutter(RIVER) is before and model.cutter(RIVER, special_tokens=False) is not before
    model.tokenizer = tiny_bert
    assert model.cutter(RIVER).special_count == 2


def ids(chunks: list[TokenChunk]) -> list[list[int]]:
    return [chunk.ids.tolist() for chunk in chunks]


def test_consecutive_chunks_are_those_of_the_paper(model):
    cutter = model.cutter(RIVER)
    whole = tokenize(model.tokenizer, TEXT)
    for n in (5, 16):
        expected = [whole[s * n : (s + 1) * n] for s in range(4)]
        assert ids(cutter.chunks(n, 4)) == expected == ids(model.chunks(TEXT, n, 4))
    assert (cutter.chunk(16, 2).start, cutter.chunk(16, 2).document) == (32, None)
    assert cutter.tokens == len(whole) == 600 and cutter.count(7) == 85 == len(cutter.chunks(7))


def test_chunks_of_a_short_text(model):
    """The tokenizer is a list of words, and token numbers are positions in it."""
    text = "river under the old bridge . and light"
    cutter = Cutter(model.tokenizer, Corpus("short", (text,)), "consecutive")
    assert ids(cutter.chunks(3)) == [
        [WORDS.index(w) for w in words.split()] for words in ("river under the", "old bridge .")
    ]
    words = cutter.chunk(3, 1).words
    assert list(words) == ["old", "bridge", "."] and words[:2] == ["old", "bridge"]


def test_prefixes_are_nested(model):
    cutter = model.cutter(RIVER, "prefixes", longest=16)
    whole = tokenize(model.tokenizer, TEXT)
    long, short = cutter.chunk(16, 3), cutter.chunk(5, 3)
    assert long.ids[:5].tolist() == short.ids.tolist() == whole[48:53] and long.start == short.start == 48
    assert cutter.count(5) == cutter.count(16) == 600 // 16
    with pytest.raises(InputError, match=r"expected 640 tokens of text \(40 × 16, prefixes\) .* n = 5, got 600"):
        cutter.check(5, 40)


def test_documents_are_cut_separately(model):
    cutter = model.cutter(THREE, "documents")
    chunks = cutter.chunks(2)
    assert [(chunk.document, chunk.start) for chunk in chunks] == [(0, 0), (2, 0)] and cutter.count(2) == 2
    assert ids(chunks) == [tokenize(model.tokenizer, text) for text in ("the river", "old stone")]
    assert cutter.chunk(5, 0).ids.tolist() == tokenize(model.tokenizer, THREE.documents[2])
    with pytest.raises(InputError, match="expected 2 documents of 5 tokens or more in three for n = 5, got 1"):
        cutter.check(5, 2)


def test_other_rules_take_documents_as_one_text(model):
    assert ids(model.cutter(THREE).chunks(9)) == [tokenize(model.tokenizer, "\n".join(THREE.documents))]


@pytest.mark.parametrize("rule", CUTTINGS)
def test_special_tokens_count_among_the_n(special_model, rule):
    cutter = special_model.cutter(RIVER, rule, longest=8)
    chunk = cutter.chunk(8, 0)
    assert chunk.special.tolist() == [True, *[False] * 5, True, True] and len(chunk) == 8
    assert chunk.ids.tolist() == [3, *tokenize(special_model.tokenizer, TEXT)[:5], 4, 5]
    with pytest.raises(InputError, match=r"expected n >= 4 \(the model adds 3 special tokens\), got n = 3"):
        cutter.check(3, 1)
    bare = special_model.cutter(RIVER, rule, longest=8, special_tokens=False)
    assert bare.special_count == 0 and not bare.chunk(8, 0).special.any()


def test_consecutive_chunks_with_special_tokens_skip_no_text(special_model):
    cutter = special_model.cutter(RIVER)
    body = torch.cat([chunk.ids[~chunk.special] for chunk in cutter.chunks(8, 6)])
    assert body.tolist() == tokenize(special_model.tokenizer, TEXT)[:30] and cutter.chunk(8, 1).start == 5


def test_special_tokens_are_those_of_the_tokenizer(model, tiny_bert):
    assert surrounding_special_tokens(model.tokenizer) == ([], [])
    assert surrounding_special_tokens(tiny_bert) == ([1], [2])


@pytest.fixture(scope="module")
def tiny_bert():
    from tests.models.tiny import tiny_tokenizer

    return tiny_tokenizer("bert")


def test_a_digest_identifies_the_tokens(model):
    first, again, other = (model.cutter(RIVER).chunk(5, s) for s in (0, 0, 1))
    assert first.digest == again.digest != other.digest
    assert first.digest == hashlib.sha256(np.array(first.ids.tolist(), dtype=np.int64).tobytes()).hexdigest()[:16]


def test_a_placeholder_has_no_words():
    chunk = TokenChunk.placeholder(3)
    assert len(chunk) == 3 and not chunk.special.any() and set(chunk.words) == {"drawn"}


@pytest.mark.parametrize(
    "n, samples, words",
    [
        (0, 1, "n >= 1"),
        (True, 1, "n >= 1"),
        (2.0, 1, "n >= 1"),
        (4, 0, "samples >= 1"),
        (4, True, "samples >= 1"),
        (
            4,
            151,
            r"expected 604 tokens of text \(151 × 4, consecutive\) in river for n = 4, got 600; give a longer text",
        ),
    ],
)
def test_invalid_sizes_are_refused(model, n, samples, words):
    with pytest.raises(InputError, match=words):
        model.cutter(RIVER).check(n, samples)


def test_empty_texts_are_refused(model):
    with pytest.raises(InputError, match="expected a text, got an empty one"):
        model.cutter(Corpus("blank", (" \n",))).check(4, 1)
    with pytest.raises(InputError, match=r"expected a text .str., got bytes"):
        tokenize(model.tokenizer, b"the river")
