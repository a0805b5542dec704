"""A long text is tokenised as far as its tokens are needed, with the same tokens as if all of it were."""

from __future__ import annotations

import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.texts import cutting, default_text
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import Cutter, first_tokens, tokenize
from tests.seeds import seeds

SIZE = 600  # of the vocabularies


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer, self.characters = tokenizer, 0

    def __call__(self, text, **options):
        self.characters += len(text)
        return self.tokenizer(text, **options)


def trained(kind: str) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the default text."""
    model, trainer = {
        "bpe": (models.BPE(), trainers.BpeTrainer(vocab_size=SIZE, show_progress=False)),
        "wordpiece": (
            models.WordPiece(unk_token="[UNK]"),
            trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=["[UNK]"], show_progress=False),
        ),
        "unigram": (
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=SIZE, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
        ),
    }[kind.split()[0]]
    tokenizer = Tokenizer(model)
    if "byte-level" in kind:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif "metaspace" in kind:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "wordpiece":
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if "undivided" in kind:  # trained on words, applied to the whole text at once
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(default_text().splitlines(), trainer)
    if "undivided" in kind:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


KINDS = ("bpe byte-level", "bpe metaspace", "bpe undivided", "wordpiece", "unigram metaspace", "unigram undivided")


@pytest.fixture(scope="module", params=[*KINDS, "minilm"])
def tokenizer(request):
    return load("minilm").tokenizer if request.param == "minilm" else trained(request.param)


def scattered(seed: int) -> str:
    """Return a text whose cuts may fall into long words, white space, accents, emoji and scripts without spaces."""
    draw = random.Random(seed)
    pieces = (
        *default_text().split(),
        " " * 40,
        "\n\n\n",
        "\t \r\n",
        "e\u0301\u0302" * 3,
        "👩\u200d👩\u200d👧\u200d👦",
        "自然言語処理" * 9,
        "x" * 300,
        "12345678901234567890",
        "...!?",
        "ab-" * 40,
        "[UNK]<unk>",
    )
    return "".join(draw.choice(pieces) + draw.choice(("", " ", " ", "\n")) for _ in range(3000))


@pytest.mark.random
@pytest.mark.parametrize("text", [default_text(), *map(scattered, seeds(3))], ids=["default", "0", "1", "2"])
def test_the_tokens_are_those_of_the_whole_text(tokenizer, text):
    whole = tokenize(tokenizer, text)
    for count in (1, 2, 3, 5, 17, 100, 333, 600, len(whole) - 1, len(whole), len(whole) + 5):
        assert first_tokens(tokenizer, text, count) == whole[:count]
    assert first_tokens(tokenizer, text, None) == whole
    # Cuts in every place: texts that begin at other characters.
    for start in range(0, 400, 7):
        assert first_tokens(tokenizer, text[start:], 9) == tokenize(tokenizer, text[start : start + 20_000])[:9]


def test_a_long_text_is_tokenised_only_at_its_beginning(tokenizer):
    text = default_text() * 80  # 2 million characters
    counting = Counting(tokenizer)
    ids = first_tokens(counting, text, 4)
    assert ids == tokenize(tokenizer, text[:2000])[:4] and counting.characters < 2000


@pytest.mark.parametrize("rule, wanted", [("consecutive", 40), ("prefixes", 80), ("documents", 10)])
def test_chunks_tokenise_as_far_as_they_reach(rule, wanted):
    tokenizer = load("minilm").tokenizer
    documents = (default_text(), "It rained.", *(default_text(),) * 4)
    counting = Counting(tokenizer)
    cutter = Cutter(counting, Corpus("long", documents), rule, longest=20, special_tokens=False)
    made = [chunk.ids.tolist() for chunk in cutter.chunks(10, 4)]
    assert counting.characters < (3 if rule == "documents" else 1) * 4 * 16 * (wanted + 64)
    seen = counting.characters
    assert [chunk.ids.tolist() for chunk in cutter.chunks(5, 2)] and counting.characters == seen  # known already
    whole = Cutter(tokenizer, cutter.corpus, rule, longest=20, special_tokens=False)
    assert whole.tokens > 20_000
    assert [chunk.ids.tolist() for chunk in whole.chunks(10, 4)] == made


def test_a_tokenizer_that_cannot_be_cut():
    """Its first tokens depend on the length of the text."""

    def tokenizer(text, **_):
        return {"input_ids": [len(text)] * len(text)}

    text = default_text()
    assert first_tokens(tokenizer, text, 5) == tokenize(tokenizer, text)[:5]


def test_a_text_that_begins_with_much_white_space(tokenizer):
    text = " \n" * 5000 + default_text()
    assert first_tokens(tokenizer, text, 5) == tokenize(tokenizer, text)[:5]


def test_words_without_end(tokenizer, monkeypatch):
    """Where tokens can be had from its beginning, a word may be long; the tokenizer is never given a very long one."""
    monkeypatch.setattr(cutting, "LONGEST_WORD", 20_000)
    counting = Counting(tokenizer)
    try:
        ids = first_tokens(counting, "ab" * 500_000, 4)
    except InputError as error:
        assert "expected words of at most 20,000 characters" in str(error) and "\n" not in str(error)
    else:
        assert ids == tokenize(tokenizer, "ab" * 5_000)[:4]
    assert counting.characters < 50_000
    with pytest.raises(InputError, match="words of at most 20,000 characters"):
        tokenize(counting, "a " * 100 + "b" * 20_001)


@pytest.mark.parametrize("piece", ["ab" * 4_500 + " ", " \n" * 4_500])
def test_a_text_with_hardly_any_tokens(piece, monkeypatch):
    """No word is too long by itself, and yet a few tokens would need most of the text."""
    monkeypatch.setattr(cutting, "MOST_CHARACTERS", 500)
    counting = Counting(load("minilm").tokenizer)
    with pytest.raises(InputError, match="expected a token in 500 characters of the text, got") as refusal:
        first_tokens(counting, piece * 1000, 4)
    assert "\n" not in str(refusal.value) and counting.characters < 4 * 500 * (4 + 64)
    words = "river " * 100
    assert len(first_tokens(counting, (words + piece) * 1000, 4)) == 4
