"""Tiny models to attack: decoders with tied heads, an encoder, and a decoder with a vocabulary of twelve tokens."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from howsmooth import load
from howsmooth.attack.tokens import EditLimits, TargetModel, TextProblem
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.texts import default_text

from ...models.tiny import tiny_network, tiny_tokenizer

TEXT = " ".join(default_text().split()[:14])
WORDS = ("[UNK]", "<s>", "the", "of", "and", "light", "stone", "river", "moves", "slowly", "under", "old")
NEVER = 1e9  # a threshold that is never reached, so that all calls are used
SMALL_TEXT = "the old river moves under the light of stone"


@pytest.fixture(scope="package", params=["llama", "gpt2", "bert"])
def target(request) -> TargetModel:
    network = tiny_network(request.param, dtype=torch.float64)
    return TargetModel(load(network, tokenizer=tiny_tokenizer(request.param)))


@pytest.fixture(scope="package", params=["llama", "gpt2"])
def decoder(request) -> TargetModel:
    network = tiny_network(request.param, dtype=torch.float64, tie_word_embeddings=True)
    return TargetModel(load(network, tokenizer=tiny_tokenizer(request.param)))


@pytest.fixture(scope="package")
def small() -> TargetModel:
    """Twelve tokens, ten of which may be written."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", bos_token="<s>")
    network = tiny_network("llama", dtype=torch.float64, vocab_size=len(WORDS), tie_word_embeddings=True)
    return TargetModel(load(network, tokenizer=tokenizer))


def problem_of(target, objective, text=SMALL_TEXT, calls=10_000, **limits) -> TextProblem:
    return TextProblem(target, whole_chunk(target.model, text), objective, EditLimits(**limits), calls)
