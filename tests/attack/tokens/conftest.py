"""Tiny victims: a decoder with a tied head, an encoder, and a decoder whose vocabulary can be searched whole."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from howsmooth import load
from howsmooth.attack.tokens import Limits, TextProblem, Victim
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.texts import default_text

from ...models.tiny import tiny_network, tiny_tokenizer

TEXT = " ".join(default_text().split()[:14])
WORDS = ("[UNK]", "<s>", "the", "of", "and", "light", "stone", "river", "moves", "slowly", "under", "old")
NEVER = 1e9  # a threshold that is never reached: the whole of the calls is spent
SMALL_TEXT = "the old river moves under the light of stone"


@pytest.fixture(scope="package", params=["llama", "gpt2", "bert"])
def victim(request) -> Victim:
    network = tiny_network(request.param, dtype=torch.float64)
    return Victim(load(network, tokenizer=tiny_tokenizer(request.param)))


@pytest.fixture(scope="package", params=["llama", "gpt2"])
def decoder(request) -> Victim:
    network = tiny_network(request.param, dtype=torch.float64, tie_word_embeddings=True)
    return Victim(load(network, tokenizer=tiny_tokenizer(request.param)))


@pytest.fixture(scope="package")
def small() -> Victim:
    """Twelve tokens, ten of which may be written."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", bos_token="<s>")
    network = tiny_network("llama", dtype=torch.float64, vocab_size=len(WORDS), tie_word_embeddings=True)
    return Victim(load(network, tokenizer=tokenizer))


def problem_of(victim, objective, text=SMALL_TEXT, calls=10_000, **limits) -> TextProblem:
    return TextProblem(victim, whole_chunk(victim.model, text), objective, Limits(**limits), calls)
