"""Run `howsmooth`, or an experiment, with one function that stops at its k-th call and waits there for a signal.

    python -m tests.held PROGRAM MODULE:NAME K FD ARGUMENTS...

PROGRAM is a module with a function `main`.

Before that call returns anything, a byte is written to the file descriptor FD: whoever reads it knows that the command
is in the middle of its work and cannot end by itself. That is how tests interrupt and kill a run without a race.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def start_held(
    line: str, function: str, call: int, environment: Mapping[str, str], program: str = "howsmooth.cli"
) -> subprocess.Popen:
    """Start the command and return once it waits in call number `call` of `function` ("module:name")."""
    heard, told = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.held", program, function, str(call), str(told), *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[told],
        env=dict(environment),
        cwd=Path(__file__).parents[1],
    )
    os.close(told)
    with open(heard, "rb") as pipe:
        held = pipe.read(1)  # nothing if the command ended before
    assert held, f"{function} was not called {call} times\n" + "\n".join(process.communicate())
    return process


def _hold(function: str, call: int, told: int) -> None:
    """Replace the function, in the module and the class that `function` names."""
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            os.write(told, b"x")
            while True:
                signal.pause()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


if __name__ == "__main__":
    # A shell that runs the tests in the background has told all of them to ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, function, call, told = *sys.argv[1:3], *map(int, sys.argv[3:5])
    _hold(function, call, told)
    os.set_inheritable(told, False)  # workers of the command must not keep the pipe open
    importlib.import_module(program).main(sys.argv[5:])
