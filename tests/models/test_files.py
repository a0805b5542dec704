"""What the files of a model say before it is loaded."""

from __future__ import annotations

import json

import pytest

from howsmooth.errors import InputError
from howsmooth.models.files import check_positions, list_files, read_model_files


def folder_with(path, config: dict, *names: str) -> str:
    (path / "config.json").write_text(json.dumps(config))
    for name in names:
        (path / name).write_text("")
    return str(path)


@pytest.mark.parametrize(
    ("config", "takes", "layers", "positions"),
    [
        ({"model_type": "gpt2", "vocab_size": 9, "n_layer": 3, "n_positions": 64}, {"text"}, 3, 64),
        ({"model_type": "bert", "vocab_size": 9, "num_hidden_layers": 2, "max_position_embeddings": 8}, {"text"}, 2, 8),
        ({"model_type": "bloom", "vocab_size": 9, "n_layer": 3, "n_positions": 64}, {"text"}, 3, None),
        ({"model_type": "vit", "image_size": 8, "num_hidden_layers": 2}, {"images"}, 2, None),
        (
            {"model_type": "whisper", "num_mel_bins": 8, "vocab_size": 9, "is_encoder_decoder": True},
            {"audio"},
            None,
            None,
        ),
        ({"model_type": "clip", "vision_config": {}, "text_config": {}}, {"text", "images"}, None, None),
        ({"model_type": "new"}, {"text", "images", "audio"}, None, None),
    ],
)
def test_facts_of_a_config(tmp_path, config, takes, layers, positions):
    files = read_model_files(folder_with(tmp_path, config))
    assert (files.takes, files.layers, files.positions, files.has_tokenizer) == (takes, layers, positions, False)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model", "tekken.json"])
def test_files_of_a_tokenizer(tmp_path, name):
    assert read_model_files(folder_with(tmp_path, {"vocab_size": 9}, name)).has_tokenizer


def test_nothing_is_said_about_a_damaged_config(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert read_model_files(str(tmp_path)) is None


def test_positions_may_be_unknown():
    check_positions("a model", None, 10**9)
    with pytest.raises(InputError, match="at most 8 tokens, the positions of a model, got 9"):
        check_positions("a model", 8, 9)


def test_files_of_a_folder_by_name(tmp_path):
    for name in ("b.wav", "a.WAV", "c.png"):
        (tmp_path / name).write_text("")
    assert [file.name for file in list_files("audio", tmp_path)] == ["a.WAV", "b.wav"]
    assert [file.name for file in list_files("images", tmp_path, 1)] == ["c.png"]
    assert list_files("images", tmp_path / "b.wav") == [tmp_path / "b.wav"]  # a file is taken as it is
    with pytest.raises(InputError, match="expected 2 images"):
        list_files("images", tmp_path, 2)
