"""Tiny models saved as folders; the hub is disabled."""

from __future__ import annotations

import os

import pytest

from .tiny import tiny_network, tiny_tokenizer


@pytest.fixture(autouse=True, scope="session")
def _hub_is_disabled():
    """No test may depend on a network. The environment variable was read when huggingface_hub was imported."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    yield
    constants.HF_HUB_OFFLINE = before


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, str]:
    """Family → folder with config, safetensors and tokenizer."""
    folders = {}
    for family in ("gpt2", "bert", "llama"):
        folder = tmp_path_factory.mktemp(family)
        tiny_network(family).save_pretrained(folder)
        tiny_tokenizer(family).save_pretrained(folder)
        folders[family] = os.fspath(folder)
    return folders
