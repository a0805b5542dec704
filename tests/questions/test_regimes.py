"""The question "regimes": exact curves between their bounds, its spec, and its records."""

from __future__ import annotations

import math

import pytest

import howsmooth as package
from howsmooth.errors import InputError
from howsmooth.questions import find_question, record_error
from howsmooth.questions.spec import spec_of
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import records_of
from tests.tolerances import at_most, less


@pytest.mark.parametrize("scores", ["negative", "positive"])
def test_curves_lie_between_their_bounds(scores):
    found = package.ask("regimes", gamma_r2=[0.5, 3.0, 200.0], to=430, points=5, scores=scores)
    assert len(found) == 15
    for record in found:
        for name in ("log_upper", "log_theorem1", "log_n_free"):
            assert at_most(record["log_value"], record[name] + 1e-9)
        assert at_most(record["log_at_radius"], record["log_value"] + 1e-9)
        assert at_most(record["log_value"], record["log_plateau"] + 1e-9)
        assert at_most(record["log_two_dirac"], record["log_plateau"] + 1e-9)
        assert at_most(record["log_plateau"], record["log_three_points"] + 1e-9)
        assert at_most(record["log_three_points"], record["log_n_free"] + 1e-9)


def test_the_bound_for_all_n_is_the_best_that_is_proved():
    """For A = +1 the bound with the right rate in R is smaller by orders of magnitude, for A = −1 the other one."""
    positive, negative = (
        package.ask("regimes", gamma_r2=[2.0], to=1, points=2, scores=scores)[0] for scores in ("positive", "negative")
    )
    assert math.exp(positive["log_n_free"]) == pytest.approx(1685.71, rel=1e-5)
    assert math.exp(negative["log_n_free"]) == pytest.approx(24.1672, rel=1e-5)
    assert less(math.exp(positive["log_three_points"]), 25.2) and less(25.1, math.exp(positive["log_three_points"]))


def test_a_curve_ends_at_its_plateau():
    record = package.ask("regimes", gamma_r2=[2.0], to=4, points=3)[-1]
    assert [record[name] for name in ("log_value", "log_plateau", "log_upper")] == pytest.approx(
        [2.5647, 2.5647, 3.1825], abs=1e-4
    )
    assert record["log_n"] == pytest.approx(4 * math.log(10))


def test_a_part_of_a_curve_is_that_of_the_whole():
    """Only what is missing is yielded, with the numbers of a run without records."""
    plan = prepare(spec_of({"question": "regimes", "gamma_r2": [1, 4], "to": 6, "points": 5}))
    whole = list(records_of(plan))
    calls: list[dict] = []
    again = list(records_of(plan, whole, progress=calls.append))
    assert again == whole and calls == []
    rest = list(records_of(plan, whole[:7]))
    assert rest[:7] == whole[:7] and rest[7:] == whole[7:]  # exact: computed in the same batch


def test_records_are_valid_and_shown():
    found = package.ask("regimes", gamma_r2=[0.0, 2.0], points=3)
    assert all(record_error(record) is None for record in found)
    assert len({record["task"] for record in found}) == len(found) and "plateau" in str(found)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"gamma_r2": [-1]}, "gamma_r2: expected comma-separated numbers from 0 to 100000"),
        ({"scores": "rotation"}, "scores: expected 'negative' or 'positive'"),
        ({"to": 0}, "to: expected a finite number from 1"),
        ({"points": 1}, "points: expected a whole number from 2"),
        ({"layers": [0]}, "unknown key 'layers' of the question regimes"),
    ],
)
def test_the_spec_refuses(fields, message):
    with pytest.raises(InputError) as refused:
        package.ask("regimes", **fields)
    assert message in str(refused.value)


def test_it_asks_no_model():
    assert not find_question("regimes").asks_models
    with pytest.raises(InputError, match="expected no model"):
        package.ask("regimes", "minilm")
