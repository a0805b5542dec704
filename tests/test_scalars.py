"""Measurements as scalars of a training run: their names, and the loggers that take them."""

from __future__ import annotations

import pytest

import howsmooth
from tests import reasons
from tests.studies.conftest import TEXT, save_tiny


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> howsmooth.Measurements:
    model = save_tiny(tmp_path_factory.mktemp("tiny-model"))
    return howsmooth.measure(model, TEXT, layers=[0, 1], lengths=[4, 6], samples=2)


def test_there_are_five_numbers_for_each_map_and_length(found):
    values = found.scalars()
    assert len(values) == 2 * 2 * 5 and all(name.startswith("howsmooth/lipschitz/layer_") for name in values)
    of_map = [record for record in found if (record["layer"], record["n"]) == (1, 6)]
    at = "howsmooth/lipschitz/layer_1/n_6"
    for key in ("value", "lower", "upper"):
        assert values[f"{at}/{key}"] == pytest.approx(sum(record[key] for record in of_map) / 2)
    sizes = sorted(record["value"] for record in of_map)
    assert [values[f"{at}/smallest"], values[f"{at}/largest"]] == sizes  # exact: copied
    assert all(isinstance(value, float) for value in values.values())


def test_names_have_the_fields_that_differ(found):
    records = [*found, *({**record, "model": "other", "head": 1} for record in found)]
    names = howsmooth.Measurements(records).scalars(prefix="smooth")
    assert "smooth/other/lipschitz/layer_0/head_1/n_4/value" in names
    assert len(names) == 2 * len(found.scalars())


def test_what_is_missing_is_left_out(found):
    (name,) = howsmooth.Measurements([{**found[0], "upper": None, "lower": None}]).scalars()
    assert name.endswith("/value")
    for records in ([], [{**found[0], "kind": "bound"}]):
        assert howsmooth.Measurements(records).scalars() == {}


def test_tensorboard_reads_what_was_logged(found, tmp_path):
    pytest.importorskip("tensorboard", reason=reasons.extra("tensorboard", "test"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for name, value in found.scalars().items():
            writer.add_scalar(name, value, 10)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(found.scalars())
    for name, value in found.scalars().items():
        (event,) = events.Scalars(name)
        assert event.step == 10 and event.value == pytest.approx(value, rel=1e-6)
