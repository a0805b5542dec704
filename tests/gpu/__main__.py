"""Runs the GPU tests in several processes, since compilation takes nearly all of their time.

    python -m tests.gpu [n]
    --seconds S   kill processes that still run after so long (480)

Each process runs a share of the tests. A kernel that crashes ends only its own share. The failed tests are listed at
the end, one line each with the reason. No process is left running, however this ends.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
NO_TESTS = 5  # pytest's exit status for a share without tests
# The paths come before the option: pytest learns it from the conftest in this folder.
COMMAND = [
    sys.executable,
    "-m",
    "pytest",
    str(HERE),
    str(HERE.parent / "kernels"),
    "-v",
    "--no-header",
    "--tb=short",
    "-rfE",
    "-W",
    "ignore",
    "-p",
    "no:cacheprovider",
]


def start(share: str, output: IO[str]) -> subprocess.Popen[bytes]:
    """Start a share in a session of its own, so that it can be killed together with its child processes."""
    return subprocess.Popen(
        [*COMMAND, "--share", share],
        cwd=HERE.parents[1],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "400"},
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reasons(text: str, status: int | None) -> list[str]:
    """Return one line for each failed test; for a share that did not finish, the test that was running."""
    found = [line for line in text.splitlines() if re.match(r"(FAILED|ERROR) \S+::|ERROR \S+\.py( |$)", line)]
    if status is None or status < 0 or not found:
        why = "ran out of time" if status is None else f"ended with status {status}"
        begun = re.findall(r"^(\S+::.*?)\s*(?:PASSED|FAILED|ERROR|SKIPPED)?(?:\s+\[.*)?$", text, flags=re.MULTILINE)
        last = begun[-1] if begun else (text.strip().splitlines() or ["no output"])[-1]
        found.append(f"FAILED {last} - the share {why} here")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--seconds", type=float, default=480)
    arguments = parser.parse_args()
    n, deadline = arguments.n, time.monotonic() + arguments.seconds
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda number, _: sys.exit(128 + number))
    failed, bad = [], 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files_to_close:
        files = [
            files_to_close.enter_context(open(Path(folder) / f"{i}", "w+", encoding="utf-8", errors="replace"))
            for i in range(n)
        ]
        shares = []
        try:
            for i, file in enumerate(files):
                shares.append(start(f"{i}/{n}", file))
            for i, (share, file) in enumerate(zip(shares, files, strict=True)):
                try:
                    status = share.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    kill(share)
                    status = None
                file.seek(0)
                text = re.sub(r"([=_])\1{9,}", r"\1" * 3, file.read())
                if status in (0, NO_TESTS):
                    print(f"share {i}: {(text.strip().splitlines() or ['nothing'])[-1].strip('= ')}", flush=True)
                    continue
                bad += 1
                failed += reasons(text, status)
                excerpt = text[text.find("= FAILURES =") :][-4000:] if status == 1 else text[-1500:]
                print(f"share {i}:", excerpt, flush=True)
        finally:
            for share in shares:
                kill(share)
    print(f"{n - bad} of {n} shares passed")
    for line in failed:
        print(line[:300])
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
