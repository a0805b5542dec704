"""Hostile values for every option of every command: an answer, or one line that says what was expected; no traceback.

All else on the line is valid and small. Values are drawn from the seed of `tests/seeds.py`, and `HOWSMOOTH_FUZZ_VALUES`
is how many of them each option is given.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from howsmooth.cli.main import group
from tests import reasons
from tests.seeds import SEED

VALUES = int(os.environ.get("HOWSMOOTH_FUZZ_VALUES", "2"))

HOSTILE = (
    "",
    " ",
    ",",
    "0",
    "-1",
    "1.5",
    "9" * 5000,
    "1" + "0" * 20,
    "-" + "9" * 30,
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "1e308",
    "1,nan",
    "0,0",
    "٣",
    "ü",
    "\udcff",
    "null",
    "None",
    "[]",
    "{}",
    "true",
    "=",
    "..",
    "a/b/c",
    "x" * 5000,
    "[" * 5000,
    "DIRECTORY",
    "FILE",
)

STUDY = """
name = "tiny"
models = ["TINY"]
texts = ["TEXT"]
lengths = [4, 6]
samples = 1
layers = [0]
tol = 0.1
engine = { workers = 0 }
"""
_SMALL = "TINY --text TEXT"
LINES = {  # a short run of each command that has options
    "measure": f"{_SMALL} --lengths 4 --samples 1 --layers 0 --tol 0.1",
    "bound": f"{_SMALL} --lengths 4 --samples 1 --layers 0 --tol 0.1",
    "compare": f"TINY {_SMALL} --lengths 4 --samples 1 --layers 0 --tol 0.1",
    "attack configuration": "--lengths 4 --samples 1 --layers 0 --tol 0.1",
    "attack worst-case": f"{_SMALL} --lengths 4 --layers 0 --restarts 2 --steps 2 --tol 0.1",
    "attack ball": f"{_SMALL} --lengths 4 --layers 0 --restarts 2 --steps 2 --tol 0.1 --eps 0.01",
    "attack layer": f"{_SMALL} --lengths 4 --samples 1 --layers 0 --steps 2 --tol 0.1",
    "attack model": f"{_SMALL} --lengths 4 --samples 1 --steps 2 --tol 0.1",
    "attack tokens": f"{_SMALL} --samples 1 --lengths 6 --method random --calls 3 --edits 1",
    "meanfield regimes": "--points 3",
    "meanfield splitting": f"{_SMALL} --lengths 4 --samples 1 --layers 0 --tol 0.1",
    "meanfield splitting-line": "--resolution 5",
    "meanfield splitting-cases": "",
    "meanfield splitting-copies": f"{_SMALL} --lengths 4 --layers 0 --tol 0.1",
    "meanfield masked": "--atoms 3 --restarts 2 --steps 2",
    "meanfield distance": f"{_SMALL} --lengths 4 --layers 0",
    "meanfield file-distance": "--files a.csv a.csv",
    "flow particles": "--particles 3 --dim 2 --until 0.1 --frames 2",
    "flow weights": f"{_SMALL} --lengths 4 --until 0.1 --frames 2",
    "flow gaussian": "--dim 2 --until 0.1 --frames 11",
    "flow pde": "--until 0.01 --cells 8 --frames 2",
    "flow model": f"{_SMALL} --lengths 4 --samples 1 --tol 0.1",
    "study export": "store.sqlite --file exported.jsonl",
    "study resume": "store.sqlite",
    "study run": "study.toml",
    "study validate": "study.toml",
    "plan": f"{_SMALL} --lengths 4 --samples 1 --layers 0",
    "report": "store.sqlite -o report.html",
    "reproduce": "norms --models TINY --lengths 4,6 --samples 1 --tol 0.1 --quick",
    "explore": "",
    "demo": "",
}


def leaves(command: click.Command = group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Return the path and the object of every command that is not a group."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


COMMANDS = {
    path: [option for option in command.params if isinstance(option, click.Option) and not option.is_flag]
    for path, command in leaves()
}


def test_every_command_with_options_has_a_line():
    assert set(LINES) == {path for path, options in COMMANDS.items() if options}


@pytest.mark.parametrize("path", LINES)
def test_numbers_have_limits(path):
    for option in COMMANDS[path]:
        assert not isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)), (
            f"{path} {option.opts[0]}: the parsers of howsmooth.questions.fields have limits and refuse NaN"
        )


@pytest.fixture
def bench(tmp_path, monkeypatch, tiny, text_file, howsmooth):
    """A folder with the files that the command lines name; nothing is served, and only the tiny model is measured."""
    import transformers
    from huggingface_hub import constants

    from howsmooth import explorer
    from howsmooth.cli import demo
    from howsmooth.explorer.catalog import ModelCatalog

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    transformers.logging.set_verbosity_error()
    Path("folder").mkdir()
    Path("a.csv").write_text("x\n1\n")
    Path("file.txt").write_text("no records, no weights, no study")
    Path("study.toml").write_text(STUDY.replace("TINY", tiny).replace("TEXT", text_file))
    page = SimpleNamespace(is_running=False, close=lambda verbose: None)
    monkeypatch.setattr(explorer, "explorer", lambda limits: ModelCatalog(limits).names() and page)
    monkeypatch.setattr(explorer, "launch", lambda page, **_options: "http://127.0.0.1:1/")
    monkeypatch.setattr(demo, "SPECS", ({"models": tiny, "layers": [0], "lengths": [4, 6], "samples": 1},))
    names = {"TINY": tiny, "TEXT": text_file}
    return lambda line, *more: howsmooth("", *(names.get(word, word) for word in shlex.split(line)), *more)


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.parametrize("path", LINES)
def test_hostile_values_of_options(bench, path):
    draw = random.Random(f"{SEED} {path}")
    print(f"seed {SEED}")
    if path.split()[0] in ("explore", "demo"):
        pytest.importorskip("gradio", reason=reasons.GRADIO)
    if "store.sqlite" in LINES[path]:
        assert bench("study run study.toml --store store.sqlite").code == 0
    assert bench(f"{path} {LINES[path]}").code == 0
    wrong = []
    for option in COMMANDS[path]:
        for value in draw.sample(HOSTILE, VALUES):
            value = {"DIRECTORY": "folder", "FILE": "file.txt"}.get(value, value)
            why = judged(bench, f"{path} {LINES[path]}", option.opts[0], value)
            if why:
                wrong.append(f"{path} {option.opts[0]} {value[:30]!r}: {why}")
    assert not wrong, "\n" + "\n".join(wrong)


def judged(bench, line: str, option: str, value: str) -> str:
    """Return what is wrong with the end of a command, or ""."""
    try:
        result = bench(line, f"{option}={value}" if option.startswith("--") else option + value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    message = [words for words in result.err.splitlines() if words.startswith("howsmooth: ")]
    if result.code == 0:
        return ""
    if "Traceback" in result.err:
        return "a traceback"
    if not message or len(message[-1]) < 30 or len(message[-1]) > 2000:
        return f"status {result.code} with {message}"
    return ""
