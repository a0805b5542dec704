"""The small commands: help, version, cite, doctor."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

import howsmooth as package
from tests.cli.conftest import ENVIRONMENT

# Each of these takes longer to import than the help may take in all; benchmarks/latency.py has the times.
SLOW_TO_IMPORT = {
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "pydantic",
    "matplotlib",
    "gradio",
    "ray",
    "pandas",
    "pyarrow",
    "jinja2",
    "rich",
}
LOADED = """
import atexit, sys
atexit.register(lambda: print("loaded:", *sys.modules))
from howsmooth.cli import main
main()
"""


@pytest.mark.parametrize("line", ["--help", "measure --help", "study run --help", "cite --help", "--version"])
def test_help_imports_nothing_slow(line):
    """Options are made from the fields of the spec, so that their help imports pydantic, but no other slow package."""
    command = [sys.executable, "-c", LOADED, *line.split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, _, modules = done.stdout.rpartition("loaded:")
    assert "howsmooth" in shown and "howsmooth.cli" in modules.split()
    assert SLOW_TO_IMPORT & set(modules.split()) == ({"pydantic"} if line.startswith(("measure", "study")) else set())


@pytest.mark.parametrize("line", ["", "attack", "flow", "meanfield"])
def test_help_of_a_group_imports_none_of_its_commands(line):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *line.split(), "--help"], env=ENVIRONMENT, capture_output=True, text=True
    )
    shown, _, modules = done.stdout.rpartition("loaded:")
    loaded = {name for name in modules.split() if name.startswith("howsmooth.cli.")}
    assert "Commands:" in shown and loaded <= {"howsmooth.cli.main"}


def test_short_help_in_groups_matches_the_commands():
    from howsmooth.cli.main import group

    def check(commands) -> int:
        context, count = click.Context(commands), 0
        for name, entry in commands.entries.items():
            command = commands.get_command(context, name)
            assert (command.name, command.short_help) == (name, entry.short_help)
            count += 1 + (check(command) if hasattr(command, "entries") else 0)
        return count

    assert check(group) == 34  # exact: a number of commands


def test_help_names_every_command(howsmooth):
    result = howsmooth("--help")
    assert result.code == 0
    for name in ("measure", "demo", "models", "doctor", "cite"):
        assert re.search(rf"^  {name} ", result.out, flags=re.MULTILINE)


def test_no_arguments_shows_the_help(howsmooth):
    result = howsmooth()
    assert result.code == 0 and "Usage: howsmooth" in result.out


def test_version(howsmooth):
    assert howsmooth("--version").out.strip().endswith(package.__version__)


def test_cite_prints_bibtex(howsmooth):
    text = howsmooth("cite").out
    entries = re.findall(r"^@\w+\{(\w+),", text, flags=re.MULTILINE)
    assert len(entries) == len(set(entries)) >= 5
    assert text.count("{") == text.count("}")
    for author in ("Castin", "Kuczy", "Dorsselaer", "Halko", "Golub"):
        assert author in text


def test_doctor_names_versions_devices_and_models(howsmooth):
    import torch

    result = howsmooth("doctor")
    assert result.code == 0
    for word in (
        package.__version__,
        torch.__version__,
        "transformers",
        "attention, cpu",
        "minilm",
        "smollm2",
        "cache",
    ):
        assert word in result.out


def test_doctor_says_which_implementation_of_attention_runs_on_each_device(howsmooth):
    import torch

    from howsmooth import kernels

    for device in ("cpu", "cuda:0") if torch.cuda.is_available() else ("cpu",):
        x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device=device)
        why = kernels.unsupported(x, x, x)
        line = " ".join(howsmooth("doctor").out.split())
        runs = (
            f"every dtype: blocks of queries in PyTorch; {why}" if why else "bfloat16: Triton kernels, heads up to 256"
        )
        assert f"attention, {device} {runs}" in line


def test_doctor_names_the_reason_for_each_dtype(monkeypatch):
    """On a device where the kernels run; `meta` stands for a GPU."""
    from howsmooth import kernels
    from howsmooth.cli.information import attention_on

    monkeypatch.setattr(kernels, "unsupported", lambda q, *_, **__: "no doubles" if q.dtype.itemsize == 8 else None)
    assert attention_on("meta").splitlines() == [
        "bfloat16: Triton kernels, heads up to 256 wide",
        "float16: Triton kernels, heads up to 256 wide",
        "float32: Triton kernels, heads up to 128 wide",
        "float64: blocks of queries in PyTorch; no doubles",
    ]


def test_models_shows_every_family(howsmooth):
    from howsmooth.models import compatibility

    plain, markdown = howsmooth("models").out, howsmooth("models --markdown").out
    assert markdown == compatibility.markdown()
    for family in compatibility.FAMILIES:
        assert family.name.split(",")[0] in plain and f"| {family.name}" in markdown
    assert "Mamba" in plain and "quantised weights" in plain
