"""The measuring loop on a small random model: order, one forward pass per chunk, restriction, memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import load
from howsmooth.studies import Settings, Text, measure, memory_plan, resolve
from tests.tolerances import FLOAT32, at_most, close

TEXT = Text("river", "the old river moves slowly under the stone bridge and the light moves with it . " * 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    words = ["[UNK]", "[CLS]", "[SEP]", *sorted(set(TEXT.content.split()))]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(1)
    BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=12,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=16,
            max_position_embeddings=40,
        )
    ).save_pretrained(folder)
    return load(str(folder), dtype=torch.float64)


def test_order_and_count(model):
    settings = resolve(model, TEXT, layers=(2, 0), heads=(1,), lengths=(10, 6), samples=2)
    records = list(measure(model, TEXT, settings))
    assert len(records) == settings.estimates == 8
    assert [(r["n"], r["sample"], r["layer"], r["head"]) for r in records] == [
        (n, sample, layer, 1) for n, sample, layer in itertools.product((10, 6), (0, 1), (2, 0))
    ]


def test_one_forward_pass_per_chunk(model, monkeypatch):
    settings = resolve(model, TEXT, lengths=(6, 10), samples=3)
    passes = []
    through = model.activations
    monkeypatch.setattr(
        model, "activations", lambda *arguments: passes.append(arguments) or through(*arguments)
    )
    assert len(list(measure(model, TEXT, settings))) == 18
    assert len(passes) == 6


def test_special_tokens_can_be_held_fixed(model):
    """With the specials held fixed the constant is that of the Jacobian's other columns."""
    settings = resolve(model, TEXT, layers=(1,), lengths=(8,), samples=1, tokens="no-special", tol=1e-5)
    (record,) = measure(model, TEXT, settings)
    (chunk,) = model.chunks(TEXT.content, 8, 1)
    assert chunk.special.tolist() == [True, *[False] * 6, True]
    x = model.activations(chunk, [1])[1]
    jacobian = model.attention(1).jacobian(x).dense().reshape(8 * 12, 8, 12)
    truth = torch.linalg.svdvals(jacobian[:, 1:7].reshape(8 * 12, 6 * 12))[0].item()
    assert at_most(record["lower"], truth, tol=1e-10) and at_most(truth, record["upper"], tol=1e-10)
    assert record["value"] == pytest.approx(truth, rel=1e-5)
    assert {top["position"] for top in record["top_tokens"]} <= set(range(1, 7))


def test_record_repeats_what_the_estimate_says(model):
    settings = resolve(model, TEXT, layers=(0,), lengths=(8,), samples=1, seed=3)
    (record,) = measure(model, TEXT, settings)
    (chunk,) = model.chunks(TEXT.content, 8, 1)
    estimate = local_lipschitz(model.attention(0), model.activations(chunk, [0])[0], seed=3)
    assert close(record["value"], estimate.value, FLOAT32) and record["steps"] == estimate.steps
    best = record["top_tokens"][0]
    assert (
        best["position"] == int(estimate.shares.argmax()) and best["token"] == chunk.words[best["position"]]
    )
    assert best["share"] == pytest.approx(float(estimate.shares.max()))


def test_no_special_tokens_are_added_when_not_wanted(model):
    settings = resolve(model, TEXT, layers=(0,), lengths=(8,), samples=1, special_tokens=False)
    (record,) = measure(model, TEXT, settings)
    assert record["special_tokens"] == "none"
    assert not {"[CLS]", "[SEP]"} & {top["token"] for top in record["top_tokens"]}


def test_numpy_integers_become_plain_ones(model):
    settings = resolve(model, TEXT, layers=np.array([2]), heads=np.array([0]), lengths=(6,), samples=1)
    assert (settings.layers, settings.heads) == ((2,), (0,))
    (record,) = measure(model, TEXT, settings)
    json.dumps(record)


def test_settings_are_frozen_and_resolved(model):
    settings = resolve(model, TEXT, heads="all", lengths=(6,), samples=1)
    assert (settings.layers, settings.heads, settings.map) == ((0, 1, 2), (0, 1, 2), "head")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.samples = 2
    assert Settings(layers=(0,), lengths=(4,), samples=1).map == "attention"


def test_memory_is_said_and_kept_to(model):
    settings = resolve(model, TEXT, lengths=(6, 20), samples=1)
    said = memory_plan(model, TEXT, settings)
    assert said.total > 20 * 12 * 8 * 3
    tight = dataclasses.replace(settings, max_memory=said.total // 2)
    assert memory_plan(model, TEXT, tight).total <= said.total // 2
    assert len(list(measure(model, TEXT, tight))) == 6
    with pytest.raises(InputError, match=r"0\.001 MiB; .*--max-memory.*--lengths") as caught:
        memory_plan(model, TEXT, dataclasses.replace(settings, max_memory=1000))
    enough = float(re.search(r"at least ([\d.]+) MiB for n = 20", str(caught.value))[1])
    assert memory_plan(model, TEXT, dataclasses.replace(settings, max_memory=int(enough * 2**20)))
    fewer = dataclasses.replace(settings, tokens="no-special")
    assert memory_plan(model, TEXT, fewer).bytes_per_vector == said.bytes_per_vector * 18 // 20


@pytest.mark.parametrize(
    "change, words",
    [
        ({"tokens": "some"}, "no-special"),
        ({"samples": 0}, "at least 1 sample"),
        ({"tol": 0.0}, "tolerance"),
        ({"confidence": 1.0}, "confidence"),
        ({"lengths": ()}, "at least 1 token"),
        ({"lengths": (0,)}, "got 0"),
        ({"lengths": (41,)}, "40 tokens"),
        ({"lengths": (2,)}, "special"),
        ({"layers": (3,)}, "between 0 and 2"),
        ({"layers": ()}, "got none"),
        ({"heads": (0, 3)}, "between 0 and 2"),
        ({"samples": 50}, "tokens of text"),
    ],
)
def test_what_is_refused(model, change, words):
    with pytest.raises(InputError, match=words):
        resolve(model, TEXT, **{"lengths": (8,), "samples": 1, **change})


def test_empty_text_is_refused(model):
    with pytest.raises(InputError, match="expected some text"):
        resolve(model, Text("blank", " \n"), lengths=(8,), samples=1)
