import math

import pytest
import torch

from tests.tolerances import assert_close, at_most, close, less, same_record


@pytest.mark.parametrize("actual", [[1.0, 2.1], [1.0, float("nan")], [1.0], [float("inf"), 2.0]])
def test_assert_close_can_fail(actual):
    with pytest.raises(AssertionError):
        assert_close(torch.tensor(actual), torch.tensor([1.0, 2.0]), 1e-3)
    with pytest.raises(AssertionError):
        assert_close(actual, [1.0, 2.0], 1e-3)
    assert not close(actual, [1.0, 2.0], 1e-3)


def test_assert_close_accepts_what_is_close():
    assert_close(torch.tensor([1.0, 2.0 + 1e-6]), torch.tensor([1.0, 2.0]), 1e-5)
    assert_close(0.1 + 0.2, 0.3)
    assert close(0.1 + 0.2, 0.3) and close([], []) and not close([], 0.3)
    with pytest.raises(AssertionError, match="largest difference"):
        assert_close(torch.tensor([1.0, 2.0 + 1e-4]), torch.tensor([1.0, 2.0]), 1e-5)


def test_the_last_bit_decides_no_order():
    above = math.nextafter(3.0, 4.0)
    assert at_most(above, 3.0) and at_most(3.0, above) and at_most(-above, -3.0, 3.0, above)
    assert not less(3.0, above) and not less(3.0, 3.0)
    assert less(3.0, 3.001, 4) and not at_most(3.001, 3.0) and at_most(3.001, 3.0, tol=1e-3)
    assert not at_most(1.0, 3.0, 2.0) and not less(1.0, 3.0, 2.0)


def test_order_of_tensors_of_infinities_and_of_nothing():
    path = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    assert at_most(path[:-1], path[1:]) and not less(path[:-1], path[1:]) and not at_most(path, 1.5)
    assert at_most(math.inf, math.inf) and not less(math.inf, math.inf)
    assert less(-math.inf, 0.0, math.inf) and not at_most(math.inf, 1e300) and not at_most(0.0, -math.inf)
    assert not at_most(math.nan, 1.0) and not at_most(1.0, math.nan) and not less(math.nan, 1.0)
    with pytest.raises(AssertionError, match="no order"):
        at_most(1.0)


def test_records_agree_up_to_rounding():
    record = {"n": 8, "value": 3.0, "top": [{"share": 0.1, "token": "a"}], "seconds": 1.0, "head": None}
    assert same_record(record, {**record, "value": math.nextafter(3.0, 4.0)})
    assert same_record(record, {**record, "seconds": 2.0}, but=("seconds",))
    for change in (
        {"n": 9},
        {"value": 3.0001},
        {"top": [{"share": 0.2, "token": "a"}]},
        {"head": 0},
        {"value": 3},
        {"top": [{"share": 0.1, "token": "b"}]},
        {"top": []},
        {"more": 1},
        {"value": math.nan},
    ):
        assert not same_record(record, {**record, **change}), change
