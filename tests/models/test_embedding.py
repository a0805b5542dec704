"""The language head against the logits of transformers; models without one are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, BertLMHeadModel, Gemma2Config

from howsmooth import InputError, load

from ..tolerances import FLOAT32, assert_close
from .tiny import tiny_config, tiny_network, tiny_tokenizer

IDS = torch.tensor([5, 9, 300, 41, 9, 77])


def whole(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(config).eval()


def logits(model):
    at = model.map_at(IDS, map="model")
    with torch.no_grad():
        return model.language_head(at.f(at.x))


@torch.no_grad()
@pytest.mark.parametrize("family, tied", [("gpt2", True), ("llama", True), ("llama", False)])
def test_a_folder_gives_the_logits_of_transformers(family, tied, tmp_path):
    network = whole(tiny_config(family, tie_word_embeddings=tied))
    network.save_pretrained(tmp_path)
    assert_close(logits(load(tmp_path)), network(IDS[None]).logits[0], FLOAT32)


@torch.no_grad()
def test_a_cap_on_logits_is_part_of_the_head():
    config = Gemma2Config(
        vocab_size=800,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=6,
        num_key_value_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
        final_logit_softcapping=2.0,
    )
    network = whole(config)
    truth = network(IDS[None]).logits[0]
    assert 1.5 < float(truth.abs().max()) <= 2.0  # the cap has an effect
    assert_close(logits(load(network)), truth, FLOAT32)


def test_a_batch_has_the_logits_of_its_rows():
    model = load(whole(tiny_config("llama", tie_word_embeddings=True)))
    hidden = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(0))
    assert_close(model.language_head(hidden)[1, 2], model.language_head(hidden[1, 2]), FLOAT32)


@pytest.mark.parametrize("untied", [False, True])
def test_refused_without_a_head(untied, tmp_path):
    """An encoder, and a decoder whose checkpoint has no head."""
    network = tiny_network("llama", tie_word_embeddings=False) if untied else tiny_network("bert")
    network.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"language head.*(no weights|both directions)"):
        _ = load(tmp_path).language_head


def test_refused_if_the_model_is_not_causal(tmp_path):
    """A BERT may have all weights of a head, but its tokens depend on later ones."""
    BertLMHeadModel(tiny_config("bert")).eval().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="both directions"):
        _ = load(tmp_path).language_head
