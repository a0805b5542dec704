"""The search for where the published masked bound is exceeded: fast products, certificates, records, and the page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import experiments.masked_threshold as experiment
from experiments.masked_threshold import AlternatingAtoms, certify, exceeded_up_to, limit_norm, main, sentence, stated
from howsmooth.bounds import mean_field
from howsmooth.errors import InputError
from howsmooth.lipschitz.mean_field import mean_field_jacobian
from howsmooth.lipschitz.regimes import unit_layer
from howsmooth.records import read_lines
from tests.tolerances import assert_close, at_most, less

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("a, atoms, ratio, block", [(0.16, 60, 1.15, 7), (1.0, 50, 1.5, 4), (0.0, 30, 1.0, 5)])
def test_prefix_sums_are_the_jacobian_of_the_layer(a, atoms, ratio, block):
    operator = AlternatingAtoms(a, atoms, ratio, block)
    logs = torch.arange(atoms, dtype=torch.float64) * math.log(ratio)
    truth = mean_field_jacobian(unit_layer("negative", a, causal=True), operator.sign.unsqueeze(1), logs).dense()
    assert_close(operator.dense(), truth)
    assert_close(torch.stack([operator.rmatvec(row) for row in torch.eye(atoms, dtype=torch.float64)]), truth)


@pytest.mark.parametrize(
    "measure, value",
    [((0.16, 400, 1.15, 40), 2.0894), ((0.17, 900, 1.05, 115), 2.1442), ((0.175, 1800, 1.03, 189), 2.1671)],
)
def test_few_atoms_exceed_the_published_bound_where_equal_tokens_do_not(measure, value):
    """There the bound is above 2, which is all that equal tokens reach."""
    a, record = measure[0], certify(*measure)
    assert measure in experiment.SMALL
    assert record["status"] == "converged" and record["exceeds"]
    assert record["value"] == pytest.approx(value, abs=5e-5)
    assert less(2, stated(a), record["lower"]) and at_most(record["value"], record["upper"])
    assert at_most(record["upper"], mean_field.masked(unit_layer("negative", a), 2, 1.0).value)
    assert less(a, record["false_up_to"]) and stated(record["false_up_to"]) == pytest.approx(record["lower"])


def test_finite_patterns_approach_the_limit_from_below():
    a, half_period = 0.17, 5.8
    limit = limit_norm(a, half_period)
    values = []
    for atoms in (500, 2000, 8000):
        ratio, block = experiment.pattern(half_period, atoms, log_time=20 * math.log10(atoms))
        values.append(certify(a, atoms, ratio, block)["value"])
    assert less(*values, limit) and limit == pytest.approx(2.1889, abs=1e-3)


def test_the_command_resumes(tmp_path, monkeypatch, capsys):
    line = ["--atoms", "3000", "--log-time", "60", "--links", "2", "--sizes", "0.17", "--seeds", "0"]
    line += ["--out", str(tmp_path / "found.jsonl")]
    monkeypatch.setattr(experiment, "LIMIT_BLOCKS", (8, 16))
    assert main(line) == 0
    shown = capsys.readouterr().out
    records = [json.loads(row) for row in (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["kind"] for record in records] == ["limit", "threshold", *5 * ["atoms"]]
    first, second = records[-2:]
    assert at_most(first["a"], exceeded_up_to(2.0)) and at_most(second["a"], first["false_up_to"])
    assert less(first["false_up_to"], second["false_up_to"], records[1]["a"])
    for name in ("certify", "limit_record", "threshold_record"):
        monkeypatch.setattr(experiment, name, None)  # nothing is computed again
    assert main(line) == 0 and capsys.readouterr().out == shown


def test_bad_input(tmp_path, capsys):
    with pytest.raises(InputError, match="within e"):
        AlternatingAtoms(0.1, 10_000, 1.5, 10)
    with pytest.raises(InputError, match="block ≥ 1"):
        AlternatingAtoms(0.1, 10, 1.5, 0)
    with pytest.raises(SystemExit) as left:
        main(["--out", str(tmp_path / "nowhere" / "found.jsonl")])
    assert left.value.code == 2 and "folder that exists" in capsys.readouterr().err


def test_the_page_has_the_numbers_of_its_records():
    path = DOCS / "images" / "masked_threshold.jsonl"
    records = read_lines(path, experiment.key_of, "records", '{"kind": ').records
    page = (DOCS / "mean_field.md").read_text(encoding="utf-8")
    (threshold,) = (record for record in records if record["kind"] == "threshold")
    chained = [record for record in records if record["kind"] == "atoms" and record["atoms"] > 10_000]
    reached = threshold["equal_tokens"]
    for record in sorted(chained, key=lambda record: record["a"]):  # the intervals cover everything up to the last
        assert record["exceeds"] and at_most(record["a"], reached) and sentence(record)
        reached = max(reached, record["false_up_to"])
    assert less(reached, threshold["a"], threshold["true_from"])
    for number in (
        f"a ≤ {math.floor(reached * 1e4) / 1e4:.4f}",
        f"a = {threshold['a']:.4f}",
        f"a ≥ {math.ceil(threshold['true_from'] * 1e3) / 1e3:.3f}",
        f"{chained[0]['atoms']:,} atoms",
        f"{2 * threshold['half_period']:.1f}",
    ):
        assert number in page
    free = [record for record in records if record["kind"] == "free"]
    assert free and all(less(record["value"], record["alternating"]) for record in free)
