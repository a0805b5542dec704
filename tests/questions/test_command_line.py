"""The command line of a spec, read as a command reads it, gives the same spec."""

from __future__ import annotations

import shlex

import pytest

from howsmooth.cli.ask import question_command
from howsmooth.cli.options import spec_from_options
from howsmooth.errors import InputError
from howsmooth.questions import find_question
from howsmooth.questions.command_line import command_line
from howsmooth.questions.spec import spec_of
from tests.questions.test_every_command import ARGUMENTS, command_of

MORE = {
    "measure": "'my model' --text 'a file.txt' --layers 0,3 --heads all --lengths 16..64*2 --tokens all,no-first "
    "--tol 1e-5 --max-memory 2G --dtype float64 --trust-remote-code --simultaneous --seed 3 --special-tokens none",
    "bound": "-- -a-name",
    "layer-attack": "random:gpt2 --budget 0.001,0.1 --perturbed-tokens 3 --attack noise --norm token --tol 0.02",
    "token-attack": "minilm --method all --protect none --objective cosine --similarity -0.5",
    "splitting-line": "--a -0.25 --third 0.5 --masses 1,1,2.5 --masked",
    "particles": "sphere --no-sphere --causal --solver-steps 7 --solver rk4 --rtol 1e-07",
    "masked": "--p 2,inf",
    "gaussian": "--A '1,0;0,-2' --V 0.5 --max-solver-steps 12",
}


def parsed(name: str, words: list[str]):
    """Return the spec of a command line, without what comes before its arguments."""
    spec = find_question(name).spec
    options = question_command(name).make_context(name, words).params
    if options.get("model", "") is None and find_question(name).asks_models:
        options["model"] = spec.model_fields["models"].default[0].name
    return spec_from_options(options, name)


@pytest.mark.parametrize("name, line", [*ARGUMENTS.items(), *MORE.items()])
def test_the_command_line_of_a_spec_gives_the_same_spec(name, line):
    spec = parsed(name, shlex.split(line.format(tiny="tiny", text="text.txt", measure="m.csv")))
    words = shlex.split(command_line(spec))
    start = ["howsmooth", *command_of(name).split()]
    assert words[: len(start)] == start
    again = parsed(name, words[len(start) :])
    assert again == spec and command_line(again) == command_line(spec)


def test_a_changed_option_changes_the_spec():
    assert parsed("measure", ["--seed", "1"]) != parsed("measure", ["--seed", "2"])


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"models": ["minilm", "smollm2"]}, "expected one model in a command, got 2"),
        ({"texts": ["a", "b"]}, "expected one text in a command, got 2"),
        ({"texts": [{"source": "a", "name": "b"}]}, "got name, which has none; write a study file"),
        ({"models": [{"name": "gpt2", "revisions": ["a", "b"]}]}, "got revisions, which has none"),
    ],
)
def test_what_a_command_cannot_say_is_refused(fields, words):
    with pytest.raises(InputError, match=words):
        command_line(spec_of(fields))


def test_no_word_of_a_value_is_a_word_of_the_shell():
    line = command_line(spec_of({"texts": ["$(rm -rf ~) `id`; x'\n\"y"], "models": ["a;b"]}))
    assert shlex.split(line) == ["howsmooth", "measure", "a;b", "--text", "$(rm -rf ~) `id`; x'\n\"y"]
