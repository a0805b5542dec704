"""A small study from spec to store: records are correct, none is repeated, none is lost."""

from __future__ import annotations

import json
import math
from importlib.metadata import version

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.fits import growth_laws
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import load
from howsmooth.questions import quantities
from howsmooth.questions.spec import spec_of
from howsmooth.studies import plan, run, worker
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import run_study
from howsmooth.studies.store import Store
from tests.tolerances import at_most

from .conftest import TEXT, save_tiny


def records(path):
    with Store.read(path) as store:
        return list(store.records())


def test_records_are_those_of_the_solver(declared, tiny, tmp_path):
    study = spec_of(
        {**declared, "tokens": ["all", "no-first"], "tol": 1e-6, "models": [{"name": tiny, "dtype": "float64"}]}
    )
    path = tmp_path / "s.sqlite"
    assert run_study(study, path) == {"planned": 36, "done": 36, "failed": 0, "other": 0}
    model = load(tiny, dtype=torch.float64)
    found = records(path)
    assert len({record["task"] for record in found}) == 36
    for record in found:
        n, layer = record["n"], record["layer"]
        chunk = model.chunks(TEXT, n, 3, special_tokens=False)[record["sample"]]
        x = model.activations(chunk, [layer])[layer]
        J = model.attention(layer, n).jacobian(x).dense()
        columns = slice(16 * (record["tokens"] == "no-first"), None)
        truth = float(torch.linalg.matrix_norm(J[:, columns], 2))
        assert at_most(record["lower"], truth, tol=1e-9) and at_most(truth, record["upper"], tol=1e-9)
        assert record["value"] == pytest.approx(truth, rel=1e-6)
    json.dumps(found)
    one = found[0]
    assert one["status"] == "converged" and one["device"] == "cpu" and one["dtype"] == "float64" and one["seed"] == 0
    assert one["source"]["sha256"].keys() >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert one["versions"]["torch"] == version("torch")
    assert len(one["top_tokens"]) == 3 and one["batch"] == 3 and one["cutting"] == "consecutive"


def test_as_released_is_the_released_formula(declared, tiny, tmp_path):
    """√‖Jᵀf(X)‖ by automatic differentiation, for each sample of a batch."""
    study = spec_of({**declared, "lengths": [8], "quantities": ["lipschitz", "released"]})
    run_study(study, tmp_path / "s.sqlite")
    model = load(tiny)
    released = [r for r in records(tmp_path / "s.sqlite") if r["quantity"] == "released"]
    assert len(released) == 6
    for record in released:
        chunk = model.chunks(TEXT, 8, 3, special_tokens=False)[record["sample"]]
        x = model.activations(chunk, [record["layer"]])[record["layer"]]
        y, pull = torch.func.vjp(model.attention(record["layer"]), x)
        assert record["value"] == pytest.approx(math.sqrt(float(pull(y)[0].norm())), rel=1e-4)
        assert record["upper"] is None and record["confidence"] is None and record["status"] == "as released"


def test_a_second_run_repeats_nothing_and_a_longer_one_only_the_rest(declared, tmp_path, monkeypatch):
    path, seen = tmp_path / "s.sqlite", []

    def counting(bundle):
        seen.extend(bundle.tasks)
        return worker.run_bundle(bundle)

    monkeypatch.setattr(run, "run_bundle", counting)
    run_study(spec_of(declared), path)
    assert len(seen) == len(set(seen)) == 18
    first = records(path)
    run_study(spec_of(declared), path)
    assert len(seen) == 18 and records(path) == first  # exact: read from the store
    counts = run_study(spec_of({**declared, "samples": 5, "lengths": [6, 8]}), path)
    assert counts == {"planned": 20, "done": 20, "failed": 0, "other": 6}
    assert len(seen) == len(set(seen)) == 26
    again = {record["task"]: record for record in records(path)}
    assert all(again[r["task"]] == r for r in first if r["n"] < 12)  # exact: read from the store


def test_values_do_not_depend_on_the_batch_size(declared, tmp_path, monkeypatch):
    run_study(spec_of(declared), tmp_path / "together.sqlite")
    monkeypatch.setitem(plan.MAX_BATCH_TOKENS, "cpu", 1)
    run_study(spec_of(declared), tmp_path / "alone.sqlite")
    together, alone = ({r["task"]: r for r in records(tmp_path / f"{name}.sqlite")} for name in ("together", "alone"))
    assert together.keys() == alone.keys()
    assert {r["batch"] for r in alone.values()} == {1} and max(r["batch"] for r in together.values()) == 3
    for task, record in together.items():
        assert record["value"] == pytest.approx(alone[task]["value"], rel=1e-6)


def test_options_that_change_a_number_change_the_hash_of_its_task(declared, tiny, tmp_path):
    def tasks(**changes):
        return set(prepare(spec_of({**declared, **changes})).tasks())

    base = tasks()
    assert tasks() == base and tasks(name="other", engine={"workers": 1}) == base
    other = save_tiny(tmp_path / "other", seed=1)
    for change in (
        {"tol": 1e-4},
        {"seed": 1},
        {"confidence": 0.99},
        {"tokens": "no-first"},
        {"heads": [0]},
        {"models": [other]},
        {"models": [{"name": tiny, "dtype": "float64"}]},
        {"cutting": "prefixes"},
        {"simultaneous": True},
        {"models": [{"name": tiny, "weights": "random"}]},
    ):
        assert not tasks(**change) & base, change


def test_simultaneous_shares_the_failure_probability(declared, tmp_path):
    study = spec_of({**declared, "simultaneous": True, "confidence": 0.99, "quantities": ["lipschitz", "released"]})
    prepared = prepare(study)
    assert prepared.count == 36  # of which 18 have an interval
    assert prepared.confidence == pytest.approx(1 - 0.01 / 18)
    run_study(prepared, tmp_path / "s.sqlite")
    found = [r for r in records(tmp_path / "s.sqlite") if r["quantity"] == "lipschitz"]
    assert all(r["confidence"] == pytest.approx(1 - 0.01 / 18) for r in found) and len(found) == 18
    assert {r["simultaneous"] for r in found} == {0.99}  # exact: as given


def test_checkpoints_are_a_series(declared, tmp_path):
    steps = [save_tiny(tmp_path / f"step{i}", seed=i) for i in range(2)]
    study = spec_of({**declared, "models": [{"name": "run", "checkpoints": steps}], "lengths": [6, 8], "layers": [0]})
    run_study(study, tmp_path / "s.sqlite")
    found = records(tmp_path / "s.sqlite")
    assert [r["checkpoint"] for r in found] == [steps[0]] * 6 + [steps[1]] * 6
    assert {r["series"] for r in found} == {"run"}
    assert len(growth_laws(found, draws=10)) == 2


def test_a_solve_that_fails_is_reported_and_retried(declared, tmp_path, monkeypatch):
    def fails_at_8(f, x, **options):
        if x.shape[-2] == 8:
            raise MemoryError("no room")
        return local_lipschitz(f, x, **options)

    path = tmp_path / "s.sqlite"
    with monkeypatch.context() as patched:
        patched.setattr(quantities, "local_lipschitz", fails_at_8)
        assert run_study(spec_of(declared), path) == {"planned": 18, "done": 12, "failed": 6, "other": 0}
    with Store.read(path) as store:
        assert all("out of memory at n = 8 (no room); set max_memory" in why for _, why, _ in store.failures())
    assert run_study(spec_of(declared), path)["done"] == 18


@pytest.mark.parametrize(
    "change, words",
    [
        ({"layers": [2]}, "between 0 and 1, got 2"),
        ({"heads": [2]}, "heads of .* between 0 and 1, got 2"),
        ({"lengths": [33]}, "at most 32 tokens"),
        ({"samples": 51}, r"expected 612 tokens of text \(51 × 12, consecutive\).*for n = 12, got 600"),
        ({"cutting": "documents", "samples": 2}, "expected 2 documents of 6 tokens or more.*got 1"),
        ({"lengths": [1, 4], "tokens": ["no-first"]}, "token left to perturb .*no-first, got a chunk of 1 tokens"),
        ({"max_memory": 1000}, "max_memory of at least .* MiB for n = 12"),
        ({"texts": ["-", "-"]}, "stdin"),
        ({"texts": ["embedded", "embedded"]}, "different names"),
        ({"map": "sideways"}, "map"),
    ],
)
def test_invalid_studies_are_refused_before_anything_runs(declared, change, words):
    with pytest.raises(InputError, match=words):
        prepare(spec_of({**declared, **change}))


def test_a_model_that_does_not_fit_in_memory_is_refused(declared, monkeypatch):
    prepared = prepare(spec_of({**declared, "engine": {}}))
    monkeypatch.setattr("howsmooth.studies.plan.free_memory", lambda: 100 << 20)
    with pytest.raises(InputError, match=r"GiB of free memory for one worker at n = 12, got 0\.1 GiB; set max_memory"):
        prepared.workers_and_threads()


def test_fits_of_prefixes_are_nested(declared, tmp_path):
    study = spec_of({**declared, "cutting": "prefixes", "lengths": [6, 8, 10, 12, 16, 20], "layers": [1]})
    run_study(study, tmp_path / "s.sqlite")
    ((key, law),) = growth_laws(records(tmp_path / "s.sqlite"), draws=50).items()
    assert key[-1] == "prefixes" and law.points == 18 and law.exponent_interval[0] <= law.exponent_interval[1]
