"""Splitting of GPT-2's true heads from their file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from howsmooth import InputError
from howsmooth.lipschitz import splits
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.studies.splitting import file_splittings

DATA = Path(os.environ.get("HOWSMOOTH_DATA") or Path(__file__).parents[3] / "shared" / "data")
GPT2 = DATA / "gpt2_attention.safetensors"
CHOICE = dict(heads=(3,), lengths=(3,), samples=1, tol=1e-3, confidence=0.999, seed=0)


@pytest.mark.skipif(not GPT2.exists(), reason="neither ../shared/data nor $HOWSMOOTH_DATA holds GPT-2's attention")
def test_true_heads_are_read_and_normalised():
    record, = file_splittings(GPT2, layers=(6,), **CHOICE)
    file = AttentionFile(GPT2)
    x = file.normalisation(6)(torch.randn(3, 768, generator=torch.Generator().manual_seed(0)))
    truth = splits(file.attention(6).head(3).to(torch.float64), x.double(), tol=1e-6)
    assert record["ratio_lower"] <= truth.ratio <= record["ratio_upper"]
    assert record["verdict"] == "does not split" and record["source"]["sha256"]


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="safetensors file"):
        next(file_splittings("nowhere.safetensors", **CHOICE))
