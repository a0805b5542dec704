"""Pictures and tables of measures, in both themes, from records alone."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from tests import reasons

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)

from howsmooth.report.figure import THEMES, save_figure  # noqa: E402
from howsmooth.report.mean_field_figure import masked_figure, rates_figure, regimes_figure  # noqa: E402
from howsmooth.report.mean_field_table import masked_table, regimes_table, scientific  # noqa: E402
from howsmooth.studies import lengths_up_to  # noqa: E402

REGIMES = [{"gamma_r2": g, "scores": "negative", "log_n": n, "log_value": min(n / 2, g), "log_upper": min(n / 2, g) + 1,
            "log_at_radius": n / 4, "log_crossover": 2 * g, "log_plateau": g, "log_two_dirac": g - 0.1,
            "log_n_free": g + 1}
           for g in (2.0, 1000.0) for n in (1.0, 500.0, 3000.0)]
MASKED = [{"a": a, "p": p, "n": 8, "attained": 1.1, "running_mean": 1.0, "bound": None if p == 1.0 else 2.0,
           "log_bound": None if p == 1.0 else math.log(2), "stated": 1.5, "verdict": verdict, "unmasked": 1.2}
          for a in (0.0, 1.0) for p, verdict in ((1.0, "false"), (2.0, "open"), ("inf", "true"))]
RATES = [{"scores": "rotation", "radius_squared": r, "value": math.exp(r / 2)} for r in (2.0, 4.0, 8.0)]


@pytest.mark.parametrize("theme", THEMES)
def test_pictures(theme):
    rate = {"scores": "rotation", "exponent": 0.5, "turning": 0.0, "constant": 1.0, "true_exponent": 0.5}
    for figure in (regimes_figure(REGIMES, theme=theme), masked_figure(MASKED, theme=theme),
                   rates_figure(RATES, [rate], theme=theme)):
        buffer = io.BytesIO()
        save_figure(figure, buffer)
        assert buffer.getvalue().startswith(b"\x89PNG")


def test_tables():
    shown = regimes_table(REGIMES)
    assert shown.row_count == 2 and [column.header for column in shown.columns][-1] == "apart"
    assert "1.97·10^434" in list(shown.columns[5].cells) + list(shown.columns[4].cells)
    cells = [list(column.cells) for column in masked_table(MASKED).columns]
    assert cells[1] == ["1", "2", "∞"] * 2 and cells[4][0] == "none" and str(cells[-1][1]) == "open"


def test_a_table_of_many_lengths_fits_a_hundred_columns():
    records = [REGIMES[0] | {"gamma_r2": g, "log_n": n, "log_value": min(n, 2 * g), "log_plateau": 2 * g,
                             "log_crossover": 2 * g, "log_two_dirac": 2 * g, "log_n_free": 2 * g + 1}
               for g in (0.5, 128.0) for n in lengths_up_to(40, 61)]
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(regimes_table(records))
    assert "γR²" in buffer.getvalue() and "…" not in buffer.getvalue() and "10^40" in buffer.getvalue()


def test_numbers():
    assert scientific(math.log(2) + 5000 * math.log(10)) == "2.00·10^5000"
    assert lengths_up_to(40, 5)[-1] == pytest.approx(40 * math.log(10))
