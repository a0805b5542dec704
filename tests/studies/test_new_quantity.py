"""A quantity needs one entry in `QUANTITIES` to appear in records, tables, figures, files and pages."""

from __future__ import annotations

import base64
import csv
import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import howsmooth
from howsmooth.cli import main
from howsmooth.lipschitz import jacobian
from howsmooth.questions.measure import QUANTITIES, Quantity
from howsmooth.questions.quantities import EvaluationPoint
from tests import reasons
from tests.tolerances import less

from .conftest import TEXT

LENGTHS = [4, 6, 8, 12]


def entrywise(point: EvaluationPoint) -> list[dict[str, Any]]:
    """‖J‖_F of the dense Jacobian of each sequence."""
    found = []
    for x in point.x if point.x.ndim == 3 else point.x[None]:
        value = float(torch.linalg.matrix_norm(jacobian(point.f, x).dense().double()))
        found.append({"value": value, "lower": None, "upper": None, "confidence": None, "status": "converged"})
    return found


@pytest.fixture
def known(monkeypatch) -> None:
    monkeypatch.setitem(
        QUANTITIES,
        "entrywise",
        Quantity("‖J‖_F", "the Frobenius norm of the Jacobian", f"{__name__}:entrywise", every_token=True),
    )


@pytest.fixture
def river(tmp_path) -> str:
    (tmp_path / "river.txt").write_text(TEXT, encoding="utf-8")
    return str(tmp_path / "river.txt")


def test_a_quantity_without_an_entry_is_refused(tiny, river):
    with pytest.raises(howsmooth.InputError, match="expected a quantity among lipschitz, "):
        howsmooth.measure(tiny, river, quantities=["entrywise"])


def test_a_quantity_with_an_entry_appears_in_all_outputs(known, tiny, river, tmp_path, capfd):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    out = {name: tmp_path / f"r.{name}" for name in ("jsonl", "csv", "svg", "html")}
    with pytest.raises(SystemExit) as left:
        main(
            [
                "measure",
                tiny,
                "--text",
                river,
                "--layers",
                "1",
                "--lengths",
                ",".join(map(str, LENGTHS)),
                "--samples",
                "2",
                "--quantities",
                "lipschitz,entrywise",
                "--json",
                str(out["jsonl"]),
                "--csv",
                str(out["csv"]),
                "--plot",
                str(out["svg"]),
                "--report",
                str(out["html"]),
            ]
        )
    shown = capfd.readouterr().out
    assert left.value.code == 0

    records = howsmooth.read(out["jsonl"])
    values = {(r["quantity"], r["n"], r["sample"]): r["value"] for r in records}
    assert len(values) == 2 * len(LENGTHS) * 2
    model = howsmooth.load(tiny)
    for n in LENGTHS:
        for sample, chunk in enumerate(model.chunks(TEXT, n, 2)):
            J = torch.func.jacrev(model.attention(1, n))(model.activations(chunk, [1])[1])
            assert values["entrywise", n, sample] == pytest.approx(float(J.norm()), rel=1e-5)
            assert less(values["lipschitz", n, sample], values["entrywise", n, sample])

    from howsmooth.report.rows import number

    medians = [number(median(values["entrywise", n, sample] for sample in (0, 1))) for n in LENGTHS]
    assert "‖J‖_F of its attention layers" in shown and all(text in shown for text in medians)
    with open(out["csv"], encoding="utf-8", newline="") as stream:
        assert sum(row["quantity"] == "entrywise" for row in csv.DictReader(stream)) == 8
    assert "‖J‖_F" in titles(records)[1] and "Lip" in titles(records)[0]
    assert out["svg"].read_text(encoding="utf-8").startswith("<?xml")
    table = page_table(out["html"])
    assert len(table["quantity"]) == 16 and table["quantity"].count("entrywise") == 8
    laws = {dict(zip(howsmooth.records.CURVE, key, strict=True))["quantity"] for key in records.fits}
    assert laws == {"lipschitz", "entrywise"}


def titles(records: howsmooth.Measurements) -> list[str]:
    return [panel.get_title(loc="left") for panel in records.plot().axes]


def page_table(page: Path) -> dict:
    """Return the table of measurements in a page."""
    text = page.read_text(encoding="utf-8")
    data = json.loads(text[text.index('id="data"') :].partition(">")[2].partition("</script>")[0])
    lines = gzip.decompress(base64.b64decode(data["measurements"])).decode("utf-8").splitlines()
    return {name: list(column) for name, *column in zip(*csv.reader(lines), strict=True)}
