"""The cost model: predicted steps and memory, and errors where a run does not fit."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from howsmooth.attention import SelfAttention
from howsmooth.attention.dense_products import DenseProducts
from howsmooth.attention.jacobian import AttentionJacobian, estimate_memory
from howsmooth.errors import InputError
from howsmooth.models import load
from howsmooth.spectral import LinearOperator, plan
from howsmooth.spectral.memory import stored_after
from howsmooth.studies import costs, prepare_model, records_of, spec_of
from howsmooth.studies.costs import PLAN_PAIR_SECONDS, CostModel, extrapolate_pair
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
    return CostModel(model, plan.planned_models[0], max_pair_seconds=PLAN_PAIR_SECONDS, **options).forecast()


@pytest.mark.parametrize("inputs", ["text", "normalised"])
def test_steps_are_exact_where_the_length_itself_is_probed(model, inputs):
    """Short lengths are probed by a whole solve, so that the run takes exactly as many steps."""
    plan = planned(model, inputs=inputs, lengths=[8, 24])
    predicted, records = forecast(plan, model), list(records_of(plan))
    for cost in predicted.costs:
        steps = [record["steps"] for record in records if record["n"] == cost.n]
        assert cost.probed_at == cost.n and list(cost.probed.values()) == steps
        assert cost.steps == pytest.approx(sum(steps) / len(steps)) and cost.solves == len(steps) == 2
        assert cost.bytes["vectors"] == stored_after(max(steps)) * cost.n * 16 * 4
        assert cost.bytes["total"] == sum(cost.bytes[key] for key in ("taken", "tokens", "vectors", "workspace"))
    assert less(predicted.first_call, predicted.seconds) and at_most(0, predicted.first_call)
    json.dumps(predicted.as_record())


def test_longer_lengths_are_extrapolated_from_shorter_ones(model, monkeypatch):
    monkeypatch.setattr(costs, "SHORTEST_TIMED", 8)
    monkeypatch.setattr(costs, "REQUESTED_PAIR_SECONDS", 0.0)
    plan = planned(model, inputs="normalised", layers=[1], lengths=[32], samples=3)
    (cost,) = forecast(plan, model).costs
    assert cost.probed_at == 16 and set(cost.pairs) == {8, 16, 32} and cost.measured_pair and cost.solves == 3
    monkeypatch.setattr(costs, "TIMED_PAIR_SECONDS", 0.0)
    (cost,) = forecast(plan, model).costs
    assert set(cost.pairs) == {8, 16} and not cost.measured_pair


def test_memory_and_step_limits_are_respected(model):
    limited = dict(layers=[0], lengths=[24], tol=1e-6, max_steps=5, stop="residual")
    (cost,) = forecast(planned(model, **limited), model).costs
    assert cost.steps <= cost.most_steps == 5
    with pytest.raises(InputError, match=r"at least .* MiB for n = 24"):
        planned(model, **limited, max_memory=2000)


def test_a_run_that_does_not_fit_in_memory_is_refused(model, monkeypatch):
    monkeypatch.setattr(costs, "free_memory", lambda device: 1 << 10)
    with pytest.raises(InputError, match=r"GiB of free memory on cpu at n = 24, got 0.0 GiB; .*--max-memory"):
        forecast(planned(model, layers=[0], lengths=[24]), model)
    with pytest.raises(InputError, match="no plan"):
        forecast(planned(model, map="block", lengths=[8]), model)


class Clock:
    """A clock that advances by one second whenever it is read: every timed call takes one second."""

    def __init__(self):
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return float(self.reads)


def test_seconds_of_a_solve_are_counted_in_pairs_of_products(model):
    """Every call takes one second on this clock: a pair one, so that a solve of q steps is q + max(0, 1 − q) pairs."""
    plan = planned(model, lengths=[8, 16], layers=[0], samples=3)
    cost_model = CostModel(model, plan.planned_models[0], clock=Clock(), max_pair_seconds=PLAN_PAIR_SECONDS)
    predicted = cost_model.forecast(loading=7.0)
    assert predicted.first_call == 0 and predicted.loading == 7.0  # exact: a clock of whole seconds
    for cost in predicted.costs:
        assert cost.seconds["solving"] == pytest.approx(3 * max(cost.steps, 1.0) * cost.pairs[max(cost.pairs)])
        assert cost.seconds["preparing"] == pytest.approx(3.0)  # one timed call, as many times as there are samples
    assert predicted.seconds == pytest.approx(7 + sum(sum(cost.seconds.values()) for cost in predicted.costs))


def test_a_delay_during_one_solve_is_not_taken_for_its_overhead(model, monkeypatch):
    """A minute that the machine spends elsewhere would be scaled to hours at longer lengths."""
    now, solve, solves = [0.0], CostModel._solve, []

    def delayed(self, f, x, n):
        estimate = solve(self, f, x, n)
        now[0] += 0.01 * (estimate.steps + 5) + (0 if solves else 60)
        solves.append(n)
        return estimate

    monkeypatch.setattr(CostModel, "_solve", delayed)
    monkeypatch.setattr(CostModel, "_measure_pair", lambda self, n, requested_n: 0.01)
    cost_model = CostModel(model, planned(model, lengths=[8], layers=[0]).planned_models[0], clock=lambda: now[0])
    steps, overhead, _ = cost_model._expected_steps(8)
    assert overhead == pytest.approx(5) and len(solves) == 2
    assert cost_model.seconds(8) == pytest.approx(0.01 * (steps[0] + 5))


def test_a_study_times_quick_lengths_only_and_releases_the_model(declared, monkeypatch):
    """`Plan.seconds` and the order of bundles need the time of any length after the model was released."""
    plan = prepare(spec_of({**declared, "lengths": [6, 12]}))
    (found,) = plan.costs
    assert not hasattr(found, "model") and not hasattr(plan.planned_models[0].inputs[0], "model")
    assert all(found.seconds(n) > 0 for n in (6, 12, 10**6))
    assert plan.seconds() == pytest.approx(sum(found.seconds(n) for n in (6, 12)) * 2 * 3)
    assert found.seconds(10**6) == pytest.approx(
        (found._expected_steps(10**6)[1] + found._expected_steps(10**6)[0][0]) * extrapolate_pair(found.pairs, 10**6)
    )


def test_seconds_of_maps_differentiated_automatically_depend_on_their_size(declared):
    plan = prepare(spec_of({**declared, "map": "block"}))
    short, long = (plan.costs[0].seconds(n) for n in (8, 512))
    assert less(0, short, long)


@pytest.mark.parametrize(
    ("n", "stored", "has_gram", "measured"), [(2**18, stored_after(9), False, 31.6), (2**20, 18, True, 123.1)]
)
def test_planned_memory_against_a_measurement_on_an_h200(n, stored, has_gram, measured):
    """The solver's plan, which uses shapes alone, exceeds the measured GiB by at most a third."""
    weights = [torch.ones(768, 768) for _ in range(4)]
    taken = estimate_memory(SelfAttention(*weights, heads=12, causal=True), n, torch.float32, torch.float32, fused=True)
    drawn = LinearOperator((768 * n, 768 * n), dtype=torch.float32, workspace=taken.workspace, held=taken.held)
    drawn.reference_itemsize, drawn.reference_bytes = taken.reference_itemsize, taken.reference_bytes
    drawn.has_gram = has_gram
    budget = dataclasses.replace(plan(drawn, stop="interval", tol=2e-2), stored=stored)
    gib = (budget.total + 4 * 768 * n) / 2**30  # and the tokens
    assert less(measured, gib, 1.32 * measured)


@pytest.mark.parametrize("has_gram", [True, False])
def test_the_timed_pair_is_the_product_of_a_step(model, monkeypatch, has_gram):
    """Lanczos steps take JᵀJ v as one product where the operator has one; it takes less time than a pair."""
    called = []
    for name in ("matvec", "rmatvec", "gram"):
        product = getattr(AttentionJacobian, name)
        monkeypatch.setattr(
            AttentionJacobian, name, lambda self, v, name=name, product=product: called.append(name) or product(self, v)
        )
    monkeypatch.setattr(DenseProducts, "gains_by_gram", lambda self, dtype: has_gram)
    cost_model = CostModel(model, planned(model, lengths=[8]).planned_models[0])
    assert less(0, cost_model._measure_pair(8, 8))
    assert set(called) == ({"gram"} if has_gram else {"matvec", "rmatvec"})
