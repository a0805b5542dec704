"""A tiny checkpoint and text, small enough that a task takes milliseconds."""

from __future__ import annotations

import pytest

WORDS = ("the", "of", "and", "light", "stone", "river", "moves", "slowly", "under", "old", "bridge", ".")
TEXT = " ".join(WORDS[(7 * i + i * i // 3) % len(WORDS)] for i in range(600))


def save_tiny(folder, seed: int = 0) -> str:
    """Save a random GPT-2 with two layers and 32 positions to `folder`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate((*WORDS, "[UNK]"))}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        GPT2Model(
            GPT2Config(vocab_size=len(WORDS) + 1, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
        ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def declared(tiny, tmp_path) -> dict:
    """A study of 2 layers × 3 lengths × 3 samples, in this process."""
    text = tmp_path / "river.txt"
    text.write_text(TEXT)
    return {
        "name": "tiny",
        "models": [tiny],
        "texts": [str(text)],
        "lengths": [6, 8, 12],
        "samples": 3,
        "engine": {"workers": 0},
    }
