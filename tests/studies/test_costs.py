"""What a plan says: steps and memory that the run keeps to, and refusals where nothing fits."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from howsmooth.attention import SelfAttention
from howsmooth.attention.jacobian import estimate_memory
from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.spectral import LinearOperator, plan
from howsmooth.spectral.memory import stored_after
from howsmooth.studies import costs, prepare_model, records_of, spec_of
from howsmooth.studies.costs import PLAN_PAIR, CostModel, extrapolated
from howsmooth.studies.plan import Plan, prepare
from howsmooth.texts.corpora import Corpus
from tests.tolerances import at_most, less

TEXT = Corpus("river", ("the old river moves slowly under the stone bridge and the light " * 20,))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.studies.conftest import save_tiny

    return load(save_tiny(tmp_path_factory.mktemp("tiny")))


def planned(model, **fields) -> Plan:
    return prepare_model(
        spec_of({"samples": 1, "tol": 1e-2, **fields}), model, None if fields.get("inputs") == "normalised" else TEXT
    )


def forecast(plan: Plan, model, **options) -> costs.Forecast:
    return CostModel(model, plan.subjects[0], patience=PLAN_PAIR, **options).forecast()


@pytest.mark.parametrize("inputs", ["text", "normalised"])
def test_a_plan_at_the_length_itself_knows_the_steps(model, inputs):
    """Short lengths are probed by a whole solve there: the run takes just those steps."""
    plan = planned(model, inputs=inputs, lengths=[8, 24])
    said, records = forecast(plan, model), list(records_of(plan))
    for cost in said.costs:
        steps = [record["steps"] for record in records if record["n"] == cost.n]
        assert cost.probed_at == cost.n and list(cost.probed.values()) == steps
        assert cost.steps == pytest.approx(sum(steps) / len(steps)) and cost.solves == len(steps) == 2
        assert cost.bytes["vectors"] == stored_after(max(steps)) * cost.n * 16 * 4
        assert cost.bytes["total"] == sum(cost.bytes[key] for key in ("taken", "tokens", "vectors", "workspace"))
    assert less(said.first_call, said.seconds) and at_most(0, said.first_call)
    json.dumps(said.as_record())


def test_longer_lengths_are_known_from_shorter_ones(model, monkeypatch):
    monkeypatch.setattr(costs, "SHORTEST", 8)
    monkeypatch.setattr(costs, "QUICK_HERE", 0.0)
    plan = planned(model, inputs="normalised", layers=[1], lengths=[32], samples=3)
    (cost,) = forecast(plan, model).costs
    assert cost.probed_at == 16 and set(cost.pairs) == {8, 16, 32} and cost.measured_pair and cost.solves == 3
    monkeypatch.setattr(costs, "QUICK_ENOUGH", 0.0)
    (cost,) = forecast(plan, model).costs
    assert set(cost.pairs) == {8, 16} and not cost.measured_pair


def test_limits_are_kept_to(model):
    limited = dict(layers=[0], lengths=[24], tol=1e-6, max_steps=5, stop="residual")
    (cost,) = forecast(planned(model, **limited), model).costs
    assert cost.steps <= cost.most_steps == 5
    with pytest.raises(InputError, match=r"at least .* MiB for n = 24"):
        planned(model, **limited, max_memory=2000)


def test_what_does_not_fit_is_refused(model, monkeypatch):
    monkeypatch.setattr(costs, "free_memory", lambda device: 1 << 10)
    with pytest.raises(InputError, match=r"GiB of free memory on cpu at n = 24, got 0.0 GiB; .*--max-memory"):
        forecast(planned(model, layers=[0], lengths=[24]), model)
    with pytest.raises(InputError, match="no plan"):
        forecast(planned(model, map="block", lengths=[8]), model)


class Clock:
    """A clock that moves by one second whenever it is read: every timed call takes one."""

    def __init__(self):
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return float(self.reads)


def test_the_time_of_a_solve_is_steps_and_the_rest_in_pairs_of_products(model):
    """Every call takes one second on this clock: a pair one, so that a solve of q steps is q + max(0, 1 − q) pairs."""
    plan = planned(model, lengths=[8, 16], layers=[0], samples=3)
    cost_model = CostModel(model, plan.subjects[0], clock=Clock(), patience=PLAN_PAIR)
    said = cost_model.forecast(loading=7.0)
    assert said.first_call == 0 and said.loading == 7.0  # exact: a clock of whole seconds
    for cost in said.costs:
        assert cost.seconds["solving"] == pytest.approx(3 * max(cost.steps, 1.0) * cost.pairs[max(cost.pairs)])
        assert cost.seconds["preparing"] == pytest.approx(3.0)  # one timed call, as many times as there are samples
    assert said.seconds == pytest.approx(7 + sum(sum(cost.seconds.values()) for cost in said.costs))


def test_a_study_times_quick_lengths_only_and_keeps_no_model(declared, monkeypatch):
    """`Plan.seconds` and the order of bundles need a time at any length; the model is given back before."""
    plan = prepare(spec_of({**declared, "lengths": [6, 12]}))
    (found,) = plan.costs
    assert not hasattr(found, "model") and not hasattr(plan.subjects[0].inputs[0], "model")
    assert all(found.seconds(n) > 0 for n in (6, 12, 10**6))
    assert plan.seconds() == pytest.approx(sum(found.seconds(n) for n in (6, 12)) * 2 * 3)
    assert found.seconds(10**6) == pytest.approx(
        (found._solves(10**6)[1] + found._solves(10**6)[0][0]) * extrapolated(found.pairs, 10**6)
    )


def test_maps_without_a_formula_have_a_time_by_their_size(declared):
    plan = prepare(spec_of({**declared, "map": "block"}))
    short, long = (plan.costs[0].seconds(n) for n in (8, 512))
    assert less(0, short, long)


@pytest.mark.parametrize(
    "n, products, stop, steps, measured",
    [
        (2**17, torch.float32, "interval", 9, 13.93),
        (2**17, torch.float32, "interval", 3, 9.43),
        (2**18, torch.bfloat16, "residual", 12, 27.85),
        (2**20, torch.bfloat16, "residual", 5, 84.24),
    ],
)
def test_the_kernels_memory_as_measured_on_an_h200(n, products, stop, steps, measured):
    """The solver's plan, from shapes alone, is at most what was measured and a third."""
    weights = [torch.ones(768, 768) for _ in range(4)]
    taken = estimate_memory(SelfAttention(*weights, heads=12, causal=True), n, torch.float32, products, fused=True)
    drawn = LinearOperator((768 * n, 768 * n), dtype=torch.float32, workspace=taken.workspace, held=taken.held)
    drawn.reference_itemsize, drawn.reference_bytes = taken.reference_itemsize, taken.reference_bytes
    budget = dataclasses.replace(plan(drawn, stop=stop, tol=1e-2), stored=stored_after(steps))
    gib = (budget.total + 4 * 768 * n) / 2**30  # and the tokens
    assert less(measured, gib, 1.32 * measured)
