"""Tiny seeded models of every family, and a tokenizer for them, so that no test needs a download."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

from howsmooth.texts import default_text

VOCABULARY = 800
POSITIONS = 64


_SIZES = {
    "gpt2": (GPT2Config, dict(n_positions=POSITIONS, n_embd=24, n_layer=3, n_head=4, bos_token_id=4, eos_token_id=4)),
    "bert": (
        BertConfig,
        dict(
            max_position_embeddings=POSITIONS,
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=32,
        ),
    ),
    "llama": (
        LlamaConfig,
        dict(
            max_position_embeddings=POSITIONS,
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=10,
            intermediate_size=32,
            attention_bias=True,
        ),
    ),
}


def tiny_config(family: str, **changes):
    """Return a config with three layers, d = 24, four heads, and weights so large that softmax is far from uniform."""
    kind, sizes = _SIZES[family]
    return kind(**{"vocab_size": VOCABULARY, "initializer_range": 0.3, **sizes, **changes})


def tiny_network(family: str, dtype=torch.float32, **changes):
    """Return a seeded tiny model with random biases and norms."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModel.from_config(tiny_config(family, **changes))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_((0.0 if name.endswith("bias") else 1.0) + 0.3 * noise)
    return network.to(dtype).eval()


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    story = default_text().partition("\n\nWhat the Sounding Book Taught\n")[0]  # its words fit in the vocabulary
    words = sorted({w for w, _ in pre_tokenizers.Whitespace().pre_tokenize_str(story)})
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "<s>"]
    vocabulary = {word: i for i, word in enumerate([*specials, *words][:VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    if family == "bert":
        template, named["cls_token"], named["sep_token"] = "[CLS] $A [SEP]", "[CLS]", "[SEP]"
    else:
        template, named["bos_token"] = "<s> $A" if family == "llama" else "$A", "<s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(s, vocabulary[s]) for s in ("[CLS]", "[SEP]", "<s>")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
