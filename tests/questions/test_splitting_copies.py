"""The question "splitting-copies": one token of the text is repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import howsmooth as package
from howsmooth import InputError, load
from howsmooth.questions import record_error
from howsmooth.questions.spec import spec_of
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import records_of
from tests import data
from tests.tolerances import close


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_repeated_tokens(howsmooth, tiny, text_file):
    """Both constants agree with the dense derivative at the longer input, with explicit tokens and positions."""
    result = howsmooth(
        f"meanfield splitting-copies {tiny} --text {text_file} --lengths 2 --layers 0 --map layer --copies 3 "
        "--dtype float64 --tol 0.001 --json -"
    )
    assert result.code == 0 and "kept position" in result.err, result.err
    records = read(result.out)
    assert [r["position"] for r in records] == [0, 1] and {r["copies"] for r in records} == {3}
    model = load(tiny, dtype=torch.float64)
    (chunk,) = model.chunks(Path(text_file).read_text(), 2, 1)
    orders = ([0, 0, 0, 1], [0, 1, 1, 1])
    for record, order in zip(records, orders, strict=True):
        for which, places in (("next", [0, 1, 2, 3]), ("kept", order)):
            inputs = {
                "input_ids": torch.tensor([[chunk.ids[i] for i in order]]),
                "position_ids": torch.tensor([places]),
                "attention_mask": torch.ones(1, 4, dtype=torch.long),
            }
            at = model.map_at(inputs, 0, "layer")
            J = torch.autograd.functional.jacobian(at.f, at.x).reshape(at.x.numel(), -1)
            truth = float(torch.linalg.matrix_norm(J, ord=2))
            assert record[which]["value"] == pytest.approx(truth, rel=1e-3)
            assert record[f"{which}_over_before"] == pytest.approx(truth / record["before"]["value"], rel=1e-3)
        assert not close(record["next"]["value"], record["kept"]["value"]) and record["status"] == "converged"


def test_existing_records_are_not_computed_again(tiny, text_file):
    asked = {"question": "splitting-copies", "models": tiny, "texts": text_file, "lengths": [3], "layers": [0]}
    plan = prepare(spec_of(asked))
    calls: list[dict] = []
    first = list(records_of(plan, progress=calls.append))
    assert [record["position"] for record in first] == [0, 1, 2] and len(calls) == 1
    assert all(record_error(record) is None for record in first)
    assert list(records_of(plan, first, progress=calls.append)) == first and len(calls) == 1
    rest = list(records_of(plan, first[:2]))
    assert rest[:2] == first[:2] and rest[2]["task"] == first[2]["task"]
    assert close(rest[2]["next"]["value"], first[2]["next"]["value"], tol=1e-9)


def test_images_and_files_of_attention_have_no_tokens_to_repeat(tmp_path):
    path = data.gpt2_file(data.SOURCES[0], tmp_path)
    with pytest.raises(InputError, match="expected a model that reads text"):
        package.ask("splitting-copies", path, layers=[0], lengths=[3])


@pytest.mark.parametrize(
    "line, message",
    [
        ("--copies 1", "--copies: expected a whole number from 2"),
        ("--heads 0", "No such option"),
        ("--samples 3", "No such option"),
        ("--map head", "--map: expected a map among attention, normed, block, layer, got 'head'"),
    ],
)
def test_bad_input(howsmooth, line, message):
    result = howsmooth(f"meanfield splitting-copies {line}")
    assert result.code == 2 and message.lower() in result.err.lower() and len(result.errors) == 1
