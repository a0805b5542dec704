"""Block columns of the derivative in single tokens, against the dense reference."""

import pytest
import torch

from howsmooth import InputError
from howsmooth.attention import reference
from howsmooth.attention.token_columns import TokenColumns
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import FLOAT32, assert_close

TOKENS = torch.tensor([3, 0, 2])


@pytest.mark.parametrize("d_out", [5, None])
@pytest.mark.parametrize("name", LAYERS)
def test_block_columns_are_those_of_the_dense_jacobian(name, d_out):
    f, x = layer(name, d_out=d_out), normal(50, 4, 6)
    truth = reference.jacobian(f, x).view(4 * f.d_out, 4, 6).transpose(0, 1)[TOKENS]
    columns = TokenColumns(f, x, TOKENS)
    assert_close(columns.dense(), truth)
    u = normal(51, 3, 4 * f.d_out)
    assert_close(columns.rmatvec(u), (truth.mT @ u.unsqueeze(-1)).squeeze(-1))


def test_other_tokens_share_what_does_not_depend_on_them():
    f, x = layer("softcap"), normal(50, 4, 6)
    truth = reference.jacobian(f, x).view(4 * f.d_out, 4, 6).transpose(0, 1)
    first = TokenColumns(f, x, TOKENS)
    other = first.at(torch.tensor([1]))
    assert_close(other.dense(), truth[[1]])
    assert_close(first.dense(), truth[TOKENS])  # unchanged
    assert other.outputs is first.outputs
    assert_close(TokenColumns(f, x).dense(), truth)  # all tokens by default


def test_the_reference_is_in_float64_and_shared():
    f, x = layer("grouped"), normal(50, 4, 6)
    columns = TokenColumns(f.converted(dtype=torch.float32), x.float(), TOKENS)
    truth = reference.jacobian(f.converted(dtype=torch.float32), x.float()).view(4 * f.d_out, 4, 6).transpose(0, 1)
    assert_close(columns.dense(), truth[TOKENS], FLOAT32)
    assert columns.precise().dtype == torch.float64
    assert_close(columns.precise().dense(), truth[TOKENS])
    assert_close(columns.at(torch.tensor([1])).precise().dense(), truth[[1]])
    assert columns.precise().outputs is columns.at(torch.tensor([1])).precise().outputs


def test_a_batch_of_sequences_is_refused():
    with pytest.raises(InputError, match="one sequence"):
        TokenColumns(layer("two heads"), normal(50, 2, 4, 6))
