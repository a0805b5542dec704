"""The certificate on a ball against the largest value that ascent finds inside it."""

import pytest
import torch

from howsmooth import local_lipschitz
from howsmooth.attack import Near, ascend
from howsmooth.bounds.ball import certify_ball
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import at_most, less


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("eps", [0.02, 0.5])
def test_ascent_stays_below(name, eps):
    n = 4 if name == "bias table" else 8  # as large as the table
    f, x = layer(name), 0.7 * normal(5, n, 6)
    starts = torch.stack([x, *(x + eps * e / e.norm(dim=-1, keepdim=True) for e in normal(6, 3, n, 6))])
    found = ascend(f, starts, Near(x, eps), steps=40)
    assert less(found.start[0], found.value)  # it climbed: the ball holds rougher inputs than its centre
    assert Near(x, eps).contains(found.x)
    certificate = certify_ball(f, x, eps, at_center=local_lipschitz(f, x, tol=1e-6).upper)
    assert all(value is None or at_most(found.estimate.lower, value) for value in certificate.parts.values())
