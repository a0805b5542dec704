"""The suite in several processes at once, since nearly all of its time is the compiler's: python -m tests.gpu [n]

A kernel that dies takes the rest of its own share along, not the others.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOTHING_TO_RUN = 5  # pytest's exit status where a share has no test


def main() -> int:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else max(1, min(14, (os.cpu_count() or 2) - 2))
    # The paths before the option: an option of this folder's conftest is known only once the folder is.
    command = [sys.executable, "-m", "pytest", str(HERE), "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore"]
    shares = [subprocess.Popen([*command, "--share", f"{i}/{n}"], cwd=HERE.parents[1], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in range(n)]
    failed = 0
    for i, share in enumerate(shares):
        text, _ = share.communicate()
        bad = share.returncode not in (0, NOTHING_TO_RUN)
        failed += bad
        lines = text.strip().splitlines() or ["nothing"]
        print("\n".join(lines[-60:]) if bad else f"share {i}: {lines[-1]}", flush=True)
    print(f"{n - failed} of {n} shares passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
