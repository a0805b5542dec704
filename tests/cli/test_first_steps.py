"""What a new user meets first: help that fits a screen, suggestions, early refusals, labels that are true."""

from __future__ import annotations

import json
import re

import pytest

from howsmooth.cli.options import HELP_SECTIONS
from howsmooth.questions import QUESTIONS


def sections(help_text: str) -> dict[str, list[str]]:
    """Return the options of each section of a help text."""
    found: dict[str, list[str]] = {}
    for line in help_text.splitlines():
        if re.fullmatch(r"[A-Z].*:", line):
            found[line[:-1]] = []
        elif option := re.match(r"  (?:-\w, )?(--[\w-]+)", line):
            found[[*found][-1]].append(option[1])
    return found


def test_the_help_of_measure_begins_with_what_is_used_most(howsmooth, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = howsmooth("measure --help").out
    found = sections(text)
    assert [*found] == [*HELP_SECTIONS] and len(found) == 6
    options = [option for of_section in found.values() for option in of_section]
    assert len(options) == len(set(options)) >= 35
    assert {"--text", "--string", "--layers", "--lengths", "--samples", "--json", "--plot"} <= set(found["Most used"])
    common = text.partition("\n\nWhat is computed")[0].splitlines()
    assert len(common) <= 40 and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_option_of_a_question_is_in_one_section_of_its_help(howsmooth, question):
    entry = QUESTIONS[question]
    text = howsmooth(f"{entry.group} {entry.command or question} --help").out
    options = [option for of_section in sections(text).values() for option in of_section]
    assert "--help" in options and len(options) == len(set(options)) and set(sections(text)) <= set(HELP_SECTIONS)


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("mesure", "did you mean `howsmooth measure`?"),
        ("worst-case", "did you mean `howsmooth attack worst-case`?"),
        ("attack tokenz", "did you mean `howsmooth attack tokens`?"),
        ("studdy run", "did you mean `howsmooth study`?"),
        ("xyzzy", "choose among measure, compare, bound"),
    ],
)
def test_a_misspelt_command_is_corrected(howsmooth, line, suggestion):
    result = howsmooth(line)
    assert result.code == 2 and suggestion in result.err and len(result.errors) == 1


def test_layers_and_heads_count_from_the_end(howsmooth, tiny, text_file):
    line = f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --json -"
    last, second = (howsmooth(f"{line} --layers {layer}") for layer in (-1, 1))
    key = [json.loads(result.out)["task"] for result in (last, second)]
    assert json.loads(last.out)["layer"] == 1 and key[0] == key[1]
    both = [json.loads(found)["layer"] for found in howsmooth(f"{line} --layers -1,0,1").out.splitlines()]
    assert both == [1, 0]
    assert json.loads(howsmooth(f"{line} --layers 0 --heads -1").out)["head"] == 1
    refused = howsmooth(f"{line} --layers -3")
    assert refused.code == 2 and "between 0 and 1, got -3" in refused.err


@pytest.mark.parametrize(
    ("option", "message"),
    [("--heads 99", "heads of"), ("--layers 2", "layers of"), ("--device cuda:77", "device of this machine")],
)
def test_what_the_model_or_the_machine_lacks_is_refused_before_loading(howsmooth, tiny, option, message):
    result = howsmooth(f"measure {tiny} {option}")
    assert result.code == 2 and message in result.err and "loading" not in result.err


def test_random_weights_are_called_random_when_they_are_made(howsmooth, tiny):
    result = howsmooth(f"measure random:{tiny} --inputs ids --lengths 4 --samples 1 --layers 0")
    assert result.code == 0 and f"loading random:{tiny}\n" in result.err
