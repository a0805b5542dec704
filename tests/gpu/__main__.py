"""The suite in several processes at once, since nearly all of its time is the compiler's: python -m tests.gpu [n]

    --seconds S   stop what still runs after so long (480)

A kernel that dies takes the rest of its own share along, not the others. What failed stands at the end, a line each
with the reason, so that the tail of a log tells all. However this ends, no process of a share is left behind.
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

HERE = Path(__file__).parent
NOTHING_TO_RUN = 5  # pytest's exit status where a share has no test
# The paths before the option: an option of this folder's conftest is known only once the folder is.
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


def start(share: str, output) -> subprocess.Popen:
    """In a session of its own, so that it can be ended together with what it has started itself."""
    return subprocess.Popen(
        [*COMMAND, "--share", share],
        cwd=HERE.parents[1],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "400"},
    )


def end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reasons(text: str, status: int | None) -> list[str]:
    """One line for each test that failed; for a share that came to no end, the test at which it was."""
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
    n, until = arguments.n, time.monotonic() + arguments.seconds
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda number, _: sys.exit(128 + number))
    failed, bad = [], 0
    with tempfile.TemporaryDirectory() as folder:
        files = [open(Path(folder) / f"{i}", "w+", encoding="utf-8", errors="replace") for i in range(n)]
        shares = []
        try:
            for i, file in enumerate(files):
                shares.append(start(f"{i}/{n}", file))
            for i, (share, file) in enumerate(zip(shares, files, strict=True)):
                try:
                    status = share.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    end(share)
                    status = None
                file.seek(0)
                text = re.sub(r"([=_])\1{9,}", r"\1" * 3, file.read())
                if status in (0, NOTHING_TO_RUN):
                    print(f"share {i}: {(text.strip().splitlines() or ['nothing'])[-1].strip('= ')}", flush=True)
                    continue
                bad += 1
                failed += reasons(text, status)
                told = text[text.find("= FAILURES =") :][-4000:] if status == 1 else text[-1500:]
                print(f"share {i}:", told, flush=True)
        finally:
            for share in shares:
                end(share)
            for file in files:
                file.close()
    print(f"{n - bad} of {n} shares passed")
    for line in failed:
        print(line[:300])
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
