"""Generated files have the format of the real ones, and skips name the missing file."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from howsmooth.texts.corpora import read_corpus
from tests import data


def test_the_reason_names_the_file_the_folder_and_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DATA", tmp_path)
    data.make_alice(tmp_path)
    missing, present = data.needs(data.ALICE, data.GPT2).mark, data.needs(data.ALICE).mark
    assert missing.args == (True,) and present.args == (False,)
    reason = missing.kwargs["reason"]
    assert f"no {data.GPT2} in {tmp_path}: set HOWSMOOTH_DATA to a folder with {data.GPT2}" in reason
    assert data.CONTENTS[data.GPT2] in reason and data.ALICE not in reason


def test_generated_weights_are_reproducible(tmp_path):
    (tmp_path / "again").mkdir()
    assert data.make_gpt2(tmp_path).read_bytes() == data.make_gpt2(tmp_path / "again").read_bytes()
    assert data.make_gpt2(tmp_path, seed=1).read_bytes() != (tmp_path / "again" / data.GPT2).read_bytes()


def test_generated_corpora_are_read_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("HOWSMOOTH_DATA", str(tmp_path))
    assert b"\r\n" in data.make_alice(tmp_path).read_bytes()
    data.make_ag_news(tmp_path)
    assert "\r" not in read_corpus("alice").content and len(read_corpus("ag_news").documents) == 6


@data.needs(data.GPT2)
def test_generated_weights_have_the_real_names_and_shapes(tmp_path):
    def shapes(path: Path, width: int) -> dict[str, tuple[int, ...]]:
        """Return the sizes of each tensor in units of the width."""
        return {
            key: tuple(size // width for size in tensor.shape if key != "wpe.weight" or size == width)
            for key, tensor in load_file(path).items()
        }

    assert shapes(data.make_gpt2(tmp_path), data.WIDTH) == shapes(data.DATA / data.GPT2, 768)


@data.needs(data.ALICE, data.AG_NEWS)
def test_the_real_corpora_are_read_by_name(monkeypatch):
    monkeypatch.setenv("HOWSMOOTH_DATA", str(data.DATA))
    assert "ALICE'S ADVENTURES IN WONDERLAND" in read_corpus("alice").content
    assert len(read_corpus("ag_news").documents) == 7600


@pytest.mark.parametrize("name", [data.GPT2, data.ALICE, data.AG_NEWS])
def test_every_file_is_described(name):
    assert data.CONTENTS[name]
