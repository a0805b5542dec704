"""Measuring a small random model: order of records, forward passes, perturbed tokens, memory."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from pydantic import ValidationError

from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import load
from howsmooth.questions.inputs import TextInputs
from howsmooth.studies import Spec, measure, plan, resolve, spec_of
from howsmooth.studies.plan import solve_memory
from howsmooth.texts import cutting
from howsmooth.texts.corpora import Corpus
from tests.tolerances import FLOAT32, at_most, close

TEXT = Corpus("river", ("the old river moves slowly under the stone bridge and the light moves with it . " * 12,))


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


def resolved(model, corpus=TEXT, **fields) -> Spec:
    """Return a spec, resolved against the model and the text."""
    return resolve(model, corpus, spec_of({"samples": 1, **fields}))


def test_order_and_count(model):
    """Lengths in order; within a batch of samples, layer by layer."""
    spec = resolved(model, layers=[2, 0], heads=[1], lengths=[10, 6], samples=2)
    records = list(measure(model, TEXT, spec))
    assert len(records) == spec.estimates == 8
    assert [(r["n"], r["layer"], r["sample"], r["head"]) for r in records] == [
        (n, layer, sample, 1) for n, layer, sample in itertools.product((6, 10), (2, 0), (0, 1))
    ]


@pytest.mark.parametrize("at_once, expected", [(256, 2), (1, 6)], ids=["batches", "one by one"])
def test_one_forward_pass_for_all_layers(model, monkeypatch, at_once, expected):
    """One per batch of samples, whatever the number of layers."""
    monkeypatch.setitem(plan.MAX_BATCH_TOKENS, "cpu", at_once)
    spec = resolved(model, lengths=[6, 10], samples=3)
    passes = []
    through = model.activations
    monkeypatch.setattr(model, "activations", lambda *arguments: passes.append(arguments) or through(*arguments))
    assert len(list(measure(model, TEXT, spec))) == 18
    assert len(passes) == expected


def test_special_tokens_can_be_excluded_from_perturbations(model):
    """Without the special tokens the constant is that of the Jacobian's other columns."""
    (record,) = measure(model, TEXT, resolved(model, layers=[1], lengths=[8], tokens="no-special", tol=1e-5))
    (chunk,) = model.chunks(TEXT.content, 8, 1)
    assert chunk.special.tolist() == [True, *[False] * 6, True]
    x = model.activations(chunk, [1])[1]
    jacobian = model.attention(1).jacobian(x).dense().reshape(8 * 12, 8, 12)
    truth = torch.linalg.svdvals(jacobian[:, 1:7].reshape(8 * 12, 6 * 12))[0].item()
    assert at_most(record["lower"], truth, tol=1e-10) and at_most(truth, record["upper"], tol=1e-10)
    assert record["value"] == pytest.approx(truth, rel=1e-5)
    assert {top["position"] for top in record["top_tokens"]} <= set(range(1, 7))


def test_records_contain_the_fields_of_the_estimate(model):
    (record,) = measure(model, TEXT, resolved(model, layers=[0], lengths=[8], seed=3))
    (chunk,) = model.chunks(TEXT.content, 8, 1)
    estimate = local_lipschitz(model.attention(0), model.activations(chunk, [0])[0], seed=3)
    assert close(record["value"], estimate.value, FLOAT32) and record["steps"] == estimate.steps
    best = record["top_tokens"][0]
    assert best["position"] == int(estimate.shares.argmax()) and best["token"] == chunk.words[best["position"]]
    assert best["share"] == pytest.approx(float(estimate.shares.max()))


def test_special_tokens_none_adds_no_special_tokens(model):
    (record,) = measure(model, TEXT, resolved(model, layers=[0], lengths=[8], special_tokens="none"))
    assert record["special_tokens"] == "none"
    assert not {"[CLS]", "[SEP]"} & {top["token"] for top in record["top_tokens"]}


def test_a_spec_is_frozen_and_resolved(model):
    spec = resolved(model, heads="all", lengths=[6])
    assert (spec.layers, spec.heads, spec.map_name) == ((0, 1, 2), (0, 1, 2), "head")
    with pytest.raises(ValidationError, match="frozen"):
        spec.samples = 2
    assert spec_of({"layers": [0], "lengths": [4]}).map_name == "attention"


def test_max_memory_is_respected(model):
    def planned(**changes):
        spec = resolved(model, lengths=[6, 20], **changes)
        return solve_memory(model, TextInputs(model, TEXT, spec), spec, 0)

    said = planned()
    assert said.total > 20 * 12 * 8 * 3
    assert planned(max_memory=said.total // 2).total <= said.total // 2
    assert len(list(measure(model, TEXT, resolved(model, lengths=[6, 20], max_memory=said.total // 2)))) == 6
    with pytest.raises(InputError, match=r"0\.001 MiB; .*--max-memory.*--lengths") as caught:
        planned(max_memory=1000)
    enough = float(re.search(r"at least ([\d.]+) MiB for n = 20", str(caught.value))[1])
    assert planned(max_memory=int(enough * 2**20))
    assert planned(tokens="no-special").bytes_per_vector == said.bytes_per_vector * 18 // 20


@pytest.mark.parametrize(
    "change, words",
    [
        ({"tokens": "some"}, "no-special"),
        ({"samples": 0}, "samples: "),
        ({"tol": 0.0}, "tol: "),
        ({"confidence": 1.0}, "confidence: "),
        ({"lengths": []}, "lengths: "),
        ({"lengths": [0]}, "lengths.0: .*got 0"),
        ({"lengths": [41]}, "40 tokens"),
        ({"lengths": [2]}, "special"),
        ({"layers": [3]}, "between 0 and 2"),
        ({"layers": []}, 'layers: expected "all" or numbers'),
        ({"heads": [0, 3]}, "between 0 and 2"),
        ({"samples": 50}, "tokens of text"),
    ],
)
def test_invalid_specs_are_refused(model, change, words):
    with pytest.raises(InputError, match=words):
        resolved(model, **{"lengths": [8], **change})


def test_empty_text_is_refused(model):
    with pytest.raises(InputError, match="expected a text, got an empty one"):
        resolved(model, Corpus("blank", (" \n",)), lengths=[8])


def test_a_text_is_tokenised_once(model, monkeypatch):
    """The checks, the plan and the run share one cutter."""
    tokenised, through = [], cutting.tokenize
    monkeypatch.setattr(cutting, "tokenize", lambda *given: tokenised.append(given) or through(*given))
    corpus = Corpus("river again", TEXT.documents)
    spec = resolve(model, corpus, spec_of({"lengths": [6, 10], "samples": 2}))
    assert len(list(measure(model, corpus, spec))) == 12 and len(tokenised) == 1
