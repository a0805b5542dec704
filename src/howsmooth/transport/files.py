"""Measures from files: points, and optionally weights and times."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.errors import InputError
from howsmooth.transport.measures import TimedMeasure, TokenMeasure

FIELDS = ("points", "weights", "log_weights", "times")
SUFFIXES = (".npz", ".safetensors", ".csv")


def read_measure(path: str | Path, *, normalise: bool = False) -> TokenMeasure:
    """Read a measure from a file.

    A .npz or .safetensors file contains `points` (n, d) and optionally `weights` or `log_weights` (n) and `times` (n).
    The first row of a .csv file has the names of the columns: `weight`, `log_weight` and `time` are optional, and all
    others are coordinates.

    Args:
        path: the file.
        normalise: whether to divide the weights by their sum.

    Returns:
        A `TimedMeasure` if the file has times, otherwise a `TokenMeasure`.

    Raises:
        InputError: if the file does not exist, or does not contain a valid measure.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "measure.npz"
        >>> np.savez(file, points=[[0.0, 0.0], [1.0, 2.0]], weights=[0.25, 0.75])
        >>> read_measure(file)
        TokenMeasure(n=2, d=2)
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected a measure in a file {', '.join(SUFFIXES)}, got {path}")
    try:
        arrays = {".npz": _read_npz, ".safetensors": _read_safetensors, ".csv": _read_csv}[path.suffix](path)
    except FileNotFoundError:
        raise InputError(f"expected a file that exists, got {path}") from None
    except InputError:
        raise
    except Exception as error:  # readers raise many kinds of errors for broken files
        raise InputError(f"expected a readable measure in {path}, got {type(error).__name__}: {error}") from None
    unknown = sorted(set(arrays) - set(FIELDS))
    if unknown or "points" not in arrays:
        raise InputError(
            f"expected points, and weights or log_weights and times if wanted, in {path}, got "
            f"{', '.join(sorted(arrays)) or 'nothing'}"
        )
    times = arrays.pop("times", None)
    try:
        if times is None:
            return TokenMeasure(**arrays, normalise=normalise)
        return TimedMeasure(times, **arrays, normalise=normalise)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(path))


def _read_csv(path: Path) -> dict[str, Any]:
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
        intended = name.lower().replace("-", "_").replace(" ", "_").removesuffix("s")
        if intended in special and name not in special:
            raise InputError(f"expected a column {intended!r} in {path}, got {name!r}; write it as {intended}")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InputError(f"expected each column once in {path}, got {', '.join(duplicates)} more than once")
    table = np.array([[float(cell) for cell in line] for line in lines if line], dtype=float)
    table = table.reshape(len(table), len(header))
    columns = {special[name]: table[:, index] for index, name in enumerate(names) if name in special}
    return {"points": table[:, [index for index, name in enumerate(names) if name not in special]], **columns}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
