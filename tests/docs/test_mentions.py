"""The commands, options, modules and names in the documentation exist."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from howsmooth.cli.main import group
from tests.docs.comparison import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACEHOLDERS = {"…", "COMMAND"}  # `howsmooth attack …`


def command_lines(text: str) -> Iterator[str]:
    """Yield the command lines of a page: indented or after a prompt, continued by a backslash, or in backticks."""
    text = re.sub(r" \\\n +", " ", text)
    yield from (
        re.split(r" {2,}", line)[0]  # comments, and columns of times
        for line in re.findall(r"^(?: {4,}|\$ )(?:.* \| )?(howsmooth [a-z].*)$", text, re.M)
    )
    yield from re.findall(r"`(howsmooth [a-z][^`\n]*)`", text)


def unknown(line: str) -> str | None:
    """Return the command or the option of a line that does not exist, or None."""
    try:
        words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
    except ValueError:
        return f"{line}: cannot be parsed"
    command: click.Command = group
    while isinstance(command, click.Group) and words and words[0] not in PLACEHOLDERS and words[0][0] != "-":
        name, *words = words
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"{line}: no command {name}"
        command = found
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    missing = [word for word in words if re.match(r"--[a-zA-Z]|-[a-z]$", word) and word not in known]
    return f"{line}: no option {missing[0]}" if missing else None


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_and_options_exist(page):
    assert [problem for line in command_lines(page.read_text(encoding="utf-8")) if (problem := unknown(line))] == []


def test_command_lines_are_found():
    page = (
        "    howsmooth bound gpt2 --tol 1   # quick\n$ howsmooth plan x \\\n      --tol 2\n"
        "    echo | howsmooth report -\n`howsmooth cite`"
    )
    assert list(command_lines(page)) == [
        "howsmooth bound gpt2 --tol 1",
        "howsmooth plan x --tol 2",
        "howsmooth report -",
        "howsmooth cite",
    ]
    assert sum(len(list(command_lines(page.read_text(encoding="utf-8")))) for page in PAGES) > 150


@pytest.mark.parametrize(
    "line, message",
    [
        ("howsmooth mesure", "no command mesure"),
        ("howsmooth attack guess", "no command guess"),
        ("howsmooth measure --length 3", "no option --length"),
        ("howsmooth flow particles --count 3", "no option --count"),
    ],
)
def test_the_check_can_fail(line, message):
    assert message in unknown(line)
    assert unknown("howsmooth flow pde --V -identity --until 2 | head") is None


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_imported_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(r"^from (howsmooth[\w.]*) import \(?([\w, \n]+?)\)?$", text, re.M):
        imported = importlib.import_module(module)
        for name in re.split(r"[,\s]+", names.strip(", \n")):
            assert hasattr(imported, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"
