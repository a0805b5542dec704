"""Ascent over measures finds two Diracs, and the constant grows with the radius as in theory."""

from __future__ import annotations

import json
import math

import pytest

import experiments.radius_growth as experiment
from experiments.radius_growth import RADII_SQUARED, fit_radius_growth, main, roughest_measures
from howsmooth.bounds import mean_field
from howsmooth.errors import InputError
from howsmooth.lipschitz import plateau
from howsmooth.lipschitz.regimes import unit_layer
from tests.docs.comparison import ROOT
from tests.tolerances import at_most


@pytest.mark.parametrize("squared", [2.0, 4.0])
def test_ascent_rediscovers_the_two_diracs(squared):
    """From random measures on three atoms: two positions, ±R, the lighter of mass between e^{−2γR²}/3 and e^{−2γR²}."""
    (record,) = roughest_measures("negative", [squared], restarts=4, steps=120)
    assert len(record["places"]) == 2
    heavy, light = record["places"]
    R = math.sqrt(squared)
    assert abs(heavy["place"][0]) == pytest.approx(R, rel=1e-6)
    assert light["place"][0] == pytest.approx(-heavy["place"][0], rel=1e-6)
    assert 1 / 3 <= light["mass"] * math.exp(2 * squared) <= 1
    assert math.log(record["value"]) == pytest.approx(plateau(squared).log_value, abs=1e-6)
    assert at_most(record["value"], mean_field.unmasked(unit_layer("negative"), 2, R).value)


def test_fit_of_records_made_by_a_formula():
    def records(kind, exponent):
        return [
            {"scores": kind, "radius_squared": r, "value": 0.4 * math.exp(exponent * r) * (1 + 1.5 * exponent * r)}
            for r in (2.0, 4.0, 6.0, 8.0, 12.0)
        ]

    for kind, exponent in (("negative", 1.0), ("rotation", 0.5), ("positive", 0.125)):
        rate = fit_radius_growth(records(kind, exponent))
        assert rate.exponent == pytest.approx(exponent, rel=1e-4) == pytest.approx(rate.true_exponent, rel=1e-4)
        assert rate.gamma == {"negative": 1.0, "rotation": 0.0, "positive": 0.125}[kind]
    with pytest.raises(InputError, match="three radii"):
        fit_radius_growth(records("negative", 1.0)[:2])
    with pytest.raises(InputError, match="one kind"):
        fit_radius_growth(records("negative", 1.0) + records("positive", 1.0))


def test_growth_with_the_radius_is_gamma():
    """The exponent fitted to exact plateaus, which ascent reaches, is γ: half that of the published bound e^{2a}."""
    records = [
        {"scores": "negative", "radius_squared": r, "value": math.exp(plateau(r).log_value)} for r in range(2, 12)
    ]
    assert fit_radius_growth(records).exponent == pytest.approx(1.0, abs=0.01)


def test_an_interrupted_command_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(experiment.RADII_SQUARED, "negative", (2, 4, 6, 8))
    out, plot = tmp_path / "out.jsonl", tmp_path / "plot.png"
    line = ["--scores", "negative", "--restarts", "4", "--out", str(out), "--plot", str(plot)]
    assert main(line) == 0
    written, shown = out.read_text(encoding="utf-8"), capsys.readouterr().out
    assert [json.loads(row)["radius_squared"] for row in written.splitlines()] == pytest.approx([2, 4, 6, 8])
    assert "A = −1" in shown and plot.read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(experiment, "ascend", None)  # nothing is computed again
    assert main(line) == 0
    assert out.read_text(encoding="utf-8") == written and capsys.readouterr().out == shown


def test_the_records_of_the_page_are_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "ascend", None)
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes((ROOT / "docs" / "images" / "mean_field_rates.jsonl").read_bytes())
    assert main(["--out", str(kept), "--plot", str(tmp_path / "rates.svg")]) == 0
    assert capsys.readouterr().out.count("true_exponent") == len(RADII_SQUARED)


def test_bad_input(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["--out", str(tmp_path / "out.jsonl"), "--plot", str(tmp_path / "plot.xyz")])
    assert left.value.code == 2 and ".png" in capsys.readouterr().err
