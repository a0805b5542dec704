"""Pieces against the tokens they were cut from."""

from __future__ import annotations

import pytest

from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.studies.cutting import Cutter
from howsmooth.texts.corpora import Corpus

from .conftest import TEXT


@pytest.fixture(scope="module")
def model(tiny):
    return load(tiny)


def test_consecutive_pieces_are_those_of_the_paper(model):
    cutter = Cutter(model, Corpus("river", (TEXT,)), "consecutive", 16, False)
    for n in (5, 16):
        expected = model.chunks(TEXT, n, 4, special_tokens=False)
        assert [list(cutter.piece(n, s).ids) for s in range(4)] == [chunk.ids.tolist() for chunk in expected]
    assert cutter.piece(16, 2).start == 32


def test_prefixes_are_nested(model):
    cutter = Cutter(model, Corpus("river", (TEXT,)), "prefixes", 16, False)
    long, short = cutter.piece(16, 3), cutter.piece(5, 3)
    assert long.ids[:5] == short.ids and long.start == short.start == 48
    with pytest.raises(InputError, match="expected 640 tokens of text .40 pieces of 16, prefixes.*got 600"):
        cutter.check(5, 40)


def test_documents_are_cut_each_by_itself(model):
    corpus = Corpus("three", ("the river moves", "of", "old stone bridge under light"))
    cutter = Cutter(model, corpus, "documents", 5, False)
    assert [cutter.piece(2, s).document for s in range(2)] == [0, 2]
    assert cutter.piece(2, 1).ids == tuple(model.tokenize("old stone"))
    assert cutter.piece(5, 0).ids == tuple(model.tokenize(corpus.documents[2]))
    with pytest.raises(InputError, match="expected 2 documents of 5 tokens or more .* three for n = 5, got 1"):
        cutter.check(5, 2)


def test_special_tokens_count(model, monkeypatch):
    monkeypatch.setattr("howsmooth.studies.cutting.special_frame", lambda tokenizer: ([3], [4]))
    cutter = Cutter(model, Corpus("river", (TEXT,)), "consecutive", 8, True)
    piece = cutter.piece(8, 1)
    assert len(piece.ids) == 8 and piece.special == (True, *[False] * 6, True) and piece.start == 6
    assert piece.ids[1:7] == tuple(model.tokenize(TEXT)[6:12])
    with pytest.raises(InputError, match="at least 3"):
        cutter.check(2, 1)
