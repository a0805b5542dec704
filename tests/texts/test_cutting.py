"""The one cutter: three rules, against the tokens that were cut, against `model.chunks`, and by hand."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import CUTTINGS, Cutter, TokenChunk, special_frame, tokenize
from tests.studies.conftest import TEXT, WORDS

RIVER = Corpus("river", (TEXT,))
THREE = Corpus("three", ("the river moves", "of", "old stone bridge under light"))


@pytest.fixture(scope="module")
def model(tiny):
    return load(tiny)


@pytest.fixture
def framed(tiny, monkeypatch):
    """A model of its own, whose tokenizer puts token 3 before a text and tokens 4, 5 after it."""
    monkeypatch.setattr("howsmooth.texts.cutting.special_frame", lambda tokenizer: ([3], [4, 5]))
    return load(tiny)


def test_another_tokenizer_has_another_cutter(tiny, tiny_bert):
    model = load(tiny)
    before = model.cutter(RIVER)
    assert model.cutter(RIVER) is before and model.cutter(RIVER, special_tokens=False) is not before
    model.tokenizer = tiny_bert
    assert model.cutter(RIVER).framed == 2


def ids(chunks: list[TokenChunk]) -> list[list[int]]:
    return [chunk.ids.tolist() for chunk in chunks]


def test_consecutive_chunks_are_those_of_the_paper(model):
    cutter = model.cutter(RIVER)
    whole = tokenize(model.tokenizer, TEXT)
    for n in (5, 16):
        expected = [whole[s * n : (s + 1) * n] for s in range(4)]
        assert ids(cutter.chunks(n, 4)) == expected == ids(model.chunks(TEXT, n, 4))
    assert (cutter.chunk(16, 2).start, cutter.chunk(16, 2).document) == (32, None)
    assert cutter.tokens == len(whole) == 600 and cutter.fit(7) == 85 == len(cutter.chunks(7))


def test_by_hand(model):
    """The tokenizer is a word list, so that token numbers are places in it."""
    said = "river under the old bridge . and light"
    cutter = Cutter(model.tokenizer, Corpus("said", (said,)), "consecutive")
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
    assert cutter.fit(5) == cutter.fit(16) == 600 // 16
    with pytest.raises(InputError, match=r"expected 640 tokens of text \(40 × 16, prefixes\) .* n = 5, got 600"):
        cutter.check(5, 40)


def test_documents_are_cut_each_by_itself(model):
    cutter = model.cutter(THREE, "documents")
    chunks = cutter.chunks(2)
    assert [(chunk.document, chunk.start) for chunk in chunks] == [(0, 0), (2, 0)] and cutter.fit(2) == 2
    assert ids(chunks) == [tokenize(model.tokenizer, said) for said in ("the river", "old stone")]
    assert cutter.chunk(5, 0).ids.tolist() == tokenize(model.tokenizer, THREE.documents[2])
    with pytest.raises(InputError, match="expected 2 documents of 5 tokens or more in three for n = 5, got 1"):
        cutter.check(5, 2)


def test_other_rules_take_documents_as_one_text(model):
    assert ids(model.cutter(THREE).chunks(9)) == [tokenize(model.tokenizer, "\n".join(THREE.documents))]


@pytest.mark.parametrize("rule", CUTTINGS)
def test_special_tokens_count_among_the_n(framed, rule):
    cutter = framed.cutter(RIVER, rule, longest=8)
    chunk = cutter.chunk(8, 0)
    assert chunk.special.tolist() == [True, *[False] * 5, True, True] and len(chunk) == 8
    assert chunk.ids.tolist() == [3, *tokenize(framed.tokenizer, TEXT)[:5], 4, 5]
    with pytest.raises(InputError, match=r"expected n >= 4 \(the model adds 3 special tokens\), got n = 3"):
        cutter.check(3, 1)
    bare = framed.cutter(RIVER, rule, longest=8, special_tokens=False)
    assert bare.framed == 0 and not bare.chunk(8, 0).special.any()


def test_special_tokens_leave_the_text_whole(framed):
    cutter = framed.cutter(RIVER)
    body = torch.cat([chunk.ids[~chunk.special] for chunk in cutter.chunks(8, 6)])
    assert body.tolist() == tokenize(framed.tokenizer, TEXT)[:30] and cutter.chunk(8, 1).start == 5


def test_the_frame_is_what_the_tokenizer_adds(model, tiny_bert):
    assert special_frame(model.tokenizer) == ([], [])
    assert special_frame(tiny_bert) == ([1], [2])


@pytest.fixture(scope="module")
def tiny_bert():
    from tests.models.tiny import tiny_tokenizer

    return tiny_tokenizer("bert")


def test_a_digest_knows_the_same_tokens_again(model):
    first, again, other = (model.cutter(RIVER).chunk(5, s) for s in (0, 0, 1))
    assert first.digest == again.digest != other.digest
    assert first.digest == hashlib.sha256(np.array(first.ids.tolist(), dtype=np.int64).tobytes()).hexdigest()[:16]


def test_tokens_that_are_drawn_have_no_words():
    chunk = TokenChunk.drawn(3)
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
def test_what_is_refused(model, n, samples, words):
    with pytest.raises(InputError, match=words):
        model.cutter(RIVER).check(n, samples)


def test_no_text_at_all(model):
    with pytest.raises(InputError, match="expected a text, got an empty one"):
        model.cutter(Corpus("blank", (" \n",))).check(4, 1)
    with pytest.raises(InputError, match=r"expected a text .str., got bytes"):
        tokenize(model.tokenizer, b"the river")
