"""What the shell completes, by click's own protocol, and without importing anything slow."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete

from howsmooth.cli import options as completion
from howsmooth.cli.main import group


def completed(line: str) -> list[tuple[str, str]]:
    """Return type and value of the completions of the last word of a line."""
    *words, incomplete = line.split(" ")
    shell = BashComplete(group, {}, "howsmooth", "_HOWSMOOTH_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(words, incomplete)]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("meas", ["measure"]),
        ("attack w", ["worst-case"]),
        ("measure mini", ["minilm"]),
        ("measure smol", ["smollm2"]),
        ("bound random:g", ["random:gpt2"]),
        ("plan mini", ["minilm"]),
        ("measure --inputs n", ["normalised"]),
        ("measure --text gen", ["generated"]),
        ("measure --dtype f", ["float32", "float64", "float16"]),
        ("measure --thr", ["--threads"]),
        ("study r", ["run", "resume"]),
    ],
)
def test_words(line, values):
    assert sorted(completed(line)) == sorted(("plain", value) for value in values)  # exact: words


@pytest.mark.parametrize("line", ["measure ./my-mo", "measure --json out", "measure --images ph", "measure --text ./a"])
def test_paths(line):
    assert completed(line) == [("file", line.rpartition(" ")[2])]


def test_every_model_is_known():
    from howsmooth.models import EMBEDDED
    from howsmooth.models.families import FAMILIES

    random = {name.removeprefix("random:") for name in completion.MODELS if name.startswith("random:")}
    assert set(EMBEDDED) <= set(completion.MODELS) and random <= set(FAMILIES)


def test_the_names_of_texts_are_known():
    from howsmooth.texts.corpora import PAPER_CORPORA, read_corpus

    assert set(PAPER_CORPORA) <= set(completion.TEXTS)
    assert {read_corpus(name).name for name in ("embedded", "generated:100")} == {"embedded", "generated:100"}
