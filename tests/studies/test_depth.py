"""Tokens at every depth of small random models, compared with dense Jacobians and the network's own attention."""

from __future__ import annotations

import json

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import layer_chain, load
from howsmooth.questions import depth, record_error
from howsmooth.records import json_line
from howsmooth.studies import measure, prepare_model, records_of, spec_of
from howsmooth.texts.corpora import read_corpus
from tests.models.tiny import tiny_network, tiny_tokenizer
from tests.tolerances import at_most, less

TEXT = read_corpus("embedded")
FAMILIES = ("gpt2", "bert", "llama")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        sizes = {"gpt2": dict(n_embd=12), "bert": dict(hidden_size=12), "llama": dict(hidden_size=12, head_dim=4)}
        tiny_network(family, **sizes[family]).save_pretrained(folder)
        tiny_tokenizer(family).save_pretrained(folder)
        found[family] = load(str(folder), dtype=torch.float64)
    return found


def spec_with(**fields):
    return spec_of({"question": "depth", "lengths": [5], **fields})


def records(model, n=5, **fields):
    """Return the chain of layers at the chunk, and its records."""
    found = list(measure(model, TEXT, spec_with(lengths=[n], **{"tol": 1e-6, **fields})))
    return layer_chain(model, model.chunks(TEXT, n, 1)[0]), found


@pytest.mark.parametrize("family", FAMILIES)
def test_growth_against_dense_jacobians(models, family):
    chain_of_layers, found = records(models[family])
    maps, states, so_far, product = chain_of_layers.maps, chain_of_layers.states(), None, 1.0
    assert len(found) == len(maps) + 1 and found[-1]["normed"] == (family != "bert")
    assert [found[0]["value"], found[0]["product"]] == pytest.approx([1.0, 1.0])
    for record, f, x in zip(found[1:], maps, states, strict=False):
        J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
        so_far = J if so_far is None else J @ so_far
        own, chain = (float(torch.linalg.matrix_norm(m, 2)) for m in (J, so_far))
        product *= own
        assert record["own"] == pytest.approx(own, rel=1e-5) and record["product"] == pytest.approx(product, rel=1e-5)
        assert record["value"] == pytest.approx(chain, rel=1e-5)
        assert at_most(record["lower"], chain) and at_most(chain, record["upper"])
        assert at_most(record["value"], record["product"], tol=1e-5)
        size = float(states[0].norm() / states[maps.index(f) + 1].norm())
        assert record["relative"] == pytest.approx(chain * size, rel=1e-5)


def test_growth_with_the_first_token_fixed(models):
    chain, found = records(models["gpt2"], tokens="no-first", depths=[3])
    x, maps = chain.x, chain.maps

    def whole(x):
        for f in maps:
            x = f(x)
        return x

    J = torch.func.jacrev(whole)(x).reshape(x.numel(), *x.shape)[:, 1:].flatten(1)
    assert found[-1]["value"] == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-5)
    assert all(entry["share"] < 1e-12 for entry in found[-1]["top_responses"] if entry["position"] == 0)
    assert [r["value"] is None for r in found] == [False, True, True, False, False]


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_sink_receives_most_of_the_networks_attention(models, family):
    model = models[family]
    _, found = records(model, n=9, no_growth=True)
    sink, ids = found[0]["sink"], model.chunks(TEXT, 9, 1)[0].ids
    model.network.set_attn_implementation("eager")
    with torch.no_grad():
        P = torch.stack(model.network(input_ids=ids[None], output_attentions=True).attentions)[:, 0]
    given = (P.sum(-2) - P.diagonal(dim1=-2, dim2=-1)).mean(1) / 8  # by layer and key
    assert sink == int(given.mean(0).argmax())
    for record, layer, weights in zip(found, given, P, strict=False):
        assert record["to_sink"] == pytest.approx(float(layer[sink]))
        assert record["sharpness"] == pytest.approx(float(weights.amax(-1).mean()))
    assert found[-1]["to_sink"] is None


def test_spread_with_and_without_the_sink(models):
    chain, found = records(models["llama"], n=8, no_growth=True)
    sink = found[0]["sink"]
    for record, x in zip(found, chain.states(), strict=True):
        u = x / x.norm(dim=-1, keepdim=True)
        keep = [i for i in range(8) if i != sink]
        for key, rows in (("cosine", u), ("cosine_without_sink", u[keep])):
            m = len(rows)
            assert record[key] == pytest.approx(float(((rows @ rows.mT).sum() - m) / (m * (m - 1))))
        assert record["sink_norm"] == pytest.approx(float(x[sink].norm()))
        assert record["value"] is record["own"] is record["product"] is None
        assert max(record["clusters"]) <= 8 and record["clusters"] == sorted(record["clusters"], reverse=True)


def test_records_are_plain_and_have_provenance(models):
    _, found = records(models["bert"], depths=[1])
    for record in found:
        again = json.loads(json_line(record))
        assert record_error(again) is None
        assert again["text_sha256"] == TEXT.sha256 and again["dtype"] == "float64" and again["status"] == "converged"
    assert len({tuple(record) for record in found}) == 1  # one set of columns, in one order


def test_each_record_is_yielded_before_the_next_is_computed(models, monkeypatch):
    from howsmooth.dynamics import growth

    steps, compute = [], growth.growth_by_map

    def counted(*arguments, **options):
        for step in compute(*arguments, **options):
            steps.append(step)
            yield step

    monkeypatch.setattr(growth, "growth_by_map", counted)
    stream = measure(models["gpt2"], TEXT, spec_with())
    assert next(stream)["depth"] == 0 and not steps
    assert next(stream)["depth"] == 1 and len(steps) == 1


def test_records_of_an_earlier_run_are_not_computed_again(models):
    """The growth at a depth does not depend on which of the others are asked for."""
    plan = prepare_model(spec_with(samples=2), models["gpt2"], TEXT)
    found = list(records_of(plan))
    assert plan.count == len(found) == 10
    missing, kept = found[3], [record for record in found if record is not found[3]]
    (again,) = [r for r in records_of(plan, kept) if r["task"] == missing["task"]]
    assert {**again, "seconds": None} == {**missing, "seconds": None}  # exact: the same computation


def test_principal_coordinates_preserve_angles_in_three_dimensions(models):
    chain, found = records(models["bert"], no_growth=True)
    paths = torch.tensor([record["coordinates"] for record in found])
    assert paths.shape == (4, 5, 3) and len(found[0]["axes"]) == 3 and len(found[0]["words"]) == 5
    u = torch.stack(chain.states())
    u = u / u.norm(dim=-1, keepdim=True)
    gaps, seen = (float((t[0, 1] - t[0, 2]).norm()) for t in (u, paths))
    assert less(0, seen) and at_most(seen, gaps + 1e-4)  # coordinates have five digits


def test_records_of_long_texts_have_every_kth_token(models, monkeypatch):
    monkeypatch.setattr(depth, "MAX_POINTS", 4)
    _, found = records(models["bert"], n=9, no_growth=True)
    words = list(models["bert"].chunks(TEXT, 9, 1)[0].words)
    assert found[0]["words"] == words[::3] and len(found[0]["coordinates"]) == 3


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(depths=[4]), "depths from 1 to 3, the layers of"),
        (dict(depths=[0]), "integers from 1"),
        (dict(depths=[1], no_growth=True), "leave one of the two out"),
        (dict(lengths=[2]), "at least 4 tokens"),
        (dict(lengths=[65]), "at most 64 tokens, the positions of"),
        (dict(samples=5000), "longer text"),
        (dict(tokens="some"), "tokens.0: expected 'all', 'no-special' or 'no-first'"),
        (dict(tokens=["all", "no-first"]), "tokens as one choice"),
        (dict(together=[3.0]), "between 0 and 2"),
    ],
)
def test_invalid_options_are_refused(models, changes, words):
    with pytest.raises(InputError, match=words):
        prepare_model(spec_with(**{"lengths": [6], **changes}), models["gpt2"], TEXT)
