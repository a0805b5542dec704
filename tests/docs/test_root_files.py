"""CONTRIBUTING, CITATION and CHANGELOG agree with the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import howsmooth
from howsmooth.questions.fields import expand_ranges
from tests.docs.comparison import ROOT
from tests.test_layers import LAYERS, ONLY_IN

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_layers_are_those_of_test_layers():
    assert " → ".join(" | ".join(group) for group in LAYERS) in GUIDE
    rows = {name: row for row in GUIDE.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}
    assert {package for group in LAYERS for package in group} <= set(rows)
    assert [
        dependency
        for dependency, packages in ONLY_IN.items()
        for package in packages
        if dependency not in rows[package] and dependency != "tokenizers"
    ] == []


def test_files_named_in_the_guide_exist():
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", GUIDE):
        assert (ROOT / path).exists(), path
    packages = "|".join(package for group in LAYERS for package in group)
    for path in re.findall(rf"`((?:tests|benchmarks|docs|{packages})/[\w/.]*)`", GUIDE):
        assert (ROOT / path).exists() or (ROOT / "src" / "howsmooth" / path).exists(), path


WALK_THROUGHS = re.findall(
    r"^`(howsmooth [^`]+)`:\n\n((?:\d+\. .*\n)+)", GUIDE.partition("\n## Walk-through\n")[2], re.M
)


def defined(path: Path) -> set[str]:
    """Return the functions and classes of a file, and methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def missing(steps: str) -> list[str]:
    """Return files and functions of a walk-through that do not exist; a function belongs to the file named last."""
    names, path = [], None
    for name in re.findall(r"`([\w/.]+)`", steps):
        if name.endswith(".py"):
            path = ROOT / "src" / "howsmooth" / name
            names += [] if path.is_file() else [name]
        elif path is not None and path.is_file() and name not in defined(path):
            names.append(f"{path.name}: {name}")
    return names


def test_there_are_two_walk_throughs():
    assert [line.split()[1] for line, _ in WALK_THROUGHS] == ["measure", "study"]


@pytest.mark.parametrize("line, steps", WALK_THROUGHS, ids=[line for line, _ in WALK_THROUGHS])
def test_every_file_and_function_of_a_walk_through_exists(line, steps):
    assert len(steps.splitlines()) <= 12
    for step in steps.splitlines():
        assert re.match(r"\d+\. `[\w/]+\.py`: `[\w.]+`", step), "a step names a file, then a function"
    assert missing(steps) == []


def test_missing_names_are_found():
    steps = "1. `cli/main.py`: `main` and `no_such`.\n2. `cli/gone.py`: `command`."
    assert missing(steps) == ["main.py: no_such", "cli/gone.py"]
    assert missing("1. `studies/store.py`: `Store.write`, `Store.burn`.") == ["store.py: Store.burn"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/howto/my_model.md"])
def test_first_examples_measure_enough_lengths_for_a_law(page):
    """Fewer than four give no exponent, the first thing that a reader would look for; an attack has one length."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"howsmooth (?:measure|bound|plan)\b.* --lengths (\S+)", text)
    listed = re.findall(r"howsmooth\.measure\(.*lengths=\[([\d, ]+)\]", text)
    assert found + listed and all(len(expand_ranges(lengths.replace(" ", ""))) >= 4 for lengths in found + listed)


def test_the_changelog_starts_with_this_version():
    first = re.findall(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    assert first == howsmooth.__version__


def test_the_citation_is_of_this_version():
    assert f"version: {howsmooth.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_options_and_limits_of_the_security_page_are_those_of_the_code():
    from howsmooth import reading
    from howsmooth.models.weights import LARGEST_COUNT, LARGEST_TEXT
    from tests.cli.test_fuzz import leaves

    options = {name for _, command in leaves() for option in command.params for name in option.opts}
    named = set(re.findall(r"`(--[a-z-]+)`", SECURITY))
    assert {"--trust-remote-code", "--allow-pickle", "--address", "--allowed-host", "--hub"} <= named <= options
    assert f"{LARGEST_TEXT >> 20} MiB, and a config at most {LARGEST_COUNT}" in SECURITY
    assert (
        f"({reading.LARGEST_TOML >> 20} MiB, {reading.LARGEST >> 30} GiB, {reading.LARGEST_LINE >> 20} MiB)" in SECURITY
    )
    for heading in ("Models", "Study files and stores", "Pages, tables and figures", "The explorer"):
        assert f"\n## {heading}\n" in SECURITY
