"""The paper's figures at small size, and the scripts' formula compared with independent implementations."""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth import InputError, load, local_lipschitz
from howsmooth.attack.configurations import castin
from howsmooth.fits import growth_laws
from howsmooth.models import AttentionFile
from howsmooth.models.released_scripts import adversarial_points, script_map, vjps_under_dropout
from howsmooth.questions import configuration, quantities
from howsmooth.questions.quantities import EvaluationPoint
from howsmooth.questions.spec import spec_of
from howsmooth.questions.work import Work
from howsmooth.spectral import Solver
from howsmooth.studies import run as studies_run
from howsmooth.studies.figures import figure_names, laws_of, ratios_of, read_figure, run_figure
from howsmooth.studies.figures.run import thinned
from howsmooth.studies.plan import prepare_model
from howsmooth.studies.store import Store
from tests import data, reasons
from tests.tolerances import FLOAT32, at_most, close


@pytest.fixture(autouse=True)
def _neither_hub_nor_corpora(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HOWSMOOTH_DATA", str(tmp_path))
    for package in ("nltk", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.fixture(scope="module")
def gpt2():
    return load("random:gpt2", tokenizer="minilm")


def run(name: str, store, figure=None, gpt2_attention=None, **given):
    spec = spec_of({"tol": 1e-2, "engine": {"workers": 0}, **given})
    fields = {field: getattr(spec, field) for field in ("tol", "engine", *given)}
    with Store.write(store) as opened:
        return run_figure(figure or read_figure(name), opened, fields, gpt2_attention=gpt2_attention)


def as_released(f, x: torch.Tensor) -> float:
    """Return √‖Jᵀ f(X)‖ by the quantity `released`."""
    return quantities.released(EvaluationPoint(f, x, None, None, None, None, {}))[0]["value"]


def by_scripts(model, ids: torch.Tensor, layer: int, x: torch.Tensor) -> dict:
    """Return the record of the quantity `released-map`, the same formula for the scripts' own map."""
    return quantities.released_map(EvaluationPoint(None, x, model, layer, ids[None], None, Solver(seed=0)))[0]


def as_the_scripts_do(f, x: torch.Tensor, steps: int = 3) -> float:
    """Run the published loop, which takes the first output of jvp, the value, for the tangent."""
    pull = torch.func.vjp(f, x)[1]
    u = torch.nn.functional.normalize(torch.randn(x.numel(), dtype=x.dtype), dim=0).view_as(x)
    for _ in range(steps):
        with sdpa_kernel(SDPBackend.MATH):  # the fused one has no forward mode
            v = pull(torch.func.jvp(f, (x,), (u,))[0])[0]
        mu = float((u * v).sum())
        u = v / v.norm()
    return math.sqrt(mu)


def test_every_figure_is_valid_and_every_published_line_has_a_panel():
    for name in figure_names():
        figure = read_figure(name)
        panels = {
            (choice.label, text, layer, head)
            for study in figure.studies
            for choice in study.models
            for text in ([study.label] if study.inputs != "text" else [corpus.source for corpus in study.texts])
            for layer in choice.layers or study.layers
            for head in study.heads or (None,)
            if study.layers != "all"
        }
        assert {(line.model, line.text, line.layer, line.head) for line in figure.published} <= panels
    assert [len(read_figure(name).published) for name in ("text", "adversarial")] == [5, 4]
    with pytest.raises(InputError, match="did you mean 'radius'"):
        read_figure("radus")


def test_the_released_formula_grows_like_n_to_a_quarter_for_the_identity():
    """The identity has Lip = 1 at every n; tokens of one size make √‖Jᵀf(X)‖ grow like n^¼."""
    ns = [4, 16, 64, 256]
    values = [as_released(lambda x: x, torch.ones(n, 5, dtype=torch.float64)) for n in ns]
    assert np.allclose(np.diff(np.log(values)) / np.diff(np.log(ns)), 0.25, atol=1e-12)


def test_the_released_formula_is_zero_for_a_plain_layer_norm():
    """|LN(z)| is the same for every z, so Jᵀf = 0: for BERT the scripts measure gains and biases."""
    norm = torch.nn.LayerNorm(16, eps=0.0).double()
    x = torch.randn(6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert as_released(norm, x) < 1e-6 < 0.1 < local_lipschitz(norm, x).value


def test_the_scripts_map_of_bert_is_its_attention_module():
    model, masked = load("random:bert", tokenizer="minilm"), load("random:bert", tokenizer="minilm", causal=True)
    # With equal gains and no bias |f| is the same everywhere, Jᵀf = 0, and the scripts would return rounding errors.
    gain, bias = torch.rand(768, generator=torch.Generator().manual_seed(0)).add(0.5).expand(2, -1)
    for norm in (m.network.encoder.layer[2].attention.output.LayerNorm for m in (model, masked)):
        norm.weight.data, norm.bias.data = gain.clone(), bias.flip(0).clone()
    ids = torch.arange(1000, 1012)
    x = masked.activations(ids, [2])[2]
    assert masked.attention(2).causal and not model.attention(2).causal
    assert not torch.allclose(x, model.activations(ids, [2])[2], atol=1e-3), "the mask is in the forward pass too"
    before = masked.activations(ids[:5], [2])[2]
    assert torch.allclose(x[:5], before, atol=1e-5), "later tokens change nothing"
    module = copy.deepcopy(model.network.encoder.layer[2].attention).double()

    def theirs(x):
        return module(x[None])[0][0]

    for ours in (model, masked):
        f, about = script_map(ours, 2, 12)
        assert about.endswith("no mask") and torch.allclose(f(x), theirs(x.double()).float(), atol=1e-4)
    value = by_scripts(masked, ids, 2, x)["value"]
    assert value == pytest.approx(as_the_scripts_do(theirs, x.double()), rel=1e-4)


def test_the_scripts_leave_dropout_on_in_a_random_gpt2(gpt2):
    ids = torch.arange(1000, 1020)
    x = gpt2.activations(ids, [6])[6]
    plain = as_released(gpt2.attention(6, 20), x)
    first, again = (by_scripts(gpt2, ids, 6, x) for _ in range(2))
    assert first["script_map"] == "attention with dropout on" and close(first["value"], again["value"], FLOAT32)
    assert first["value"] != pytest.approx(plain, rel=1e-3) and first["value"] == pytest.approx(plain, rel=0.3)
    assert not gpt2.network.training
    drops = [(module, module.p) for module in gpt2.network.modules() if isinstance(module, torch.nn.Dropout)]
    try:
        for module, _ in drops:
            module.p = 0.0
        tokens, one, other = vjps_under_dropout(gpt2, ids, 6, 0)
        assert torch.allclose(tokens, x, atol=1e-4) and close(one, other, FLOAT32)
        assert by_scripts(gpt2, ids, 6, x)["value"] == pytest.approx(plain, rel=1e-4)
    finally:
        for module, p in drops:
            module.p = p


def test_the_scripts_input_for_gpt2_comes_from_rows_of_conv1d(gpt2):
    asked = {"question": "configuration", "layers": [6], "heads": [3], "lengths": [5], "radius": 7}
    (bundle,) = prepare_model(spec_of(asked), gpt2).bundles()
    at = {"layer": 6, "head": 3, "map": "attention, scripts' input", "quantity": "released-map"}
    _, tokens = configuration._map_and_tokens(Work(bundle, gpt2), gpt2.attention(6).to(torch.float64), at, 7.0)
    weight = gpt2.network.h[6].attn.c_attn.weight.double()
    rows = slice(3 * 64, 4 * 64)
    A = weight[:, 768:1536][rows].T @ weight[:, :768][rows] / 8
    u = tokens[0] / 7
    value = float(u @ A @ u)
    assert float(u.norm()) == pytest.approx(1, rel=1e-5) and torch.allclose(A @ u, value * u, atol=1e-4)
    others = torch.linalg.eigvals(A)
    real = others[others.imag == 0].real
    greatest = float(real.max()) > -8 * float(real.min())
    assert value == pytest.approx(float(real.max() if greatest else real.min()), rel=1e-4)
    assert torch.allclose(tokens[1:], tokens[0] * (0.5 if greatest else -1.0))


def test_a_model_that_cannot_be_loaded_is_listed_as_missing(tmp_path):
    found = run(
        "text",
        tmp_path / "s.sqlite",
        models=["random:bert", "nobody/no-such-model"],
        layers=[0, 6],
        lengths=[4, 8, 16],
        samples=1,
    )
    assert {record["model"] for record in found.records} == {"random:bert"}
    assert {lack.model for lack in found.missing} == {"nobody/no-such-model"}
    assert all("no-such-model" in lack.reason and lack.layers == (0, 6) for lack in found.missing)
    assert {bound["map"] for bound in found.bounds} == {"this_project.upper", "this_project.two_point_lower"}
    ceiling = {(b["layer"], b["n"]): b["value"] for b in found.bounds if b["side"] == "upper"}
    described = [r for r in found.records if r["quantity"] == "lipschitz"]
    assert len(described) == len(found.records) / 3
    assert all(
        at_most(r["lower"], r["value"], r["upper"], ceiling[r["layer"], r["n"]])
        for r in described
        if (r["layer"], r["n"]) in ceiling
    )


def test_nothing_is_computed_twice(tmp_path, monkeypatch, tiny):
    options = dict(models=[tiny], lengths=[4, 6, 8], samples=2)
    first = run("text", tmp_path / "s.sqlite", **options)
    assert len(first.records) == 2 * 3 * 2 * 3 and not first.missing  # layers, lengths, samples, quantities
    assert any("embedded text is used instead" in line for line in first.notes)
    assert {record["text"] for record in first.records} == {"embedded"}

    def never(*_):
        pytest.fail("computed again")  # no `Exception`, which would be the failure of a task

    monkeypatch.setattr(studies_run, "run_bundle", never)
    again = run("text", tmp_path / "s.sqlite", **options)
    assert again.records == first.records and again.bounds == first.bounds  # exact: read from the store
    # Another figure of the same grid takes the records that are there.
    radius = run("radius", tmp_path / "s.sqlite", **options)
    assert [r["value"] for r in radius.records] == [r["value"] for r in first.records]  # exact: read from the store


def test_a_file_of_attention_on_adversarial_input(tmp_path):
    path, lengths = data.make_gpt2(tmp_path), [2, 7, 12]
    figure = read_figure("adversarial")
    alone = figure.model_copy(update={"studies": [s for s in figure.studies if s.models[0].label == "gpt2"]})
    found = run("", tmp_path / "s.sqlite", alone, gpt2_attention=str(path), lengths=lengths, samples=2)
    by = {(r["map"], r["quantity"], r["n"]): r for r in found.records}
    assert not found.missing and not found.notes and len(by) == len(found.records)
    assert set(by) == {(*series, n) for series in configuration.SERIES["adversarial"] for n in lengths}
    assert {record["model"] for record in (*found.records, *found.bounds)} == {"gpt2"}  # not the name of the file
    layer = AttentionFile(path).attention(0).to(torch.float64)
    for n in lengths:
        x = castin(layer, n, 10.0, head=0, sign=1).tokens
        first, others = adversarial_points("gpt2", layer, 0)
        scripts = 10.0 * torch.stack([first, *[others] * (n - 1)])
        for name, f, tokens in (
            ("head", layer.head(0), x),
            ("attention", layer, x),
            ("head, −u", layer.head(0), -x),
            ("attention, −u", layer, -x),
            ("attention, scripts' input", layer, scripts),
        ):
            record, estimate = by[name, "lipschitz", n], local_lipschitz(f, tokens, tol=1e-6)
            assert at_most(record["lower"], estimate.upper) and at_most(estimate.lower, record["upper"])
        released = as_released(layer, x)
        assert by["attention", "released", n]["value"] == pytest.approx(released, rel=1e-6)
    uppers = [bound for bound in found.bounds if bound["side"] == "upper"]
    assert {bound["n"] for bound in uppers} == set(lengths)
    assert all(at_most(by["head", "lipschitz", bound["n"]]["value"], bound["value"]) for bound in uppers)


@pytest.mark.slow
@data.needs(data.GPT2)
def test_gpt2s_true_weights_on_adversarial_input(tmp_path):
    """The released formula gives the published line; the layer's constant grows for one sign, and at their input."""
    found = run(
        "adversarial", tmp_path / "s.sqlite", gpt2_attention=str(data.DATA / data.GPT2), lengths=[2, 7, 12, 22, 32, 47]
    )
    assert {lack.model for lack in found.missing} == {"bert-base-uncased", "bert-base-uncased (masked)"}
    panel = ("gpt2", "adversarial, R = 10", 0, 0)
    laws = laws_of(found.records)[panel]
    (line,) = (line for line in found.figure.published if line.model == "gpt2")
    assert laws["head", "lipschitz"].exponent == pytest.approx(0.5, abs=0.02)
    assert laws["attention, scripts' input", "released-map"].exponent == pytest.approx(0.5, abs=0.05)
    for record in found.records:
        if record["model"] == "gpt2" and record["quantity"] == "released-map":
            assert record["value"] == pytest.approx(line.constant * record["n"] ** line.exponent, rel=0.2)
    assert laws["attention", "lipschitz"].exponent < 0.25
    assert 0.4 < laws["attention, −u", "lipschitz"].exponent < 0.6
    assert 0.7 < laws["attention, scripts' input", "lipschitz"].exponent < 1.0
    head = {r["n"]: r["value"] for r in found.records if r["model"] == "gpt2" and r["map"] == "head"}
    for bound in found.bounds:  # of the head, on the ball that the input lies in
        if bound["model"] == "gpt2" and bound["side"] == "upper":
            assert at_most(head[bound["n"]], bound["value"])


@pytest.mark.parametrize("source", data.SOURCES)
def test_a_file_of_attention_on_normalised_noise(source, tmp_path):
    path = data.gpt2_file(source, tmp_path)
    found = run("synthetic", tmp_path / "s.sqlite", gpt2_attention=str(path), lengths=[8, 16], samples=2)
    assert {record["layer"] for record in found.records} == {0, 6, 11} and not found.missing
    model = AttentionFile(path)
    record = next(r for r in found.records if r["layer"] == 0 and r["quantity"] == "lipschitz" and r["n"] == 8)
    generator = torch.Generator().manual_seed(record["sample"])
    noise = (
        torch.randn(8, model.normalisation(0).d, dtype=torch.float64, generator=generator) * configuration.EMBEDDING_STD
    )
    x = model.normalisation(0).to(torch.float64)(noise + model.learnt_positions(8).double())
    estimate = local_lipschitz(model.attention(0).to(torch.float64), x, tol=1e-6)
    assert at_most(record["lower"], estimate.upper) and at_most(estimate.lower, record["upper"])
    assert record["mean_radius"] == pytest.approx(float(x.square().sum(-1).mean().sqrt()), rel=1e-9)


@pytest.mark.parametrize("model, layer", [("minilm", 3), ("smollm2", 10)])
def test_embedded_models_on_both_corpora(tmp_path, monkeypatch, model, layer):
    monkeypatch.setenv("HOWSMOOTH_DATA", str(tmp_path))
    data.make_alice(tmp_path)
    data.make_ag_news(tmp_path)
    found = run("others", tmp_path / "s.sqlite", models=[model], layers=[layer], lengths=[4, 8, 12, 16], samples=2)
    if any("pip install" in lack.reason for lack in found.missing):
        pytest.skip(f"{reasons.embedded(model)} ({found.missing[0].reason})")
    assert not found.missing
    assert {record["text"] for record in found.records} == {"alice", "ag_news"} and not found.notes
    for panel, ratios in ratios_of(found.records).items():
        assert panel[0] == model and ("attention", "released") in ratios
    exact = growth_laws(r for r in found.records if r["quantity"] == "lipschitz")
    assert len(exact) == 2 and all(law.lengths == 4 for law in exact.values())


def test_a_quick_figure_starts_no_processes(tmp_path, monkeypatch, tiny):
    """Each process would import torch for a few short tasks."""
    chosen = []
    monkeypatch.setattr("howsmooth.studies.figures.run.run_study", lambda plan, *_, **_options: chosen.append(plan))
    for engine, workers in (({}, {0}), ({"engine": {"workers": 2}}, {0, 2})):
        given = spec_of({"models": [tiny], "lengths": [4, 8], **engine})
        fields = {name: getattr(given, name) for name in given.model_fields_set - {"question"}}
        with Store.write(tmp_path / f"{len(workers)}.sqlite") as store:
            run_figure(read_figure("text"), store, fields, quick=True)
        assert {plan.spec.engine.workers for plan in chosen} == workers  # bounds are computed in this process
        chosen.clear()


def test_thinning_keeps_the_first_and_last_length():
    assert thinned((16, 32, 64, 128, 256, 512), 4)[::3] == (16, 512) and thinned((3, 5), 4) == (3, 5)
