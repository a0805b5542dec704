"""The small commands: help, version, cite, doctor."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import howsmooth as package


def test_help_is_instant():
    def seconds(*arguments: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "howsmooth", *arguments], check=True, capture_output=True)
        return time.perf_counter() - begin

    for arguments in (("--help",), ("measure", "--help"), ("--version",)):
        assert min(seconds(*arguments) for _ in range(4)) < 0.5, arguments


def test_help_names_every_command(howsmooth):
    result = howsmooth("--help")
    assert result.code == 0
    for name in ("measure", "demo", "doctor", "cite"):
        assert re.search(rf"^  {name} ", result.out, flags=re.MULTILINE)


def test_no_arguments_shows_the_help(howsmooth):
    result = howsmooth()
    assert result.code == 0 and "Usage: howsmooth" in result.out


def test_version(howsmooth):
    assert howsmooth("--version").out.strip().endswith(package.__version__)


def test_cite_gives_bibtex_of_what_is_used(howsmooth):
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
        "blockwise",
        "minilm",
        "smollm2",
        "cache",
    ):
        assert word in result.out
