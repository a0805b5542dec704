"""Build the wheel and install it in an empty environment, with each extra alone, as its users do. Needs the network.

    make test-install                        all extras
    python -m tests.install core models      some of them; core is the package without any

In each environment the versions are those of constraints.txt. What an extra is for has to work with it alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_RANDOM = "import howsmooth; found = howsmooth.measure('random:gpt2', inputs='ids', layers=[0], lengths=[8], samples=1)"
# What is run with an extra alone.
CHECKS = {
    "core": "import torch, howsmooth; x = torch.randn(5, 4); print(howsmooth.local_lipschitz(torch.tanh, x).value)",
    "models": f"{_RANDOM}; print(found); found.plot('plot.png'); found.report('page.html')",
    "gguf": "import gguf, accelerate, howsmooth.models.gguf_file; print(accelerate.__version__)",
    "parquet": "import pyarrow, howsmooth.studies.formats; print(pyarrow.__version__)",
    "ray": "import ray, howsmooth.studies.engines.ray_engine; print(ray.__version__)",
    "transport": "import torch; from howsmooth.transport import TokenMeasure; import ot; print(TokenMeasure)",
    "flow": "import torchdiffeq, howsmooth.dynamics; print(torchdiffeq.__version__)",
    "lightning": "import lightning; from howsmooth.training import LightningMonitor; print(LightningMonitor(every=2))",
    "explore": "from howsmooth.explorer import Limits, explorer; print(explorer(Limits()))",
}


def build(folder: Path) -> Path:
    """Return the wheel of this tree, built in an isolated environment."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("howsmooth-*.whl"))


def check(wheel: Path, extra: str, folder: Path) -> bool:
    """Install the wheel with one extra in a new environment, and return whether what it is for works there."""
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    wanted = str(wheel) + (f"[{extra}]" if extra != "core" else "")
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), wanted]
    for command in (install, [python, "-m", "pip", "check"], [python, "-c", CHECKS[extra]]):
        # From another folder than the repository, whose modules would be found first.
        # matplotlib keeps what fonts it found, and those of this environment go with it.
        environment = os.environ | {"MPLCONFIGDIR": str(folder)}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{extra}: failed\n{done.stdout}{done.stderr}")
            return False
    print(f"{extra}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return True


def main() -> int:
    """Check the extras that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"among {', '.join(CHECKS)}; by default all")
    extras = parser.parse_args().extras or [*CHECKS]
    if unknown := [extra for extra in extras if extra not in CHECKS]:
        parser.error(f"expected extras among {', '.join(CHECKS)}, got {unknown[0]}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        results = [check(wheel, extra, Path(folder) / "environment") for extra in extras]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
