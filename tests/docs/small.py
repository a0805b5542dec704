"""Run the code of the documentation at small size: tiny models and files, short texts, few steps.

`workspace` makes a folder with everything that the pages mention: models, texts, a study with its store, records.
`Shell` runs lines there, in this process. Each line keeps its command and options; their values become small.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from unittest import mock

import click
import torch

from tests.data import make_ag_news, make_gpt2
from tests.docs.blocks import Block
from tests.docs.comparison import ROOT
from tests.models.tiny import VOCABULARY, tiny_config, tiny_tokenizer

# Names of models in the documentation, and the tiny model that takes their place.
MODELS = {"minilm": "tiny-bert", "mpnet": "tiny-bert", "random:bert": "tiny-bert"} | dict.fromkeys(
    ("smollm2", "gpt2", "my-model", "./my-model", "random:gpt2", "random:smollm2"), "tiny-gpt2"
)
_MODEL = re.compile(
    r"(?<![\w/.-])(?:" + "|".join(map(re.escape, sorted(MODELS, key=len, reverse=True))) + r")(?![\w.-])"
)
DEFAULT_MODELS = {
    "measure": "tiny-bert",
    "model": "tiny-bert",
    "tokens": "tiny-gpt2",
}  # of commands, where none is given
LAYERS = 6
# Small values of options; a list in the documentation stays a list.
SMALL = {
    "--lengths": ("8", "6,8"),
    "--samples": ("1", "1"),
    "--steps": ("2", "2"),
    "--restarts": ("2", "2"),
    "--calls": ("14", "14"),
    "--particles": ("8", "8,12"),
    "--frames": ("3", "3"),
    "--until": ("0.3", "0.3"),
    "--cells": ("24", "24"),
    "--repeats": ("1", "1"),
    "--resolution": ("11", "11"),
    "--points": ("2", "2"),
    "--to": ("3", "3"),
    "--atoms": ("3", "3"),
    "--growth": ("2", "2"),
    "--depths": ("1", "1,2"),
    "--tol": ("0.01", "0.01"),
    "--workers": ("0", "0"),
    "--device": ("cpu", "cpu"),
    "--p": ("2", "2,inf"),
    "--sizes": ("0", "0,0.3"),
    "--eps": ("0.01", "0.001,0.01"),
}
ONLY_IF_GIVEN = {"--device", "--particles", "--growth", "--depths", "--p", "--eps", "--workers"}
# The same for Python: what a block says, and what the tests run.
SMALL_CODE = {
    "count=12": "count=4",
    "(2, 4, 6, 8)": "(1, 2, 3, 4)",
    "restarts=8": "restarts=2",
    "cells=240": "cells=60",
    "range(12)": "range(4)",
    "sizes[36]": "sizes[12]",
}
STUDY = """\
models = ["tiny-gpt2"]
texts = ["alice.txt"]
cutting = "prefixes"
lengths = [4, 5, 6, 8]
samples = 2
layers = [0, 1]

[engine]
workers = 0
"""

GAUSSIAN = """\
[attention]
name = "softmax"
heads = [{ A = 1.0, V = -1.0 }]

[tokens]
count = 12
dim = 2
law = "normal"

[flow]
until = 0.5
"""


def workspace(folder: Path) -> Path:
    """Fill a folder with what the pages mention, and return it."""
    from howsmooth.cli import main
    from howsmooth.texts import default_text

    save_models(folder)
    make_gpt2(folder)
    for inner in ("DIR", "docs/images"):
        (folder / inner).mkdir(parents=True)
    for name in ("alice.txt", "my.txt", "a.txt", "DIR/alice.txt"):
        (folder / name).write_text(default_text()[:4000], encoding="utf-8")
    (folder / "b.txt").write_text(default_text()[4000:8000], encoding="utf-8")
    for place in (folder, folder / "DIR"):
        make_ag_news(place)
    (folder / "growth.toml").write_text(STUDY, encoding="utf-8")
    flows = (ROOT / "docs" / "flows.md").read_text(encoding="utf-8")
    (folder / "mine.toml").write_text(re.search(r"```toml\n(.*?)```", flows, re.S)[1], encoding="utf-8")
    (folder / "gaussian.toml").write_text(GAUSSIAN, encoding="utf-8")
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("x,y\n0,0\n1,0\n0,1\n", encoding="utf-8")
    for name in ("a.npz", "b.npz"):
        import numpy as np

        np.savez(folder / name, points=np.random.default_rng(len(name)).normal(size=(5, 2)))
    with inside(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for line in (
            "study run growth.toml",
            "measure tiny-bert --layers 0 --lengths 6,8 --samples 1 --json layers.jsonl",
            "measure tiny-bert --layers 0 --heads 0,1 --lengths 6 --samples 1 --json heads.jsonl",
            "bound tiny-bert --layers 0 --lengths 6 --json bounds.jsonl",
            "attack worst-case tiny-bert --layers 0 --lengths 6 --restarts 1 --steps 1 --json worst.jsonl",
        ):
            with contextlib.suppress(SystemExit):
                main(shlex.split(line))
    assert {"growth.sqlite", "layers.jsonl", "heads.jsonl", "bounds.jsonl", "worst.jsonl"} <= set(os.listdir(folder))
    return folder


def save_models(folder: Path) -> None:
    """Save a tiny BERT and a tiny GPT-2 with a language head, each with six layers, four heads and a tokenizer."""
    from transformers import BertModel, GPT2LMHeadModel

    for family, kind, sizes in (
        ("bert", BertModel, {"num_hidden_layers": LAYERS, "max_position_embeddings": 512}),
        ("gpt2", GPT2LMHeadModel, {"n_layer": LAYERS, "n_positions": 512}),
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = kind(tiny_config(family, **sizes))
        network.eval().save_pretrained(folder / f"tiny-{family}")
        tiny_tokenizer(family).save_pretrained(folder / f"tiny-{family}")


@contextlib.contextmanager
def inside(folder: Path):
    """Run the block in a folder whose corpora are those of the folder DIR in it."""
    before = Path.cwd()
    with mock.patch.dict(os.environ, {"HOWSMOOTH_DATA": str(folder / "DIR")}):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def tiny_names(text: str) -> str:
    """Return a text with the names of models replaced by those of tiny models."""
    return _MODEL.sub(lambda found: MODELS[found[0]], text)


def small(words: list[str]) -> list[str]:
    """Return the arguments of a command with small values."""
    from howsmooth.cli.main import group

    words = [tiny_names(word).replace("FILE", "gpt2_attention.safetensors") for word in words]
    command: click.Command = group
    depth = 0
    while isinstance(command, click.Group) and depth < len(words):
        found = command.get_command(click.Context(command), words[depth])
        if found is None:
            break
        command, depth = found, depth + 1
    given = {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}
    own = {name for param in command.params for name in param.opts}
    more = []
    for option, (one, several) in SMALL.items():
        if option in own and (option in given or option not in ONLY_IF_GIVEN):
            more += [option, several if "," in given.get(option, "") or ".." in given.get(option, "") else one]
    if command.name == "gaussian":
        more += ["--frames", "11"]  # the fewest that it takes
    takes_layers = "--layers" in own and (
        command.name != "tokens" or "--layers" in given
    )  # of one objective for tokens
    if takes_layers and given.get("--layers") != "all" and "gpt2_attention.safetensors" not in words:
        layers = given.get("--layers", "0,1").split(",")
        more += ["--layers", ",".join(dict.fromkeys(str(min(int(layer), LAYERS - 1)) for layer in layers))]
    if command.name == "splitting" and "--map" not in given:  # all heads
        more += ["--heads", "0,1"]
    elif command.name in ("splitting", "splitting-copies"):  # layers, by automatic differentiation
        more += ["--layers", "0", "--lengths", "4"]
    if command.name in DEFAULT_MODELS and not _has_model(command, words[depth:]):
        words = [*words[:depth], DEFAULT_MODELS[command.name], *words[depth:]]
    return [*words, *more]


def _has_model(command: click.Command, words: list[str]) -> bool:
    context = command.make_context(command.name, list(words), resilient_parsing=True)
    return context.get_parameter_source("model") == click.core.ParameterSource.COMMANDLINE


@contextlib.contextmanager
def coarse_figures():
    """Draw figures with few pixels."""
    from matplotlib.figure import Figure

    original = Figure.__init__
    with mock.patch.object(Figure, "__init__", lambda *args, **options: original(*args, **{**options, "dpi": 20})):
        yield


class Shell:
    """Runs lines of shell in a workspace.

    Attributes:
        seen: The small commands that have been run; equal ones run once.
    """

    def __init__(self, folder: Path):
        self.folder, self.seen = folder, set[tuple[str, ...]]()

    def run(self, line: str) -> None:
        """Run a line, or check what it names if it installs, builds or draws figures of the documentation."""
        stdin = ""
        for part in line.split(" | "):
            program, *words = shlex.split(part)
            if program == "howsmooth":
                stdin = self._howsmooth(words, stdin)
            elif program == "echo":
                stdin = " ".join(words) + "\n"
            elif program in CHECKS:
                CHECKS[program](words)
            else:
                raise AssertionError(f"expected one of howsmooth, echo, {', '.join(CHECKS)}, got {program}: {line}")

    def _howsmooth(self, words: list[str], stdin: str) -> str:
        from howsmooth.cli import main

        arguments = small(words)
        if words[0] in RUN_ELSEWHERE or (tuple(arguments) in self.seen and not stdin):
            return ""
        self.seen.add(tuple(arguments))
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            inside(self.folder),
            coarse_figures(),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main(arguments)
            except SystemExit as exit:
                code = exit.code or 0
        assert code == 0, f"howsmooth {shlex.join(arguments)}: exit code {code}\n{err.getvalue()}{out.getvalue()}"
        return out.getvalue()


RUN_ELSEWHERE = {
    "explore": "serves until Ctrl-C; tests/cli/test_explore.py starts it",
    "demo": "measures two models; tests/cli/test_demo.py runs it",
    "reproduce": "tests/cli/test_reproduce.py runs every figure",
}


def _check_make(words: list[str]) -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1].split()
    assert {word for word in words if "=" not in word} <= set(targets), f"no such target: {words}"


def _check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name for word in words for part in re.findall(r"\[([\w,]+)\]", word) for name in part.split(",")}
    assert extras <= set(project["optional-dependencies"]), f"no such extra: {words}"
    for option in ("-c", "-r"):
        if option in words:
            assert (ROOT / words[words.index(option) + 1]).is_file(), words


def _check_python(words: list[str]) -> None:
    """Check that a script or a module exists; tests/experiments runs them."""
    path = words[1].replace(".", "/") if words[0] == "-m" else words[0].removesuffix(".py")
    exists = any((ROOT / f"{path}{end}").exists() for end in (".py", "/__main__.py"))
    assert exists or words[:2] == ["-m", "pytest"], f"no such script: {words}"


def _check_nothing(words: list[str]) -> None:
    """Accept programs that are not ours."""


CHECKS = {
    "make": _check_make,
    "pip": _check_pip,
    "python": _check_python,
    ".venv/bin/python": _check_python,
    "git": _check_nothing,
    "cd": _check_nothing,
    "jq": _check_nothing,
}


def scope(folder: Path) -> dict:
    """Return the names that code may use without defining them, because a reader has them: a model and its data."""
    from transformers import AutoModel

    import howsmooth
    from howsmooth.texts import default_text

    network = AutoModel.from_pretrained(folder / "tiny-gpt2").eval()
    ids = torch.arange(12).view(1, 12) % VOCABULARY
    return {
        "network": network,
        "tokenizer": tiny_tokenizer("gpt2"),
        "text": default_text()[:1600],
        "ids": ids,
        "mask": torch.ones_like(ids),
        "task_loss": torch.zeros(()),
        "howsmooth": howsmooth,
        "torch": torch,
    }


def run_python(block: Block, names: dict, folder: Path, *, tiny: bool = True) -> str:
    """Run a block of Python, unless told otherwise with tiny models, and return what it prints."""
    code = block.code
    if tiny:
        code = re.sub(r"\"([^\"\n]*)\"", lambda found: f'"{tiny_names(found[1])}"', code)
    for large, small_value in SMALL_CODE.items():
        code = code.replace(large, small_value)
    out = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(out):
        exec(compile(code, str(block), "exec"), names)
    return out.getvalue()
