"""Invalid arguments of `Normalisation`; its outputs are tested with constraints and bounds."""

import math

import pytest
import torch

from howsmooth import InputError
from howsmooth.attention import Normalisation

ONES = torch.ones(3)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Normalisation([1.0]), "the gain as a tensor of a floating dtype, got list"),
        (lambda: Normalisation(None), "the gain as a tensor of a floating dtype, got NoneType"),
        (lambda: Normalisation(ONES.long()), "the gain as a tensor of a floating dtype, got torch.int64"),
        (lambda: Normalisation(ONES, [0.0] * 3), "the bias as a tensor of a floating dtype, got list"),
        (lambda: Normalisation(ONES, torch.zeros(3, dtype=torch.bool)), "the bias as a tensor .* got torch.bool"),
        (lambda: Normalisation(torch.ones(0)), r"a gain \(d,\), d ≥ 1"),
        (lambda: Normalisation(torch.tensor(1.0)), r"a gain \(d,\)"),
        (lambda: Normalisation(ONES, torch.ones(2)), r"a bias of the same shape, got \(3,\) and \(2,\)"),
        (lambda: Normalisation(ONES, eps="a"), "eps as a finite number from 0, got 'a'"),
        (lambda: Normalisation(ONES, eps=math.nan), "eps as a finite number"),
        (lambda: Normalisation(ONES, eps=-1.0), "eps as a finite number"),
        (lambda: Normalisation(math.nan * ONES), "NaN or ∞ in the gain"),
        (lambda: Normalisation(ONES, math.inf * ONES), "NaN or ∞ in the bias"),
        (lambda: Normalisation(ONES)([1.0, 2.0, 3.0]), r"tokens \(…, 3\), got list"),
        (lambda: Normalisation(ONES)(torch.ones(2, 4)), r"tokens \(…, 3\), got shape \(2, 4\)"),
        (lambda: Normalisation(ONES)(torch.tensor(1.0)), r"tokens \(…, 3\), got shape \(\)"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(InputError, match="Normalisation: expected .*" + message):
        make()
