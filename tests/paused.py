"""Run `howsmooth`, or an experiment, with one function that pauses in its k-th call and waits for a signal.

    python -m tests.paused PROGRAM MODULE:NAME K FD ARGUMENTS...

PROGRAM is a module with a function `main`. When the call pauses, one byte is written to the file descriptor FD. After
reading it, a test can be sure that the command is running and cannot end by itself: it can interrupt or kill the
command without a race.
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


def start_paused(
    line: str, function: str, call: int, environment: Mapping[str, str], program: str = "howsmooth.cli"
) -> subprocess.Popen:
    """Start the command and return when it has paused in call number `call` of `function` ("module:name")."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.paused", program, function, str(call), str(writer), *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
        env=dict(environment),
        cwd=Path(__file__).parents[1],
    )
    os.close(writer)
    with open(reader, "rb") as pipe:
        paused = pipe.read(1)  # empty if the command ended before
    assert paused, f"{function} was not called {call} times\n" + "\n".join(process.communicate())
    return process


def _pause_in_call(function: str, call: int, writer: int) -> None:
    """Replace a function or method by one that pauses in call number `call`."""
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
            os.write(writer, b"x")
            while True:
                signal.pause()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


if __name__ == "__main__":
    # A shell that runs the tests in the background makes its processes ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, function, call, writer = *sys.argv[1:3], *map(int, sys.argv[3:5])
    _pause_in_call(function, call, writer)
    os.set_inheritable(writer, False)  # workers of the command must not keep the pipe open
    importlib.import_module(program).main(sys.argv[5:])
