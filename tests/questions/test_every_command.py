"""Every question's command: records that our own report reads, files that resume, a page, a table, a figure."""

from __future__ import annotations

import csv
import html
import json

import click
import pytest

import howsmooth as package
from howsmooth.cli.main import group
from howsmooth.questions import QUESTIONS, question_of, record_error
from howsmooth.records.lock import only_writer
from howsmooth.report.rows import counted
from tests import reasons

# Small arguments for each question; "{tiny}" and "{text}" are a tiny model and a text, "{measure}" a file of a measure.
ARGUMENTS = {
    "measure": "{tiny} --text {text} --layers 0 --lengths 4,6 --samples 1",
    "compare": "{tiny} random:{tiny} --text {text} --layers 0,1 --lengths 4 --samples 1",
    "bound": "{tiny} --text {text} --layers 0 --lengths 4",
    "worst-case": "{tiny} --text {text} --layers 0 --lengths 4 --restarts 2 --steps 2",
    "ball": "{tiny} --text {text} --layers 0 --lengths 4 --eps 0.01 --restarts 2 --steps 2",
    "configuration": "{tiny} --layers 0 --lengths 4",
    "layer-attack": "{tiny} --text {text} --layers 0 --lengths 4 --attack noise,singular",
    "model-attack": "{tiny} --text {text} --lengths 4 --attack noise,sign",
    "token-attack": "{tiny} --text {text} --lengths 8 --samples 1 --method random --calls 4 --edits 1",
    "regimes": "--gamma-r2 2 --to 4 --points 3",
    "masked": "--p 2 --sizes 0.1 --atoms 4 --restarts 2 --steps 2",
    "splitting": "{tiny} --text {text} --layers 0 --lengths 4",
    "splitting-line": "--resolution 8",
    "splitting-cases": "",
    "splitting-copies": "{tiny} --text {text} --layers 0 --lengths 4",
    "distance": "{tiny} --text {text} --layers 0 --lengths 4 --p 2",
    "file-distance": "--files {measure} {measure} --p 2",
    "particles": "collapse --until 0.2 --frames 3 --particles 5 --growth 1",
    "weights": "{tiny} --text {text} --layers 0 --lengths 4 --until 0.2 --frames 3",
    "gaussian": "--until 0.2 --frames 11",
    "pde": "--V -identity --until 0.1 --cells 16 --frames 2 --particles 8,16 --repeats 1",
    "depth": "{tiny} --text {text} --lengths 4 --no-growth",
}


def command_of(name: str) -> str:
    entry = QUESTIONS[name]
    return f"{entry.group} {entry.command or name}".strip()


@pytest.fixture(scope="module")
def measure(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("measure") / "m.csv"
    path.write_text("x1,x2\n0,0\n1,0\n0,2\n")
    return str(path)


def test_every_question_has_arguments():
    assert ARGUMENTS.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_command_writes_what_our_report_reads_and_resumes(name, howsmooth, tiny, text_file, measure, tmp_path):
    lines, sheet, page, plot = (tmp_path / f"a.{ending}" for ending in ("jsonl", "csv", "html", "svg"))
    line = f"{command_of(name)} {ARGUMENTS[name].format(tiny=tiny, text=text_file, measure=measure)} --json {lines}"
    ran = howsmooth(f"{line} --csv {sheet} --report {page} --plot {plot}")
    assert ran.code == 0, ran.err
    written = lines.read_bytes()
    records = [json.loads(text) for text in written.decode().splitlines()]
    assert records and [record_error(record) for record in records] == [None] * len(records)
    assert len({record["task"] for record in records}) == len(records)
    assert page.read_text().startswith("<!doctype html>") and "<svg" in plot.read_text()
    with sheet.open(newline="") as stream:
        assert [row["task"] for row in csv.DictReader(stream)] == [record["task"] for record in records]

    again = howsmooth(line)
    assert again.code == 0 and f"{len(records)} " in again.err and "had been in" in again.err
    assert lines.read_bytes() == written and again.out == ran.out

    cut = written[: written.rstrip().rindex(b"\n") + 1] if len(records) > 1 else b""
    lines.write_bytes(cut)  # a run that was killed before its last record
    assert howsmooth(line).code == 0 and len(lines.read_text().splitlines()) == len(records)

    report = howsmooth(f"report {lines} --report {tmp_path / 'r.html'} --tables {tmp_path / 't'}")
    assert (
        report.code == 0
        and f"wrote {counted(len(records), 'record')}" in report.err
        and any((tmp_path / "t").iterdir())
    )
    shown = package.read(lines)
    assert len(shown) == len(records) and str(shown).strip() and repr(shown)


def commands_with_json(parent, path=()):
    context = click.Context(parent)
    for name in parent.list_commands(context):
        found = parent.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands_with_json(found, (*path, name))
        elif any("--json" in param.opts for param in found.params):
            yield " ".join((*path, name))


def test_every_command_that_writes_records_refuses_a_file_that_another_writes(
    howsmooth, tiny, text_file, measure, tmp_path
):
    """The lock is held during the whole command, so that the other writer needs no moment of its own."""
    given = {command_of(name): arguments for name, arguments in ARGUMENTS.items()}
    given["plan"] = ARGUMENTS["measure"]
    found = list(commands_with_json(group))
    assert set(found) == set(given)
    lines = tmp_path / "a.jsonl"
    lines.write_text("theirs")
    for command in found:
        arguments = given[command].format(tiny=tiny, text=text_file, measure=measure)
        with only_writer(lines, "a file", "--json"):
            refused = howsmooth(f"{command} {arguments} --json {lines}")
        assert refused.code == 2 and len(refused.errors) == 1 and "nobody else is writing" in refused.err, command
        assert lines.read_text() == "theirs"


def test_records_of_all_questions_are_read_mixed_in_one_file(howsmooth, tiny, text_file, measure, tmp_path):
    mixed, kinds = tmp_path / "mixed.jsonl", set()
    with mixed.open("w") as file:
        for name in QUESTIONS:
            arguments = ARGUMENTS[name].format(tiny=tiny, text=text_file, measure=measure)
            for text in howsmooth(f"{command_of(name)} {arguments} --json -").out.splitlines():
                file.write(text + "\n")
                kinds.add(question_of(json.loads(text)))
    ran = howsmooth(
        f"report {mixed} --report {tmp_path / 'mixed.html'} --figures {tmp_path / 'figures'} --tables {tmp_path / 't'}"
    )
    assert ran.code == 0 and "left out" not in ran.err, ran.err
    # Their records are those of particles and of measure.
    assert kinds == QUESTIONS.keys() - {"weights", "configuration"}
    page = html.unescape((tmp_path / "mixed.html").read_text())
    drawn_by_script = {"measure", "bound", "worst-case", "ball"}
    assert all(QUESTIONS[name].help in page for name in kinds - drawn_by_script)
    assert kinds - {"measure", "bound"} <= {path.stem for path in (tmp_path / "figures").iterdir()}
    tables = {path.stem for path in (tmp_path / "t").iterdir()}
    assert {"measurements", "particles", "splitting-copies", "rates"} <= tables

    pytest.importorskip("pyarrow", reason=reasons.extra("pyarrow", "parquet"))
    found = package.read(mixed)
    found.save(tmp_path / "mixed.parquet")
    assert list(package.read(tmp_path / "mixed.parquet")) == list(found)  # exact: copied from the file
