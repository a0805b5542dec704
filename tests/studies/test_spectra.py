"""Spectra, norms, gains and eigenvalues as quantities of `measure`, against the dense Jacobian of a tiny model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import howsmooth
from howsmooth.errors import InputError
from howsmooth.questions.measure import QUANTITIES, parse_quantity
from howsmooth.report.chart import PALETTE_SIZE
from howsmooth.report.spectrum_charts import spectrum_charts
from tests.tolerances import assert_close, at_most, close

from .conftest import TEXT

NAMES = ("spectrum:64", "density:6", "frobenius", "effective-rank", "rms", "token-norm", "gains", "eigenvalues:3")
N = 6


@pytest.fixture(scope="module")
def measured(tiny):
    records = howsmooth.measure(tiny, text=TEXT, layers=[1], lengths=[N], samples=1, quantities=list(NAMES))
    model = howsmooth.load(tiny)
    x = model.activations(model.chunks(TEXT, N, 1)[0], [1])[1]
    J = torch.func.jacrev(model.attention(1, N).converted(dtype=torch.float64))(x.double())
    return {record["quantity"].partition(":")[0]: record for record in records}, J, records


def test_every_number_is_that_of_the_dense_jacobian(measured):
    found, J, _ = measured
    dense = J.flatten(2).flatten(0, 1)
    sigma = torch.linalg.svdvals(dense)
    spectrum = found["spectrum"]["spectrum"]
    assert len(spectrum) == 64
    for row, value in zip(spectrum, sigma.tolist(), strict=False):
        assert at_most(row["lower"], value, row["upper"])
    for row in found["density"]["counts"]:
        count = int((sigma > row["threshold"]).sum())
        assert row["lower"] <= count <= row["upper"]  # exact: counts are integers
    norm, rank = float(sigma.norm()), float(sigma.norm() / sigma[0]) ** 2
    for name, truth in (("frobenius", norm), ("effective-rank", rank), ("rms", float(sigma[0]))):
        assert at_most(found[name]["lower"], truth, found[name]["upper"])
    blocks = torch.linalg.matrix_norm(J.permute(0, 2, 1, 3), 2)
    assert_close(torch.tensor(found["gains"]["gains"]).double(), blocks, 1e-5)
    assert found["token-norm"]["lower"] <= found["token-norm"]["upper"]  # exact: ordered by construction
    largest = np.abs(np.linalg.eigvals(dense.numpy())).max()
    assert close(found["eigenvalues"]["value"], float(largest), 1e-5) and len(found["eigenvalues"]["eigenvalues"]) == 3


def test_each_record_says_what_its_interval_is(measured):
    found, _, _ = measured
    certificates = {name: record["certificate"] for name, record in found.items() if name != "rms"}
    assert certificates == {
        **dict.fromkeys(("spectrum", "density", "frobenius", "effective-rank"), "certified"),
        "token-norm": "two sides",
        "gains": "exact",
        "eigenvalues": "residual",
    }
    assert all((record["confidence"] is None) == (not QUANTITIES[name].certified) for name, record in found.items())


def test_spectra_are_drawn(measured):
    _, _, records = measured
    by_axis = {chart.y_axis.label: chart for chart in spectrum_charts(records)}
    assert len(by_axis) == 2
    values = [row["value"] for row in measured[0]["spectrum"]["spectrum"] if row["value"] > 0]
    assert by_axis["singular value σ$_i$"].series[0].y == values  # exact: the numbers of the record


def test_a_panel_of_spectra_has_no_more_lines_than_colours(measured):
    """With several lengths each map has a panel; with one length all maps share one."""
    _, _, records = measured
    (record,) = (record for record in records if record["quantity"].startswith("spectrum"))
    copies = [{**record, "layer": layer, "n": n} for layer in range(9) for n in range(2, 10)]
    charts = spectrum_charts(copies)
    assert [chart.title.rpartition(", ")[2] for chart in charts] == [f"layer {i}" for i in (0, 2, 3, 5, 6, 8)]
    assert {len(chart.series) for chart in charts} == {PALETTE_SIZE}
    (one,) = spectrum_charts([copy for copy in copies if copy["n"] == 2])
    assert one.title.endswith("n = 2") and one.series[-1].label == "layer 8"


def test_spectra_of_some_tokens_and_of_other_maps(tiny):
    records = howsmooth.measure(
        tiny,
        text=TEXT,
        map="mlp",
        layers=[0],
        lengths=[N],
        samples=1,
        tokens=["all", "no-special"],
        quantities=["spectrum:2", "gains"],
    )
    assert sorted((r["tokens"], r["quantity"]) for r in records) == [
        ("all", "gains"),
        ("all", "spectrum:2"),
        ("no-special", "spectrum:2"),
    ]
    gains = torch.tensor(next(r["gains"] for r in records if r["quantity"] == "gains"))
    assert torch.count_nonzero(gains - gains.diag().diag()) == 0  # an MLP does not mix tokens


@pytest.mark.parametrize(
    "text, match",
    [
        ("spectrum:65", "spectrum:K with K from 1 to 64"),
        ("spectrum:", "spectrum:K"),
        ("lipschitz:2", "lipschitz without a number"),
        ("spectum", "did you mean 'spectrum'"),
    ],
)
def test_invalid_quantities(text, match):
    with pytest.raises(InputError, match=match):
        parse_quantity(text)


def test_the_constant_in_the_weights_has_no_tokens(tiny):
    (record,) = howsmooth.measure(tiny, text=TEXT, map="weights:v", layers=[1], lengths=[N], samples=1)
    assert record["map"] == "weights:v" and record["top_tokens"] == [] and record["radius"] is None
    assert record["status"] == "converged"
    with pytest.raises(InputError, match='expected tokens = "all" with map = "weights:v"'):
        howsmooth.measure(tiny, text=TEXT, map="weights:v", tokens="no-first", lengths=[N])
    with pytest.raises(InputError, match="a map of the tokens for the question layer-attack"):
        howsmooth.ask("layer-attack", tiny, text=TEXT, map="weights", lengths=[N])


def test_what_is_too_long_or_not_there_is_refused_before_a_model_is_loaded(tiny):
    with pytest.raises(InputError, match="lengths up to 512 for the quantity gains, got 1024"):
        howsmooth.measure("no-such-model", lengths=[8, 1024], quantities=["gains"])
    with pytest.raises(InputError, match=r"layers from 0 to 1 of .*, got chain:0\.\.2"):
        howsmooth.measure(tiny, text=TEXT, map="chain:0..2", lengths=[N])
