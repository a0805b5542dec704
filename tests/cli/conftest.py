"""A tiny checkpoint, and fixtures that run the command in this process or in its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import howsmooth as package
from tests.paused import start_paused

WORDS = ("the", "of", "and", "light", "stone", "river", "moves", "slowly", "under", "old", "bridge", ".")
# A process started by a test finds the package that the test itself found, installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
TEXT = " ".join(WORDS[(7 * index + index * index) % len(WORDS)] for index in range(400))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """The folder of a random two-layer GPT-2 with 64 positions; its tokenizer adds no special tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-gpt2")
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate((*WORDS, "[UNK]"))}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(WORDS) + 1, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def marked(tiny, tmp_path_factory) -> str:
    """The folder of the same model with a tokenizer that begins each text with a special token."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path_factory.mktemp("marked")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="[UNK] $A", special_tokens=[("[UNK]", len(WORDS))])
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="session")
def bare(tiny, tmp_path_factory) -> str:
    """The folder of the same model without a tokenizer."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(tiny) / name, folder / name)
    return str(folder)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "river.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture
def howsmooth(capfd) -> Callable[..., SimpleNamespace]:
    """Run the command in this process; unexpected errors are raised. `errors` is stderr without "loading MODEL"."""
    from howsmooth.cli import main

    def run(line: str = "", *more: str) -> SimpleNamespace:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([*shlex.split(line), *more])
        printed = capfd.readouterr()
        errors = [line for line in printed.err.splitlines() if not line.startswith("loading ")]
        return SimpleNamespace(code=left.value.code, out=printed.out, err=printed.err, errors=errors)

    return run


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """Start the command in its own process."""

    def popen(line: str, **options) -> subprocess.Popen:
        command = [sys.executable, "-m", "howsmooth", *shlex.split(line)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **{"env": ENVIRONMENT, **pipes, **options})

    return popen


@pytest.fixture
def start_paused_at() -> Callable[..., subprocess.Popen]:
    """Start the command and return when it is paused in the given call of a function, until a signal ends it."""

    def popen(line: str, function: str, call: int) -> subprocess.Popen:
        return start_paused(line, function, call, ENVIRONMENT)

    return popen
