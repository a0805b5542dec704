"""What the questions about flows share: their specs can be stored, and figures have arrays that fit."""

from __future__ import annotations

import numpy
import pytest

from howsmooth.errors import InputError
from howsmooth.questions.spec import spec_of
from howsmooth.records.arrays import evenly_spaced, pack, unpack
from tests.tolerances import assert_close, at_most


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "particles", "example": "sphere", "particles": 4},
        {"question": "weights", "layers": [0], "heads": [1]},
        {"question": "gaussian", "A": [[1.0, 0.5], [0.0, 1.0]], "mean": [0.0, 0.0]},
        {"question": "pde", "particles": [8, 16], "order": 1},
    ],
)
def test_a_stored_spec_is_read_back(fields):
    spec = spec_of(fields)
    again = spec_of(spec.declared())
    assert again.determining() == spec.determining() and again.declared() == spec.declared()


@pytest.mark.parametrize("bits", [8, 16])
def test_packed_arrays_are_exact_up_to_a_level(bits):
    values = numpy.random.default_rng(0).normal(size=(3, 5, 2)) * numpy.array([1.0, 1e6, 0.0])[:, None, None]
    found, span = unpack(pack(values, bits)), numpy.ptp(values.reshape(3, -1), 1)
    assert at_most((abs(found - values).max((1, 2)) - 0.51 * span / (2**bits - 1)).max(), 0.0)
    assert_close(found[2], values[2])


def test_arrays_that_do_not_fit_their_shape_are_refused():
    packed = pack(numpy.ones((2, 3)))
    for wrong in ({"shape": [2, 4]}, {"shape": [10**6, 10**6]}, {"data": "!"}, {"data": "AAAA"}, {"low": [1.0]}):
        with pytest.raises(InputError, match="an array of"):
            unpack({**packed, **wrong})


def test_evenly_spaced_has_both_ends():
    assert evenly_spaced(1, 5) == [0] and evenly_spaced(100, 2) == [0, 99] and len(evenly_spaced(100, 7)) == 7
