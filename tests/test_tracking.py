"""Measurements as scalars of a training run: their names, and the callbacks that log them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import howsmooth
from howsmooth.tracking import TensorBoard, WeightsAndBiases, scalars
from tests import reasons
from tests.studies.conftest import TEXT, save_tiny


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> howsmooth.Measurements:
    model = save_tiny(tmp_path_factory.mktemp("tiny-model"))
    return howsmooth.measure(model, TEXT, layers=[0, 1], lengths=[4, 6], samples=2)


def test_there_are_four_numbers_for_each_map_and_length(found):
    values = scalars(found)
    assert len(values) == 2 * 2 * 4 and all(name.startswith("howsmooth/lipschitz/layer_") for name in values)
    of_map = [record for record in found if (record["layer"], record["n"]) == (1, 6)]
    largest = max(of_map, key=lambda record: record["value"])
    at = "howsmooth/lipschitz/layer_1/n_6"
    for key in ("value", "lower", "upper"):
        assert values[f"{at}/{key}"] == largest[key]  # exact: copied
    assert values[f"{at}/mean"] == pytest.approx(sum(record["value"] for record in of_map) / 2)
    assert all(isinstance(value, float) for value in values.values())


def test_names_have_the_fields_that_differ(found):
    records = [*found, *({**record, "model": "other", "head": 1} for record in found)]
    names = scalars(records, "smooth")
    assert "smooth/other/lipschitz/layer_0/head_1/n_4/value" in names
    assert len(names) == 2 * len(scalars(found))


def test_what_is_missing_is_left_out(found):
    (name,) = scalars([{**found[0], "upper": None, "lower": None}])
    assert name.endswith("/value")
    assert scalars([]) == {} and scalars([{**found[0], "kind": "bound"}]) == {}


def test_a_function_gets_the_values_and_the_step(found):
    received = []
    found.log(lambda *args: received.append(args), step=7, prefix="p")
    assert received == [(scalars(found, "p"), 7)]


@pytest.mark.parametrize("given", ["folder", "writer"])
def test_tensorboard_reads_what_was_logged(found, tmp_path, given):
    pytest.importorskip("tensorboard", reason=reasons.extra("tensorboard", "tensorboard"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    tracker = TensorBoard(tmp_path if given == "folder" else SummaryWriter(str(tmp_path)))
    for step in (0, 10):
        found.log(tracker, step=step)
    events = EventAccumulator(str(tmp_path)).Reload()  # before the writer is closed: values are flushed
    assert sorted(events.Tags()["scalars"]) == sorted(scalars(found))
    for name, value in scalars(found).items():
        assert [(event.step, event.value) for event in events.Scalars(name)] == [
            (step, pytest.approx(value, rel=1e-6)) for step in (0, 10)
        ]
    tracker.writer.close()


class Run:
    """The part of a run of Weights & Biases that is used."""

    def __init__(self):
        self.logged = []

    def log(self, data, step=None):
        self.logged.append((data, step))


def test_weights_and_biases_logs_once_per_step(found):
    run = Run()
    found.log(WeightsAndBiases(run), step=3)
    assert run.logged == [(scalars(found), 3)]


def test_the_active_run_is_the_default(found, monkeypatch):
    wandb = SimpleNamespace(run=None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with pytest.raises(howsmooth.InputError, match=r"expected an active run .* got none; call wandb.init"):
        WeightsAndBiases()
    wandb.run = Run()
    found.log(WeightsAndBiases())
    assert wandb.run.logged == [(scalars(found), None)]


@pytest.mark.parametrize(
    "package, call, extra",
    [
        ("tensorboard", "TensorBoard('runs')", "howsmooth[tensorboard]"),
        ("wandb", "WeightsAndBiases()", "howsmooth[wandb]"),
    ],
)
def test_a_missing_package_is_named(package, call, extra):
    """The packages are imported only when used: howsmooth.tracking itself imports without them."""
    script = f"""
import sys
sys.modules[{package!r}] = None
import howsmooth
from howsmooth.tracking import TensorBoard, WeightsAndBiases
try:
    {call}
except howsmooth.InputError as error:
    print(error)
"""
    printed = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True).stdout
    assert printed.startswith(f"expected {package} to ") and f"got none installed; pip install '{extra}'" in printed
