import pytest
import torch

from tests.tolerances import assert_close


@pytest.mark.parametrize("actual", [[1.0, 2.1], [1.0, float("nan")], [1.0], [float("inf"), 2.0]])
def test_assert_close_can_fail(actual):
    with pytest.raises(AssertionError):
        assert_close(torch.tensor(actual), torch.tensor([1.0, 2.0]), 1e-3)


def test_assert_close_accepts_what_is_close():
    assert_close(torch.tensor([1.0, 2.0 + 1e-6]), torch.tensor([1.0, 2.0]), 1e-5)
    with pytest.raises(AssertionError, match="largest difference"):
        assert_close(torch.tensor([1.0, 2.0 + 1e-4]), torch.tensor([1.0, 2.0]), 1e-5)
