"""The head of a model that was loaded without it, against transformers' own models."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPTNeoXConfig

from howsmooth import InputError, load

from .tiny import tiny_config


def scores_agree(model, whole, ids):
    with torch.no_grad():
        expected = whole(ids[None]).logits[0]
    found = model.language_head(model.map_at(ids, kind="model")())
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def whole_network(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


SMALL = dict(vocab_size=90, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
             max_position_embeddings=64, initializer_range=0.3)
CONFIGS = {
    "tied": tiny_config("llama", tie_word_embeddings=True, vocab_size=90),
    "untied": GPTNeoXConfig(tie_word_embeddings=False, **SMALL),
    "soft cap": Gemma2Config(final_logit_softcapping=0.5, head_dim=8, num_key_value_heads=2, **SMALL),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("from_file", [False, True], ids=["object", "folder"])
def test_scores_are_the_model_s_own(kind, from_file, tmp_path):
    whole, ids = whole_network(CONFIGS[kind]), torch.tensor([5, 7, 80, 3, 3])
    if from_file:
        whole.save_pretrained(tmp_path)
    scores_agree(load(str(tmp_path) if from_file else whole), whole, ids)


def test_a_base_model_in_memory_has_a_head_only_if_it_shares_the_embedding():
    tied, untied = (whole_network(CONFIGS[kind]) for kind in ("tied", "untied"))
    scores_agree(load(tied.base_model), tied, torch.tensor([5, 7, 80]))
    with pytest.raises(InputError, match="language head"):
        load(untied.base_model).language_head  # noqa: B018


def test_encoders_have_none(tiny_folders):
    with pytest.raises(InputError, match="expected a model with a language head.*a bert without one"):
        load(tiny_folders["bert"]).language_head  # noqa: B018
