"""What a command does before torch is imported, how many threads it sets, and what it prints while it computes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from howsmooth import threads
from howsmooth.cli.display import LastLines, RecordDisplay
from tests import reasons
from tests.cli.conftest import ENVIRONMENT

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SLOW = {"torch", "transformers", "scipy", "matplotlib", "jinja2"}
AT_EXIT = """
import atexit, json, os, sys
names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
atexit.register(lambda: print("at exit:" + json.dumps([sorted(sys.modules), {n: os.environ.get(n) for n in names}])))
"""
# Stops the command when it imports torch, with the environment of that moment.
BEFORE_TORCH = (
    AT_EXIT
    + """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.exit(99)
sys.meta_path.insert(0, Finder())
"""
)
MAIN = "from howsmooth.cli import main\nmain()\n"


def run(line: str, prelude: str, **environment: str) -> tuple[subprocess.CompletedProcess, set[str], dict]:
    """Run a command in its own process; return it, the modules it imported, and its environment at the end."""
    clean = {name: value for name, value in ENVIRONMENT.items() if name not in (*THREADS, *threads.PASSIVE_WAITING)}
    done = subprocess.run(
        [sys.executable, "-c", prelude + MAIN, *line.split()],
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )
    modules, variables = json.loads(done.stdout.rpartition("at exit:")[2])
    return done, set(modules), variables


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("measure {tiny} --lengths 8 --text absent.txt", "--text: expected a text, got absent.txt (no such file"),
        ("measure {tiny} --lengths 65", "at most 64 tokens"),
        ("measure {tiny} --layers 2", "between 0 and 1, got 2"),
        ("measure {bare} --text {text} --lengths 8", "expected a tokenizer"),
        ("measure ./absent", "which does not exist"),
        ("measure absent.gguf", "which does not exist"),
        ("measure {text}", "expected a model folder, a .gguf file or a name, got the file"),
        ("measure {tiny} --images {text}", "expected a model that takes images"),
        ("measure {tiny} --audio absent.wav", "absent.wav', which does not exist"),
        ("measure {tiny} --threads none", "--threads: expected"),
        ("measure {tiny} --quiet --verbose", "expected --quiet or --verbose, got both"),
        ("measure {tiny} --inputs ids --text {text}", "expected a text only with --inputs text"),
        ("bound ./absent", "which does not exist"),
        ("plan ./absent", "which does not exist"),
        ("attack ball ./absent", "which does not exist"),
        ("attack tokens ./absent", "which does not exist"),
        ("flow model ./absent", "which does not exist"),
        ("meanfield splitting ./absent", "which does not exist"),
        ("study run {study}", "which does not exist"),
    ],
)
def test_errors_that_need_no_model_import_nothing_slow(line, message, tiny, bare, text_file, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text('models = ["./absent"]\n')
    done, modules, _ = run(line.format(tiny=tiny, bare=bare, text=text_file, study=study), AT_EXIT)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not SLOW & modules


def test_an_unknown_name_is_compared_with_the_known_ones():
    done, modules, _ = run("measure minilmm", AT_EXIT, HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "did you mean 'minilm'?" in done.stderr and not SLOW & modules


@pytest.mark.parametrize("command", ["measure", "bound", "attack ball", "attack worst-case", "plan", "flow model"])
def test_loading_is_said_before_torch_is_imported(command, tiny, text_file):
    done, modules, _ = run(f"{command} {tiny} --lengths 8 --text {text_file}", BEFORE_TORCH)
    assert done.returncode == 99 and done.stderr == f"loading {tiny}\n"
    assert not SLOW & modules


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("attack tokens {tiny} --lengths 8 --text {text}", "{tiny}"),
        ("flow weights {tiny} --layers 0 --lengths 8 --text {text}", "{tiny}"),
        ("meanfield regimes", "torch"),
        ("meanfield masked", "torch"),
        ("meanfield splitting-line", "torch"),
        ("meanfield splitting-cases", "torch"),
        ("flow particles", "torch"),
        ("flow gaussian", "torch"),
        ("flow gaussian --A random", "torch"),
        ("flow pde", "torch"),
        ("study run {study}", "torch"),
        ("study validate {study} --full", "torch"),
        ("plan {study}", "torch"),
        ("reproduce norms --quick --out {folder}", "torch"),
        ("demo --out {folder}", "torch"),
        ("explore", "the explorer"),
        ("doctor", "torch"),
    ],
)
def test_something_is_said_before_torch_is_imported(line, shown, tiny, text_file, tmp_path):
    if line == "explore":
        pytest.importorskip("gradio", reason=reasons.GRADIO)
    study = tmp_path / "study.toml"
    study.write_text(f'models = ["{tiny}"]\nlengths = [8]\n')
    places = {"tiny": tiny, "text": text_file, "study": study, "folder": tmp_path}
    done, modules, _ = run(line.format(**places), BEFORE_TORCH)
    assert done.returncode == 99 and done.stderr == f"loading {shown.format(**places)}\n"
    assert not {"torch", "transformers"} & modules


def test_a_question_about_no_model_imports_no_transformers():
    done, modules, _ = run("meanfield regimes --gamma-r2 0.5 --to 4", AT_EXIT)
    assert done.returncode == 0 and "transformers" not in modules


def test_a_report_names_its_files_before_torch_is_imported(howsmooth, tiny, text_file, tmp_path):
    records = tmp_path / "records.jsonl"
    assert howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --layers 0 --samples 1 --json {records}").code == 0
    done, modules, _ = run(f"report {records} --report {tmp_path}/r.html", BEFORE_TORCH)
    assert done.returncode == 99 and done.stderr == f"loading {records}\n" and "torch" not in modules


def test_quiet_says_nothing_before_torch_is_imported():
    done, _, _ = run("meanfield regimes --quiet", BEFORE_TORCH)
    assert done.returncode == 99 and done.stderr == ""


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ("--lengths 64", {}, "1"),
        ("--lengths 64 --threads 3", {}, "3"),
        ("--lengths 64", {"OMP_NUM_THREADS": "5"}, "5"),
        ("--lengths 64 --threads 3", {"OMP_NUM_THREADS": "5"}, "3"),
        ("--lengths 64,257 --inputs normalised", {}, str(threads.available_cores())),
    ],
)
def test_threads_are_set_before_torch_is_imported(options, environment, expected, tiny):
    done, _, variables = run(f"measure {tiny} {options}", BEFORE_TORCH, **environment)
    assert done.returncode == 99
    assert variables == {"OMP_NUM_THREADS": expected, "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def test_a_wait_policy_of_the_user_is_kept(tiny):
    _, _, variables = run(f"measure {tiny} --lengths 8", BEFORE_TORCH, OMP_WAIT_POLICY="ACTIVE")
    assert variables["OMP_WAIT_POLICY"] == "ACTIVE"


def test_a_study_is_prepared_with_one_thread(tiny, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(f'models = ["{tiny}"]\nlengths = [8]\n')
    done, _, variables = run(f"study run {study}", BEFORE_TORCH)
    assert done.returncode == 99 and variables["OMP_NUM_THREADS"] == "1"


def test_remedies_name_options_of_the_command():
    from howsmooth.cli.ask import question_command
    from howsmooth.cli.runtime import name_options

    cases = {
        "expected a, got b; set max_memory, raise max_steps or tol": "set --max-memory, raise --max-steps or --tol",
        'expected a, got b; use dtype="float64"': "use --dtype float64",
        "expected tol > 0, got 0": "expected tol > 0, got 0",  # says what is wrong, not what to do
        "expected a, got b; pass tolerance": "pass tolerance",
        "expected a, got b; --dtype on the command line, dtype= in load()": "--dtype on the command line, dtype= in",
    }
    for message, wanted in cases.items():
        assert wanted in name_options(message, question_command("measure").params)
    assert name_options(
        "expected a number of steps, got none; set steps", question_command("particles").params
    ).endswith("set --solver-steps")


def test_every_command_that_computes_has_the_options():
    import click

    from howsmooth.cli.main import group

    def commands(parent, path=()):
        context = click.Context(parent)
        for name in parent.list_commands(context):
            found = parent.get_command(context, name)
            if isinstance(found, click.Group):
                yield from commands(found, (*path, name))
            else:
                yield " ".join((*path, name)), {option for param in found.params for option in param.opts}

    without = {"report", "models", "doctor", "cite", "study status", "study ls", "study export"}
    options = {"--threads", "--quiet", "--verbose"}
    assert {name for name, found in commands(group) if not options <= found} == without


def test_a_line_for_each_length_without_a_terminal(howsmooth, tiny, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8,16,32 --samples 2")
    lines = [line for line in result.err.splitlines() if line.startswith("n = ")]
    assert [line.partition(":")[0] for line in lines] == ["n = 8", "n = 16"]  # the table follows the last length
    assert all(": 4 estimates, " in line for line in lines) and "n = 8:" not in result.out


def test_quiet_prints_the_table_and_warnings_alone(howsmooth, tiny, bare, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8,16 --samples 1 --quiet")
    assert result.code == 0 and result.err == "" and "worst direction" in result.out
    result = howsmooth(f"measure {bare} --lengths 8 --samples 1 -q")
    assert len(result.err.splitlines()) == 1 and "has no tokenizer" in result.err


def test_verbose_prints_a_line_for_each_record(howsmooth, tiny, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 2 -v --layers 1")
    lines = [line for line in result.err.splitlines() if line.startswith("layer 1, n = 8: ")]
    assert len(lines) == 2 and all("converged" in line and " steps, " in line for line in lines)
    assert "threads: " in result.err


def display(records: int, **options) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=10)
    shown = RecordDisplay(console, "tiny", 3, record_noun="estimate", **options)
    with shown:
        for number in range(records):
            shown.show_position({"n": 8, "layer": 1, "head": None})
            shown.add({"n": 8, "value": float(number)})
    return stream.getvalue()


def test_a_terminal_shows_the_table_so_far_and_removes_it(monkeypatch):
    monkeypatch.setattr("howsmooth.cli.display.SECONDS_BETWEEN_TABLES", -1.0)
    tables = []
    text = display(3, table=lambda records: tables.append(len(records)) or "row " * len(records))
    assert tables == [1, 2, 3] and "row row row" in text and "tiny layer 1, n = 8" in text
    assert text.endswith("\x1b[2K")  # the last line is erased


def test_a_length_is_complete_when_the_next_one_begins():
    stream = io.StringIO()
    shown = RecordDisplay(Console(file=stream, width=80), "tiny", 4, record_noun="estimate")
    for n in (8, 8, 16, 16):
        shown.show_position({"n": n, "layer": 0, "head": None})
        before = stream.getvalue()
        shown.add({"n": n, "kind": "measurement", "value": float(n)})
        assert stream.getvalue() == before  # already printed, or not complete
    assert stream.getvalue().startswith("n = 8: 2 estimates, 8.000, ") and stream.getvalue().count("\n") == 1


def test_no_live_display_where_records_are_on_the_screen():
    assert display(1, table=lambda records: "rows", live=False) == ""


def test_a_table_is_cut_to_the_terminal():
    stream = io.StringIO()
    Console(file=stream, width=20, height=6).print(LastLines("\n".join(map(str, range(50)))))
    assert stream.getvalue().split() == ["47", "48", "49"]


def test_workers_wait_passively(monkeypatch):
    """A worker process sets its environment before it unpickles its work, which imports torch."""
    import pickle

    from howsmooth.studies import engines

    class Ended(Exception):
        pass

    def unpickle(_):
        seen.update({name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")})
        raise Ended

    seen: dict = {}
    for name in (*THREADS, *threads.PASSIVE_WAITING):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(pickle, "loads", unpickle)
    monkeypatch.setattr(engines.sys, "platform", "test")
    monkeypatch.setattr(engines.signal, "signal", lambda *_: None)
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    sys.modules["torch"].set_num_threads = lambda count: seen.update(torch=count)
    with pytest.raises(Ended):
        engines._worker_main(None, b"", 3, os.getpid())
    assert seen == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "PASSIVE", "torch": 3}
