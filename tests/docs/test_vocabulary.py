"""An option has one meaning in all commands, and the table of options shows it with the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from howsmooth.cli import reproduce
from howsmooth.cli.options import format_default, spec_field
from howsmooth.questions import QUESTIONS, find_question
from howsmooth.questions.spec import ModelSpec
from tests.docs.comparison import ROOT, script

TABLE = script("options.py")
FOUND = list(TABLE.options())


def test_options_have_one_meaning_and_are_in_the_table():
    names = sorted({option.name for option in FOUND}, key=lambda name: (name.lower(), name))
    rows = TABLE.table().splitlines()[2:]
    assert len(FOUND) > 200 and [row.split("`")[1] for row in rows] == names
    assert "\n{{ options }}\n" in (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")


def test_a_row_of_the_table():
    """Commands with another default are named; a file name in a help text does not end the meaning."""
    rows = TABLE.table().splitlines()
    assert "| `--eps` | How far each token may move |  | attack ball `0.001,0.01,0.1` |" in rows
    assert "| `--data` | Folder with alice.txt and ag_news_test.csv | `$HOWSMOOTH_DATA` |  |" in rows


def test_defaults_of_help_texts_are_those_of_the_spec():
    known = find_question("measure").spec.model_fields
    fields = {option.name: option for option in FOUND if option.command == "measure" and option.field in known}
    assert {"--lengths", "--samples", "--tol", "--special-tokens"} <= fields.keys()
    for option in fields.values():
        info = spec_field(option.field)
        if info.annotation is bool:
            assert info.default is False and option.default == ""
        elif "[default" not in (info.description or ""):
            assert option.default == format_default(info.default), option.name


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
def test_defaults_of_commands_are_in_their_help(command):
    known = {option.field: option for option in FOUND if option.command == command}
    assert [
        field
        for field, default in OWN[command].items()
        if field in known and default and known[field].default != default
    ] == []


@pytest.mark.parametrize("text", ["Pressure.", "Exponents of something else.", "[default: 2]"])
def test_a_second_meaning_is_found(text):
    correct = [
        TABLE.Option("a", "--p", "p", "Exponents: of a distance.", "2"),
        TABLE.Option("b", "--p", "p", "Exponents.", "2"),
    ]
    assert TABLE.meaning(correct) == "Exponents"
    with pytest.raises(ValueError, match="expected one meaning of --p"):
        TABLE.meaning([*correct, TABLE.Option("c", "--p", "p", text, "")])
