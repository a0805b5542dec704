"""Measures from files: points, and where they are given weights and times."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from howsmooth.errors import InputError
from howsmooth.transport.measures import TimedMeasure, TokenMeasure

NAMES = ("points", "weights", "log_weights", "times")
FORMS = (".npz", ".safetensors", ".csv")


def read_measure(path: str | Path, *, normalise: bool = False) -> TokenMeasure:
    """The measure in a file; a `TimedMeasure` where it has times.

    .npz and .safetensors hold `points` (n, d) and, if wanted, `weights` or `log_weights` (n) and `times` (n). The first
    row of a .csv names its columns: `weight`, `log_weight` and `time` mean what they say, all others are coordinates.
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise InputError(f"expected a measure in a file {', '.join(FORMS)}, got {path}")
    try:
        found = {".npz": _npz, ".safetensors": _safetensors, ".csv": _csv}[path.suffix](path)
    except FileNotFoundError:
        raise InputError(f"expected a file that exists, got {path}") from None
    except InputError:
        raise
    except Exception as error:  # what a broken file raises is the reader's own affair
        raise InputError(f"expected a readable measure in {path}, got {type(error).__name__}: {error}") from None
    unknown = sorted(set(found) - set(NAMES))
    if unknown or "points" not in found:
        raise InputError(
            f"expected points, and weights or log_weights and times if wanted, in {path}, got "
            f"{', '.join(sorted(found)) or 'nothing'}"
        )
    times = found.pop("times", None)
    try:
        return (
            TokenMeasure(**found, normalise=normalise)
            if times is None
            else (TimedMeasure(times, **found, normalise=normalise))
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _npz(path: Path) -> dict:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _safetensors(path: Path) -> dict:
    from safetensors.torch import load_file

    return load_file(path)


def _csv(path: Path) -> dict:
    with path.open(newline="", encoding="utf-8") as stream:
        header, *lines = list(csv.reader(stream)) or [[]]
    special = {"weight": "weights", "log_weight": "log_weights", "time": "times"}
    names = [name.strip() for name in header]
    if names and all(_is_number(name) for name in names):
        raise InputError(
            f"expected the names of the columns in the first row of {path}, got numbers "
            f"({', '.join(names)}); write a row such as x,y,weight above them"
        )
    for name in names:
        meant = name.lower().replace("-", "_").replace(" ", "_").removesuffix("s")
        if meant in special and name not in special:
            raise InputError(f"expected a column {meant!r} in {path}, got {name!r}; write it as {meant}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"expected each column once in {path}, got {', '.join(twice)} more than once")
    table = np.array([[float(cell) for cell in line] for line in lines if line], dtype=float)
    table = table.reshape(len(table), len(header))
    found = {special[name]: table[:, index] for index, name in enumerate(names) if name in special}
    return {"points": table[:, [index for index, name in enumerate(names) if name not in special]], **found}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
