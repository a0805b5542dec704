"""Streams that are closed, and encodings without our characters: no traceback, and records stay UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import ENVIRONMENT
from tests.tiers import rest_is_slow

REGIMES = ("meanfield", "regimes", "--gamma-r2", "0.5", "--to", "4")


def run(*arguments: str, closed: tuple[int, ...] = (), **environment: str) -> subprocess.CompletedProcess:
    """Run the command with some of its descriptors closed."""
    return subprocess.run(
        [sys.executable, "-m", "howsmooth", *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        preexec_fn=lambda: [os.close(descriptor) for descriptor in closed],
    )


@pytest.mark.parametrize("line", ["", "measure --help", "cite", "models"])
def test_stdout_that_is_closed_discards_the_output(line):
    done = run(*line.split(), closed=(1,))
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_records_are_written_without_stdout(tmp_path):
    """The file is not opened as descriptor 1, to which libraries print."""
    path = tmp_path / "r.jsonl"
    done = run(*REGIMES, "--json", str(path), closed=(0, 1, 2))
    assert done.returncode == 0 and all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def test_an_error_without_stderr_is_an_exit_code():
    done = run("measure", "--nope", closed=(2,))
    assert done.returncode == 2 and done.stdout == b""


def test_a_text_from_a_closed_stdin_is_rejected():
    done = run("measure", "minilm", "--text", "-", "--lengths", "8", closed=(0,))
    assert done.returncode == 2 and b"Traceback" not in done.stderr and b"stdin" in done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1:strict"])
@pytest.mark.parametrize("line", rest_is_slow(["flow gaussian --help", "measure --help", "attack ball --help"]))
def test_help_in_an_encoding_without_greek_letters(line, encoding):
    done = run(*line.split(), PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stderr == b""
    shown = done.stdout.decode(encoding.partition(":")[0])
    assert "Most used:" in shown and ("\\u03" in shown or "\\u2" in shown)


@pytest.mark.parametrize("encoding", rest_is_slow(["ascii", "cp1252", "ascii:surrogateescape"]))
def test_a_table_in_an_encoding_without_our_characters(encoding):
    done = run(*REGIMES, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"Traceback" not in done.stderr and b"PYTHONIOENCODING" not in done.stderr
    assert done.stdout.decode(encoding.partition(":")[0]).count("\n") > 5


def test_the_error_handler_of_the_user_stays():
    done = run("flow", "gaussian", "--help", PYTHONIOENCODING="cp1252:replace")
    assert done.returncode == 0 and b"\\u" not in done.stdout and b"?" in done.stdout


@pytest.mark.parametrize("option", rest_is_slow(["--json", "--csv"]))
def test_records_on_stdout_are_utf8_in_any_encoding(option, tmp_path, bare):
    """As files of records are; also the name of the model, which is not ASCII."""
    folder = tmp_path / "modèle"
    folder.symlink_to(bare)
    line = ("measure", str(folder), "--inputs", "ids", "--lengths", "8", "--layers", "0", "--samples", "1", option, "-")
    done = run(*line, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "modèle" in done.stdout.decode("utf-8")
