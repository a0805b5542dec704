"""Tokens at every depth of small random models, compared with dense Jacobians and the network's own attention."""

from __future__ import annotations

import json

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.records import json_line
from howsmooth.studies import chosen_depths, depth_trajectories, spec_of
from howsmooth.studies.depth import TOLERANCES, principal_coordinates
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


def spec_and_depths(model, depths=None, tolerances=TOLERANCES, **fields):
    """Return a spec and its depth options."""
    spec = spec_of({"lengths": [5], "samples": 1, **fields})
    return spec, chosen_depths(model, TEXT, spec, depths=depths, tolerances=tolerances)


def records(model, n=5, depths=None, **fields):
    spec, chosen = spec_and_depths(model, depths, lengths=[n], **{"tol": 1e-6, **fields})
    (trajectory,) = depth_trajectories(model, TEXT, spec)
    return trajectory, list(trajectory.records(model, TEXT, spec, chosen))


@pytest.mark.parametrize("family", FAMILIES)
def test_growth_against_dense_jacobians(models, family):
    trajectory, found = records(models[family])
    maps, so_far, product = trajectory.chain.maps, None, 1.0
    assert len(found) == len(maps) + 1 and found[-1]["normed"] == (family != "bert")
    assert [found[0]["value"], found[0]["product"]] == pytest.approx([1.0, 1.0])
    for record, f, x in zip(found[1:], maps, trajectory.states, strict=False):
        J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
        so_far = J if so_far is None else J @ so_far
        own, chain = (float(torch.linalg.matrix_norm(m, 2)) for m in (J, so_far))
        product *= own
        assert record["own"] == pytest.approx(own, rel=1e-5) and record["product"] == pytest.approx(product, rel=1e-5)
        assert record["value"] == pytest.approx(chain, rel=1e-5)
        assert at_most(record["lower"], chain) and at_most(chain, record["upper"])
        assert at_most(record["value"], record["product"], tol=1e-5)
        size = float(trajectory.states[0].norm() / trajectory.states[maps.index(f) + 1].norm())
        assert record["relative"] == pytest.approx(chain * size, rel=1e-5)


def test_growth_with_the_first_token_fixed(models):
    trajectory, found = records(models["gpt2"], tokens="no-first", depths=[3])
    x, maps = trajectory.chain.x, trajectory.chain.maps

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
    trajectory, found = records(model, n=9, depths=())
    model.network.set_attn_implementation("eager")
    with torch.no_grad():
        P = torch.stack(model.network(input_ids=trajectory.chunk.ids[None], output_attentions=True).attentions)[:, 0]
    given = (P.sum(-2) - P.diagonal(dim1=-2, dim2=-1)).mean(1) / 8  # by layer and key
    assert trajectory.sink == int(given.mean(0).argmax())
    for record, layer, weights in zip(found, given, P, strict=False):
        assert record["to_sink"] == pytest.approx(float(layer[trajectory.sink]))
        assert record["sharpness"] == pytest.approx(float(weights.amax(-1).mean()))
    assert found[-1]["to_sink"] is None


def test_spread_with_and_without_the_sink(models):
    trajectory, found = records(models["llama"], n=8, depths=())
    for record, x in zip(found, trajectory.states, strict=True):
        u = x / x.norm(dim=-1, keepdim=True)
        keep = [i for i in range(8) if i != trajectory.sink]
        for key, rows in (("cosine", u), ("cosine_without_sink", u[keep])):
            m = len(rows)
            assert record[key] == pytest.approx(float(((rows @ rows.mT).sum() - m) / (m * (m - 1))))
        assert record["sink_norm"] == pytest.approx(float(x[trajectory.sink].norm()))
        assert record["value"] is record["own"] is record["product"] is None
        assert max(record["clusters"]) <= 8 and record["clusters"] == sorted(record["clusters"], reverse=True)


def test_records_are_plain_and_have_provenance(models):
    _, found = records(models["bert"], depths=[1])
    for record in found:
        again = json.loads(json_line(record))
        assert again["text_sha256"] == TEXT.sha256 and again["dtype"] == "float64" and again["status"] == "converged"
    assert len({tuple(record) for record in found}) == 1  # one set of columns, in one order


def test_each_record_is_yielded_before_the_next_is_computed(models):
    model = models["gpt2"]
    spec, chosen = spec_and_depths(model)
    (trajectory,) = depth_trajectories(model, TEXT, spec)
    steps = []
    stream = trajectory.records(model, TEXT, spec, chosen, progress=lambda n, layer, head: steps.append(layer))
    assert next(stream)["depth"] == 0 and steps == []
    assert next(stream)["depth"] == 1 and steps == [0]


def test_principal_coordinates_preserve_angles_in_three_dimensions(models):
    trajectory, _ = records(models["bert"], depths=())
    paths, names = principal_coordinates(trajectory)
    assert paths.shape == (4, 5, 3) and len(names) == 3
    u = torch.stack(trajectory.states)
    u = u / u.norm(dim=-1, keepdim=True)
    gaps, seen = (float((t[0, 1] - t[0, 2]).norm()) for t in (u, torch.from_numpy(paths)))
    assert less(0, seen) and at_most(seen, gaps + 1e-12)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(depths=[4]), "depths from 1 to 3, the layers of"),
        (dict(depths=[0]), "got 0"),
        (dict(lengths=[2]), "at least 4 tokens"),
        (dict(lengths=[65]), "64 positions"),
        (dict(samples=5000), "longer text"),
        (dict(tokens="some"), "tokens.0: expected 'all', 'no-special' or 'no-first'"),
        (dict(tolerances=(3.0,)), "between 0 and 2"),
    ],
)
def test_invalid_options_are_refused(models, changes, words):
    with pytest.raises(InputError, match=words):
        spec_and_depths(models["gpt2"], **{"lengths": [6], **changes})


def test_default_depths_of_a_deep_model(models, monkeypatch):
    monkeypatch.setattr(models["gpt2"], "layers", 30)
    assert spec_and_depths(models["gpt2"], lengths=[6])[1].depths == (1, 2, 5, 10, 15, 20, 25, 30)
