"""The question "masked": proved constants above what is attained, its spec, and its records."""

from __future__ import annotations

import math

import pytest

import howsmooth as package
from howsmooth.errors import InputError
from howsmooth.questions import record_error
from howsmooth.questions.spec import spec_of
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import records_of
from tests.tolerances import at_most, less


def test_masked_constants():
    found = package.ask("masked", p=[1.0, 2.0, math.inf], sizes=[0.0, 1.0], atoms=12, restarts=3, steps=30)
    assert len(found) == 6 and all(record_error(record) is None for record in found)
    for record in found:
        assert at_most(record["running_mean"] - 1e-9, record["attained"])
        if record["p"] == 1.0:
            assert record["bound"] is None and record["verdict"] == "false"
            assert record["running_mean"] == pytest.approx(sum(1 / i for i in range(1, 13)))
        else:
            assert at_most(record["attained"], record["bound"], tol=1e-9)
    by = {(record["a"], record["p"]): record for record in found}
    assert by[0.0, 2.0]["verdict"] == "false" and less(1.0, by[0.0, 2.0]["attained"])
    assert by[0.0, 2.0]["stated"] == pytest.approx(1.0)
    assert by[1.0, 2.0]["verdict"] == "true" and by[0.0, "inf"]["verdict"] == "true"
    assert "which is" in str(found)


def test_the_published_masked_bound_is_exceeded_where_equal_tokens_do_not_exceed_it():
    """At a = 0.17 the statement, 2.12, is above Hardy's 2 but below what alternating tokens approach."""
    (record,) = package.ask("masked", p=2, sizes=0.17, atoms=4, restarts=2, steps=5)
    assert record["verdict"] == "false" and less(2.0, record["stated"], record["limit"])
    assert record["attained"] == record["limit"]  # exact: the largest of three is copied


def test_existing_records_are_not_computed_again():
    def plan(p):
        return prepare(
            spec_of({"question": "masked", "p": p, "sizes": [0.3], "atoms": 3, "restarts": 2, "steps": 2, "seed": 5})
        )

    calls: list[dict] = []
    first = list(records_of(plan([2.0]), progress=calls.append))
    both = list(records_of(plan([2.0, math.inf]), first, progress=calls.append))
    assert [record["p"] for record in both] == [2.0, "inf"]  # exact: as given
    assert both[0] == first[0]
    assert [(call["a"], call["p"]) for call in calls] == [(0.3, 2.0), (0.3, "inf")]
    assert first[0]["seed"] == 5


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"p": [0.5]}, "p: expected comma-separated numbers from 1 to 1e+06, or inf"),
        ({"sizes": [51]}, "sizes: expected comma-separated numbers from 0 to 50"),
        ({"atoms": 1}, "atoms: expected a whole number from 2 to 512"),
        ({"steps": 0}, "steps: expected a whole number from 1"),
    ],
)
def test_the_spec_refuses(fields, message):
    with pytest.raises(InputError) as refused:
        package.ask("masked", **fields)
    assert message in str(refused.value)
