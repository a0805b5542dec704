"""Splitting of heads from a file of attention layers: GPT-2's true ones, and random ones."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError
from howsmooth.lipschitz import splits
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.studies.splitting import file_splittings
from tests import data
from tests.tolerances import at_most

CHOICE = dict(heads=(3,), lengths=(3,), samples=1, tol=1e-3, confidence=0.999, seed=0)


@pytest.mark.parametrize("source", data.SOURCES)
def test_heads_are_read_and_normalised(source, tmp_path):
    path = data.gpt2_file(source, tmp_path)
    record, = file_splittings(path, layers=(6,), **CHOICE)
    file = AttentionFile(path)
    head, norm = file.attention(6).head(3), file.normalisation(6)
    x = norm(torch.randn(3, norm.d, generator=torch.Generator().manual_seed(0)))
    truth = splits(head.to(torch.float64), x.double(), tol=1e-6)
    assert at_most(record["ratio_lower"], truth.ratio, record["ratio_upper"])
    assert (record["layer"], record["head"], record["verdict"]) == (6, 3, truth.status)
    assert record["source"]["sha256"]


@data.needs(data.GPT2)
def test_a_true_head_does_not_split():
    record, = file_splittings(data.DATA / data.GPT2, layers=(6,), **CHOICE)
    assert record["verdict"] == "does not split"


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="safetensors file"):
        next(file_splittings("nowhere.safetensors", **CHOICE))
