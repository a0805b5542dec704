"""Whether two printed texts are the same but for rounding."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
RELATIVE = 0.03  # examples that train or climb depend on the order of sums
PLACES = 2  # units of the last digit that is shown; 1 for whole numbers


def script(path: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{Path(path).stem}", ROOT / "docs" / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def difference(printed: str, kept: str) -> str | None:
    """The first line in which they differ by more than rounding, or None."""
    ours, theirs = printed.strip().splitlines(), kept.strip().splitlines()
    for line, other in zip(ours, theirs, strict=False):
        if _words(line) != _words(other):
            return f"printed {line!r}, kept {other!r}"
        for a, b in zip(_NUMBER.findall(line), _NUMBER.findall(other), strict=True):
            x, y = _value(a), _value(b)
            places = PLACES if {".", "e"} & set(b) else 1
            if abs(x - y) > max(RELATIVE * abs(y), places * min(_last_place(a), _last_place(b))):
                return f"printed {a} in {line!r}, kept {b}"
    return None if len(ours) == len(theirs) else f"printed {len(ours)} lines, kept {len(theirs)}"


def _words(line: str) -> list[str]:
    return re.sub(r"─+", "─", _NUMBER.sub(" # ", line)).split()


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _last_place(number: str) -> float:
    mantissa, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
