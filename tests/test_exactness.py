"""No test compares computed floats exactly; exact comparisons are found by `tests/exactness.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exactness import exact_comparisons

HERE = Path(__file__).parent
OWN = ("exactness.py", "test_exactness.py", "tolerances.py", "test_tolerances.py")  # they test exact comparisons
FILES = sorted(path.relative_to(HERE) for path in HERE.rglob("*.py") if path.name not in OWN)


def test_floats_are_compared_with_a_tolerance():
    found = [line for path in FILES for line in exact_comparisons((HERE / path).read_text(encoding="utf-8"), path)]
    assert not found, "\n".join(
        [
            "expected comparisons of computed floats through tests/tolerances.py or pytest.approx, got these lines; "
            "if both sides have the same bits by construction, give the reason in a comment: # exact: why",
            *map(str, found),
        ]
    )


@pytest.mark.parametrize(
    "assertion",
    [
        "assert found.value <= truth",
        "assert found.lower <= truth <= found.upper",
        "assert best <= found.value <= best * 1.02",  # once failed by one bit on another machine
        "assert local(f, mu).value == local(f, (x, w)).value",  # likewise
        "assert float(torch.linalg.matrix_norm(J, 2)) == 3",
        "assert record['value'] == 2.5",
        "assert 0.5 != anything",
        "assert torch.equal(first.x, again.x)",
        "assert numpy.array_equal(a, b)",
        "assert a.equal(b)",
        "assert values == sorted(values)",
        "assert value in values",
        "assert value not in [1.0, 2.0]",
        "assert (x.norm(dim=-1) <= y.norm(dim=-1)).all()",
        "assert all(a.value < b.value for a, b in pairs)",
        "assert [r['value'] for r in records] == others",
        "gap = (a - b) / 3\nassert gap < other",
        "def test():\n    one, two = f(x).norm(), 7\n    with open(p):\n        assert one > g(x)",
        "for sigma in found:\n    assert sigma == other",
        "assert 1e-3 * x < y",
        "assert value == 1  # exact:",  # a mark without a reason
        "# exact: why\nassert n == 1\nassert value == 1",  # a mark belongs to one assertion
    ],
)
def test_an_exact_comparison_is_found(assertion):
    assert len(exact_comparisons(assertion)) == 1


@pytest.mark.parametrize(
    "assertion",
    [
        "assert at_most(found.lower, truth, found.upper)",
        "assert found.value == pytest.approx(truth, rel=1e-9)",
        "assert [r['value'] for r in records] == pytest.approx([1.0, 2.0])",
        "assert gap < 1e-9",  # a threshold has a margin of its own
        "LIMIT = 1e-3\nassert error < LIMIT",
        "assert found.steps <= limit and len(values) == 3",
        "assert result.code == 0 and 'value' in result.out",
        "assert record['status'] == 'converged'",
        "assert found.confidence == 0.999",
        "assert found.upper == math.inf",  # no rounding leads there
        "assert x.shape == y.shape and x.dtype == torch.float64",
        "assert errors == []",
        "assert torch.equal(a.argmax(-1), b)",
        "assert value == other  # exact: copied",
        "# exact: copied\nassert value == other",
        "assert same(\n    value == other,  # exact: copied\n)",
        "inside = value <= other",  # no assertion
    ],
)
def test_other_comparisons_are_accepted(assertion):
    assert exact_comparisons(assertion) == []
