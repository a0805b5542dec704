"""Mass splitting in heads from a file of attention layers: GPT-2's and random ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from howsmooth import InputError, load
from howsmooth.lipschitz import splits
from howsmooth.questions.inputs import NormalisedInputs
from howsmooth.studies import resolve, spec_of
from howsmooth.studies.splitting import splittings
from tests import data
from tests.tolerances import at_most

CHOICE = {"inputs": "normalised", "layers": [6], "heads": [3], "lengths": [3], "samples": 1}


def split(path: Path) -> dict:
    file = load(path)
    (record,) = splittings(file, None, resolve(file, None, spec_of(CHOICE)))
    return record


@pytest.mark.parametrize("source", data.SOURCES)
def test_heads_are_read_and_normalised(source, tmp_path):
    path = data.gpt2_file(source, tmp_path)
    record, file = split(path), load(path, dtype="float64")
    x = NormalisedInputs(load(path)).draw(3, 0, 6)
    truth = splits(file.attention(6).head(3), x.double(), tol=1e-6)
    assert at_most(record["ratio_lower"], truth.ratio, record["ratio_upper"])
    assert (record["layer"], record["head"], record["verdict"]) == (6, 3, truth.status)
    assert record["source"]["sha256"] and record["inputs"] == "normalised"


@data.needs(data.GPT2)
def test_a_true_head_does_not_split():
    assert split(data.DATA / data.GPT2)["verdict"] == "does not split"


def test_a_missing_file_is_refused():
    with pytest.raises(InputError, match="expected the file"):
        load("nowhere.safetensors")
