"""The small commands: help, version, cite, doctor."""

from __future__ import annotations

import re
import time

import howsmooth as package


def test_help_is_instant(start):
    def seconds(line: str) -> float:
        begin = time.perf_counter()
        process = start(line)
        out, _ = process.communicate()
        assert process.returncode == 0 and "howsmooth" in out
        return time.perf_counter() - begin

    for line in ("--help", "measure --help", "--version"):
        assert min(seconds(line) for _ in range(4)) < 0.5, line


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


def test_doctor_says_whether_the_kernels_will_serve_and_why_not(howsmooth):
    import torch

    from howsmooth import kernels

    x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
    why = kernels.unsupported(x, x, x)
    line = " ".join(howsmooth("doctor").out.split())
    assert (f"none will serve: {why}" if why else "serve on the gpu: bfloat16") in line


def test_models_shows_every_family(howsmooth):
    from howsmooth.models import compatibility

    plain, markdown = howsmooth("models").out, howsmooth("models --markdown").out
    assert markdown == compatibility.markdown()
    for family in compatibility.FAMILIES:
        assert family.name.split(",")[0] in plain and f"| {family.name}" in markdown
    assert "mamba" in plain
