"""Comparison of printed output up to rounding."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
RELATIVE_TOLERANCE = 0.03  # examples that train or ascend depend on the order of sums
LAST_DIGIT_TOLERANCE = 2  # units of the last digit shown; 1 for integers


def script(path: str) -> ModuleType:
    """Import a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{Path(path).stem}", ROOT / "docs" / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def difference(printed: str, expected: str) -> str | None:
    """Return the first difference of more than rounding between two outputs, or None."""
    lines, expected_lines = printed.strip().splitlines(), expected.strip().splitlines()
    for line, other in zip(lines, expected_lines, strict=False):
        if _words(line) != _words(other):
            return f"printed {line!r}, expected {other!r}"
        for a, b in zip(_NUMBER.findall(line), _NUMBER.findall(other), strict=True):
            x, y = _value(a), _value(b)
            units = LAST_DIGIT_TOLERANCE if {".", "e"} & set(b) else 1
            if abs(x - y) > max(RELATIVE_TOLERANCE * abs(y), units * min(_last_place(a), _last_place(b))):
                return f"printed {a} in {line!r}, expected {b}"
    if len(lines) != len(expected_lines):
        return f"printed {len(lines)} lines, expected {len(expected_lines)}"
    return None


def _words(line: str) -> list[str]:
    return re.sub(r"─+", "─", _NUMBER.sub(" # ", line)).split()


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _last_place(number: str) -> float:
    mantissa, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
