"""Norms of budgets: what each method of a norm has to satisfy, and that their names are typed once."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
import torch

from howsmooth.attack import NORMS
from howsmooth.attack.feature import Budget
from howsmooth.questions.layer_attack import LayerAttackSpec
from tests.tolerances import at_most, close


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_projects_rescales_and_maximises(name):
    norm, generator = NORMS[name], torch.Generator().manual_seed(0)
    e, gradient = (torch.randn(5, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    inside = norm.project(e, 0.5)
    assert close(norm.size(inside), 0.5, 1e-12) and close(norm.size(norm.rescale(e, 2.0)), 2.0, 1e-12)
    assert close(norm.project(inside, 1.0), inside, 1e-12), "what is within a budget stays"
    best = norm.maximise(gradient, 0.5)
    assert close(norm.size(best), 0.5, 1e-12)
    assert at_most(float((inside * gradient).sum()), float((best * gradient).sum()))
    assert not norm.rescale(torch.zeros(2, 2), 1.0).any() and not norm.maximise(torch.zeros(2, 2), 1.0).any()
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    unit = norm.unit(float(x.norm()), len(x))
    assert close(unit, float(x.norm()) if name == "frobenius" else float(x.square().sum(-1).mean().sqrt()), 1e-12)


def test_commands_and_budgets_take_the_norms_of_the_registry():
    assert get_args(LayerAttackSpec.model_fields["norm"].annotation) == tuple(NORMS)
    for name, norm in NORMS.items():
        assert str(Budget(0.5, name)) == f"{norm.symbol} ≤ 0.5"
        assert norm.about in str(LayerAttackSpec.model_fields["norm"].description)


def test_norms_are_listed_without_torch():
    code = "import sys; from howsmooth.norms import NORMS; assert NORMS and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
