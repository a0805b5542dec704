from __future__ import annotations

import math

import pytest

from howsmooth.studies import fits_of, growth, growth_of


def points(layer: int, exponent: float, lengths, **changes) -> list[dict]:
    return [
        {"model": "m", "layer": layer, "head": None, "n": n, "value": 3 * n**exponent, "upper": 4 * n**exponent,
         **changes}
        for n in lengths
    ]


def test_each_map_gets_its_own_law():
    fits = growth_of(points(0, 0.25, (8, 16, 64)) + points(1, 0.5, (8, 64)))
    assert fits["m", 0, None].exponent == pytest.approx(0.25)
    assert fits["m", 1, None].exponent == pytest.approx(0.5)
    assert fits["m", 1, None].constant == pytest.approx(3)


def test_no_law_from_one_length_or_from_zeros():
    assert growth_of(points(0, 0.25, (8, 8))) == {}
    assert growth_of(points(0, 0.25, (8, 16), value=0.0)) == {}
    assert growth_of(points(0, 0.25, (8, 16), value=math.inf)) == {}
    assert growth_of([]) == {}


def test_lower_bounds_alone_have_no_say_in_a_law():
    known, below = points(0, 0.25, (8, 16, 64)), points(0, 0.25, (128,), value=0.1, upper=None)
    assert growth_of(known + below)["m", 0, None].exponent == pytest.approx(0.25)
    assert growth_of(below + points(0, 0.25, (256,), upper=None)) == {}


def test_a_curve_is_fitted_once_however_often_it_is_shown(monkeypatch):
    fitted, fit = [], growth.fit_law
    monkeypatch.setattr(growth, "fit_law", lambda *curve, **options: fitted.append(curve) or fit(*curve, **options))
    records = [{**point, "sample": 0} for layer in (0, 1) for point in points(layer, 0.1 + layer, (9, 17, 33))]
    first = fits_of(records, draws=0)
    assert fits_of(records, draws=0) == first and len(fitted) == 2  # exact: the same objects
    assert len(fits_of(records, draws=7)) == 2 and len(fitted) == 4
