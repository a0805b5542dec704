"""What a plan says: steps and memory that the run keeps to, and refusals where nothing fits."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from howsmooth.attention import SelfAttention
from howsmooth.attention.footprint import footprint
from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.spectral import LinearOperator, plan
from howsmooth.spectral.memory import stored_after
from howsmooth.studies import Normalised, Text, forecast, forecasting, measure, resolve
from tests.tolerances import at_most, less

TEXT = Text("river", "the old river moves slowly under the stone bridge and the light " * 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.studies.conftest import save_tiny

    return load(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("inputs", [TEXT, Normalised()], ids=["text", "normalised"])
def test_a_plan_at_the_length_itself_knows_the_steps(model, inputs):
    """Short lengths are probed by a whole solve there: the run takes just those steps."""
    settings = resolve(model, inputs, lengths=(8, 24), samples=1, tol=1e-2)
    said = forecast(model, inputs, settings)
    records = list(measure(model, inputs, settings))
    for cost in said.costs:
        steps = [record["steps"] for record in records if record["n"] == cost.n]
        assert cost.probed_at == cost.n and list(cost.probed.values()) == steps
        assert cost.steps == pytest.approx(sum(steps) / len(steps)) and cost.solves == len(steps) == 2
        assert cost.bytes["vectors"] == stored_after(max(steps)) * cost.n * 16 * 4
        assert cost.bytes["total"] == sum(cost.bytes[key] for key in ("taken", "tokens", "vectors", "workspace"))
    assert less(said.first_call, said.seconds) and at_most(0, said.first_call)
    json.dumps(said.as_record())


def test_longer_lengths_are_known_from_shorter_ones(model, monkeypatch):
    monkeypatch.setattr(forecasting, "SHORTEST", 8)
    monkeypatch.setattr(forecasting, "QUICK_HERE", 0.0)
    settings = resolve(model, Normalised(), layers=(1,), lengths=(32,), samples=3, tol=1e-2)
    (cost,) = forecast(model, Normalised(), settings).costs
    assert cost.probed_at == 16 and set(cost.pairs) == {8, 16, 32} and cost.measured_pair and cost.solves == 3
    monkeypatch.setattr(forecasting, "QUICK_ENOUGH", 0.0)
    (cost,) = forecast(model, Normalised(), settings).costs
    assert set(cost.pairs) == {8, 16} and not cost.measured_pair


def test_limits_are_kept_to(model):
    settings = resolve(model, TEXT, layers=(0,), lengths=(24,), samples=1, tol=1e-6, max_steps=5, stop="residual")
    (cost,) = forecast(model, TEXT, settings).costs
    assert cost.steps <= cost.most_steps == 5
    with pytest.raises(InputError, match="at least .* MiB for n = 24"):
        forecast(model, TEXT, dataclasses.replace(settings, max_memory=2000))


def test_what_does_not_fit_is_refused(model, monkeypatch):
    monkeypatch.setattr(forecasting, "free_memory", lambda device: 1 << 10)
    settings = resolve(model, TEXT, layers=(0,), lengths=(24,), samples=1)
    with pytest.raises(InputError, match="GiB of free memory on cpu at n = 24, got 0.0 GiB; .*--max-memory"):
        forecast(model, TEXT, settings)
    with pytest.raises(InputError, match="no plan"):
        forecast(model, TEXT, resolve(model, TEXT, kind="block", lengths=(8,), samples=1))


@pytest.mark.parametrize("n, products, stop, steps, measured", [
    (2**17, torch.float32, "interval", 9, 13.93), (2**17, torch.float32, "interval", 3, 9.43),
    (2**18, torch.bfloat16, "residual", 12, 27.85), (2**20, torch.bfloat16, "residual", 5, 84.24)])
def test_the_kernels_memory_as_measured_on_an_h200(n, products, stop, steps, measured):
    """The solver's plan, from shapes alone, is at most what was measured and a third."""
    weights = [torch.ones(768, 768) for _ in range(4)]
    taken = footprint(SelfAttention(*weights, heads=12, causal=True), n, torch.float32, products, fused=True)
    drawn = LinearOperator((768 * n, 768 * n), dtype=torch.float32, workspace=taken.workspace, held=taken.held)
    drawn.twin_size, drawn.twin_held = taken.twin_size, taken.twin_held
    budget = dataclasses.replace(plan(drawn, stop=stop, tol=1e-2), stored=stored_after(steps))
    gib = (budget.total + 4 * 768 * n) / 2**30  # and the tokens
    assert less(measured, gib, 1.32 * measured)
