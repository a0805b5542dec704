"""An option has one meaning in all commands, and docs/notation.md has that meaning and the default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import click
import pytest

from howsmooth.cli import reproduce
from howsmooth.cli.main import group
from howsmooth.cli.options import format_default, spec_field
from howsmooth.questions import QUESTIONS, find_question
from howsmooth.questions.spec import ModelSpec
from tests.docs.comparison import ROOT

SEPARATORS = (".", ":", ";", " [")  # what may follow the meaning in a help text


class Option(NamedTuple):
    """An option of a command as its help shows it; the default is empty if there is none."""

    command: str
    name: str
    field: str
    help: str
    default: str


class Row(NamedTuple):
    """A row of the table; `own` are the defaults of commands with another default."""

    meaning: str
    default: str
    where: str
    own: dict[str, str]


def options(command: click.Command = group, path: tuple[str, ...] = ()) -> Iterator[Option]:
    context = click.Context(command)
    for param in command.params:
        if isinstance(param, click.Option):
            name = next(name for name in param.opts if name.startswith("--"))
            yield Option(" ".join(path) or "howsmooth", name, param.name, *_help_and_default(param, context))
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        yield from options(command.get_command(context, name), (*path, name))


def _help_and_default(param: click.Option, context: click.Context) -> tuple[str, str]:
    help_text = " ".join((param.help or "").split())
    shown_default = re.search(r"\[default: (.*)\]", help_text)
    if shown_default:
        return help_text, shown_default[1]
    default = None if param.is_flag else param.get_default(context, call=False)
    return help_text, str(default) if isinstance(default, (str, int, float)) else ""


def table(text: str) -> dict[str, Row]:
    """Return the rows of the table of options, by option."""
    rows = {}
    for line in text.partition("\n## Options\n")[2].splitlines():
        if line.startswith("| `--"):
            cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split(" |")]
            name, meaning, default, where, own = (cell.replace("¦", "|") for cell in cells)
            assert name.strip("`") not in rows, f"{name} is in the table twice"
            rows[name.strip("`")] = Row(
                meaning, default.strip("`"), where, dict(re.findall(r"([a-z][a-z -]*) `([^`]*)`", own))
            )
    return rows


def differences(found: list[Option], rows: dict[str, Row]) -> list[str]:
    """Return a line for each difference between the options and the table."""
    lines = [f"{name}: in the table, in no command" for name in rows.keys() - {option.name for option in found}]
    for option in found:
        row = rows.get(option.name)
        if row is None:
            lines.append(f"{option.command} {option.name}: not in the table")
            continue
        rest = option.help.removeprefix(row.meaning)
        if rest == option.help or not rest.startswith(SEPARATORS):
            lines.append(f"{option.command} {option.name}: means {option.help!r}, in the table {row.meaning!r}")
        wanted = row.own.get(option.command, row.default)
        if option.default != wanted:
            lines.append(f"{option.command} {option.name}: default {option.default!r}, in the table {wanted!r}")
    commands = {(option.name, option.command) for option in found}
    lines += [
        f"{name}: a default of {command}, which has no such option"
        for name, row in rows.items()
        for command in row.own
        if (name, command) not in commands
    ]
    return lines


FOUND, ROWS = list(options()), table((ROOT / "docs" / "notation.md").read_text(encoding="utf-8"))


def test_options_and_table_agree():
    assert len(FOUND) > 200 and differences(FOUND, ROWS) == []


def test_defaults_in_the_table_are_those_of_the_spec():
    """The defaults in the table are those of the fields, not only of the help texts made from them."""
    fields = {option.name: option.field for option in FOUND if ROWS[option.name].where == "spec"}
    assert {"--lengths", "--samples", "--tol", "--special-tokens", "--dtype", "--workers"} <= fields.keys()
    for name, field in fields.items():
        info = spec_field(field)
        if info.annotation is bool:
            assert info.default is False and ROWS[name].default == ""
        elif "[default" not in (info.description or ""):
            assert ROWS[name].default == format_default(info.default), name


def own_defaults() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each question's command with the defaults of the fields that all questions about models share."""
    for name, entry in QUESTIONS.items():
        spec = find_question(name).spec
        shared = ModelSpec.model_fields.keys() & set(spec.options)
        defaults = {field: format_default(spec.model_fields[field].default) for field in sorted(shared)}
        yield f"{entry.group} {entry.command or name}".strip(), defaults
    yield "reproduce", reproduce.FIGURE_DEFAULTS


OWN = dict(own_defaults())


@pytest.mark.parametrize("command", OWN)
def test_defaults_of_commands_are_in_the_table(command):
    own = OWN[command]
    known = {option.field: option for option in FOUND if option.command == command}
    for field, default in own.items():
        if field in known and default:
            row = ROWS[known[field].name]
            assert row.own.get(command, row.default) == default
    stated = {option for option, row in ROWS.items() if command in row.own and row.where == "spec"}
    assert stated <= {known[field].name for field in own if field in known}


def test_the_table_is_parsed():
    text = (
        "\n## Options\n\n| `--p` | Exponents | `1,2` | command | bound `3`; flow model `4` |\n"
        "| `--q` | Q | | spec | |\n"
    )
    assert table(text) == {
        "--p": Row("Exponents", "1,2", "command", {"bound": "3", "flow model": "4"}),
        "--q": Row("Q", "", "spec", {}),
    }


@pytest.mark.parametrize(
    "option, message",
    [
        (Option("a", "--new", "new", "New.", ""), "not in the table"),
        (Option("a", "--p", "p", "Pressure.", "2"), "means 'Pressure.'"),
        (Option("a", "--p", "p", "Exponents of something else.", "2"), "means"),
        (Option("a", "--p", "p", "Exponents.", "3"), "default '3'"),
        (Option("b", "--p", "p", "Exponents.", "2"), "default '2', in the table '5'"),
    ],
)
def test_the_check_can_fail(option, message):
    rows = {"--p": Row("Exponents", "2", "command", {"b": "5"})}
    correct = [Option("a", "--p", "p", "Exponents: of a distance.", "2"), Option("b", "--p", "p", "Exponents.", "5")]
    assert differences(correct, rows) == []
    assert [line for line in differences([*correct, option], rows) if message in line]
