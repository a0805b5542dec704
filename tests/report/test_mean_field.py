"""Figures and tables for attention on measures, made from records."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from tests import reasons

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)

from howsmooth.lipschitz.regimes import lengths_up_to
from howsmooth.report.figure import draw, save_figure
from howsmooth.report.mean_field_charts import masked_picture, regimes_picture
from howsmooth.report.mean_field_tables import masked_tables, regimes_tables, scientific
from howsmooth.report.style import THEMES

REGIMES = [
    {
        "gamma_r2": g,
        "scores": "negative",
        "log_n": n,
        "log_value": min(n / 2, g),
        "log_upper": min(n / 2, g) + 1,
        "log_at_radius": n / 4,
        "log_crossover": 2 * g,
        "log_plateau": g,
        "log_two_dirac": g - 0.1,
        "log_three_points": g,
        "log_n_free": g + 1,
    }
    for g in (2.0, 1000.0)
    for n in (1.0, 500.0, 3000.0)
]
MASKED = [
    {
        "a": a,
        "p": p,
        "n": 8,
        "attained": 1.1,
        "running_mean": 1.0,
        "bound": None if p == 1.0 else 2.0,
        "log_bound": None if p == 1.0 else math.log(2),
        "stated": 1.5,
        "verdict": verdict,
        "unmasked": 1.2,
    }
    for a in (0.0, 1.0)
    for p, verdict in ((1.0, "false"), (2.0, "open"), ("inf", "true"))
]


@pytest.mark.parametrize("theme", THEMES)
def test_figures_are_drawn_in_every_theme(theme):
    for picture in (regimes_picture(REGIMES), masked_picture(MASKED)):
        figure = draw(picture, theme=theme)
        buffer = io.BytesIO()
        save_figure(figure, buffer)
        assert buffer.getvalue().startswith(b"\x89PNG")


def test_tables_have_a_row_for_each_record():
    (shown,) = regimes_tables(REGIMES)
    assert len(shown) == 2 and shown.headings[-1] == "ratio"
    assert "1.97·10^434" in shown.values("plateau") + shown.values("from n* on")
    (masked,) = masked_tables(MASKED)
    assert masked.values("p") == ["1", "2", "∞"] * 2 and masked.values("≤ proved")[0] == "none"
    assert str(masked.values("which is")[1]) == "open"


def test_a_table_of_many_lengths_fits_a_hundred_columns():
    records = [
        REGIMES[0]
        | {
            "gamma_r2": g,
            "log_n": n,
            "log_value": min(n, 2 * g),
            "log_plateau": 2 * g,
            "log_three_points": 2 * g,
            "log_crossover": 2 * g,
            "log_two_dirac": 2 * g,
            "log_n_free": 2 * g + 1,
        }
        for g in (0.5, 128.0)
        for n in lengths_up_to(40, 61)
    ]
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(*regimes_tables(records))
    assert "γR²" in buffer.getvalue() and "…" not in buffer.getvalue() and "10^40" in buffer.getvalue()


def test_numbers():
    assert scientific(math.log(2) + 5000 * math.log(10)) == "2.00·10^5000"
    assert lengths_up_to(40, 5)[-1] == pytest.approx(40 * math.log(10))
