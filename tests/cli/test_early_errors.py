"""Every option of every command: a bad value is refused with one line, before anything slow is imported.

All command lines run in one process, in which importing torch raises: it must not be imported even once.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.cli.conftest import ENVIRONMENT

SLOW = ("torch", "transformers", "scipy", "matplotlib", "jinja2", "gradio")
SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path

class TorchImported(BaseException):
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise TorchImported

sys.meta_path.insert(0, Finder())
from howsmooth.cli import main

results = []
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(line)
    except SystemExit as error:
        code = error.code
    except TorchImported:
        code = "torch imported"
    results.append([line, code, err.getvalue()])
print(json.dumps([results, [name for name in %r if name in sys.modules]]))
"""
# What stands before the option, where the command needs it.
ARGUMENTS = {
    "study run": ["{study}"],
    "study resume": ["{study}"],
    "study status": ["{study}"],
    "study validate": ["{study}"],
    "study export": ["{study}"],
    "report": ["{records}"],
    "plan": ["{tiny}"],
    "reproduce": ["norms"],
    "meanfield file-distance": ["{tiny}", "--files", "{measure}", "{measure}"],
}
TAKE_A_MODEL = (
    *("measure", "bound", "attack", "flow model", "flow weights", "meanfield splitting --"),
    *("meanfield splitting-copies", "meanfield distance"),
)
# A value that is wrong for the option; "nosuch" for all others.
WRONG = {
    "--allowed-host": " ",
    "--tokenizer": "./absent",
    "--text": "absent.txt",
    "--other": "absent.txt",
    "--images": "absent.png",
    "--audio": "absent.wav",
    "--model-folder": "./absent",
    "--data": "./absent",
    "--gpt2-attention": "./absent",
}
# Files and folders that cannot be written, because the folder before the name is a file.
OUTPUTS = {"--json", "--csv", "--plot", "--report", "--animate", "--plot-rate", "--artefacts", "--out", "--svg"}
OUTPUTS |= {"--store", "--tables", "--figures", "-o", "--file"}
SUFFIX = {"--report": ".html", "-o": ".html", "--animate": ".gif", "--plot": ".png", "--plot-rate": ".png"}
ANY_VALUE = {
    "report --title",
    "reproduce --models",  # a model that cannot be loaded is a missing panel
    "study validate --models",  # of a study file, names are checked when it runs
    "study validate --text",
    "study validate --images",
    "study validate --audio",
}


def options() -> list[tuple[str, str, int]]:
    """Return command, option and number of values, of every option that takes a value."""
    import click

    from howsmooth.cli.main import group

    def walk(parent, path=()):
        context = click.Context(parent)
        for name in parent.list_commands(context):
            found = parent.get_command(context, name)
            if isinstance(found, click.Group):
                yield from walk(found, (*path, name))
            else:
                for param in found.params:
                    if isinstance(param, click.Option) and not param.is_flag:
                        yield " ".join((*path, name)), param.opts[0], param.nargs

    return list(walk(group))


def not_refused(lines: list[list[str]], folder) -> list[str]:
    """Run command lines in one process; return those that are not refused with one line, and what is slow to import."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT % (SLOW,)],
        input=json.dumps(lines),
        env={**ENVIRONMENT, "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    results, slow = json.loads(done.stdout)
    failed = []
    for line, code, err in results:
        messages = [message for message in err.splitlines() if not message.startswith("loading ")]  # of a file
        if code != 2 or len(messages) != 1:
            failed.append(f"{' '.join(line)}: {code} {err}")
    return failed + slow


def test_bad_values_are_refused_before_anything_slow_is_imported(tiny, text_file, tmp_path):
    study, records = tmp_path / "study.toml", tmp_path / "records.jsonl"
    study.write_text(f'models = ["{tiny}"]\nlengths = [8]\n')
    records.write_text("")
    measure = tmp_path / "measure.csv"
    measure.write_text("x\n1\n")
    places = {"study": str(study), "records": str(records), "tiny": tiny, "measure": str(measure)}
    lines = []
    for command, option, values in options():
        if f"{command} {option}" in ANY_VALUE or option == "--string":  # which is any text
            continue
        words = command.split()
        before = ARGUMENTS.get(command, ["{tiny}"] if f"{command} {option}".startswith(TAKE_A_MODEL) else [])
        wrong = f"{text_file}/x{SUFFIX.get(option, '')}" if option in OUTPUTS else WRONG.get(option, "nosuch")
        lines.append([*words, *(word.format(**places) for word in before), option, *[wrong] * values])
    assert len(lines) > 400
    assert not_refused(lines, tmp_path) == []


def test_wrong_combinations_are_refused_before_anything_slow_is_imported(tiny, text_file, tmp_path):
    lines = [
        "attack tokens {tiny} --layers 1",
        "attack tokens {tiny} --method random --allow insert",
        "attack layer {tiny} --perturbed-tokens 65",
        "attack worst-case {tiny} --within near",
        "flow particles nosuch",
        "flow particles --solver rk4",
        "flow particles --solver residual --solver-steps 4 --noise 0.1 --growth 3",
        "flow weights {tiny} --layers 7",
        "flow gaussian nosuch",
        "flow gaussian --mean 1,2,3",
        "flow gaussian --covariance 1,2,3",
        "flow gaussian --V 1,2,3",
        "flow pde --A rotation",
        "flow pde --dim 3",
        "flow pde --plot-rate r.png",
        "flow model {tiny} --no-growth --depths 1",
        "meanfield splitting-line --masses 1,2,3",
        "meanfield splitting-copies {tiny} --map head",
        "meanfield distance --other absent.txt",
        "meanfield file-distance",
        "meanfield distance ./absent",
        "plan {tiny} --workers 2",
        "reproduce nosuch",
        "explore --host 8.8.8.8",
        "measure {tiny} --revision main",
        "measure {tiny} --lengths 8 --plot a.docx",
        "report absent.jsonl",
        "study status absent.sqlite",
        "study run absent.toml",
    ]
    assert not_refused([line.format(tiny=tiny).split() for line in lines], tmp_path) == []
