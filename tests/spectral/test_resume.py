"""`saved_products`: a solve that was stopped goes on where it was."""

import pytest
import torch

from howsmooth import InputError, local_lipschitz
from howsmooth.spectral import MatrixOperator, before_each_product, saved_products, singular_values
from tests.attention.cases import layer, normal


class Stop(BaseException):
    """Raised by the hook."""


def stop_after(products):
    left = iter(range(products))

    def hook():
        if next(left, None) is None:
            raise Stop

    return hook


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_product_is_computed_twice_and_the_result_is_the_same(tmp_path, dtype):
    f, x = layer("causal").converted(dtype=dtype), normal(50, 9, 6).to(dtype)
    alone = local_lipschitz(f, x)
    computed = []
    for products in (3, 8, 1000):
        try:
            with before_each_product(stop_after(products)), saved_products(tmp_path) as saved:
                found = local_lipschitz(f, x)
        except Stop:
            pass
        computed.append(saved.computed)
    assert saved.read > 0 and saved.computed > 0
    assert sum(computed) == alone.products == saved.read + saved.computed
    # exact: the same arithmetic
    assert (found.value, found.lower, found.upper, found.steps) == (alone.value, alone.lower, alone.upper, alone.steps)


def test_an_unfinished_file_is_computed_again(tmp_path):
    operator = MatrixOperator(normal(1, 40, 30))
    with saved_products(tmp_path):
        alone = singular_values(operator)
    files = sorted(tmp_path.iterdir())
    files[-1].rename(files[-1].with_suffix(".unfinished"))
    with saved_products(tmp_path) as saved:
        found = singular_values(operator)
    assert saved.computed == 1 and saved.read == alone.products - 1
    assert found.value == alone.value  # exact: the same arithmetic


def test_products_of_another_solve_are_refused(tmp_path):
    with saved_products(tmp_path):
        singular_values(MatrixOperator(normal(1, 40, 30)))
    with saved_products(tmp_path), pytest.raises(InputError, match="another folder"):
        singular_values(MatrixOperator(normal(1, 40, 30)), seed=1)


@pytest.mark.parametrize("factor", [3.0, 1 + 1e-9])
def test_products_of_another_operator_are_refused_although_the_seed_is_the_same(tmp_path, factor):
    with saved_products(tmp_path):
        singular_values(MatrixOperator(normal(1, 40, 30)))
    with saved_products(tmp_path), pytest.raises(InputError, match="the same layer, tokens"):
        singular_values(MatrixOperator(factor * normal(1, 40, 30)))


def test_each_solve_in_a_context_is_compared(tmp_path):
    first, second, other = (MatrixOperator(normal(seed, 40, 30)) for seed in (1, 2, 3))
    with saved_products(tmp_path):
        singular_values(first)
        singular_values(second)
    with saved_products(tmp_path) as saved:
        singular_values(first)
        assert saved.computed == 0
        with pytest.raises(InputError, match="the same layer, tokens"):
            singular_values(other)


def test_a_file_is_not_a_folder(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(InputError, match="expected a folder"), saved_products(path):
        pass


def test_a_folder_inside_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    message = r"expected a folder for products, got .*file.inside \(.+\); choose another"
    with pytest.raises(InputError, match=message), saved_products(tmp_path / "file" / "inside"):
        pass
