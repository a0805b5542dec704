"""Arrays in records: what a figure needs, small enough for a line of JSON."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_VALUES = 10**7  # of an array that is read


def rounded(values: Any, digits: int = 6) -> Any:
    """Return nested lists of numbers with so many significant digits.

    Example:
        >>> rounded([[1 / 3, 2.0]], 3)
        [[0.333, 2.0]]
    """
    return [rounded(value, digits) for value in values] if isinstance(values, list) else float(f"{values:.{digits}g}")


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` ≥ 2 indices below `count`, evenly spaced, including the first and the last.

    Example:
        >>> evenly_spaced(9, 3), evenly_spaced(2, 3)
        ([0, 4, 8], [0, 1])
    """
    return list(dict.fromkeys(round((count - 1) * k / (most - 1)) for k in range(most)))


def pack(frames: NDArray, bits: int = 16) -> dict[str, Any]:
    """Return an array (T, …) as plain values, with integers between the minimum and the maximum of each frame.

    Args:
        frames: The array.
        bits: Bits of an integer, 8 or 16.

    Example:
        >>> import numpy
        >>> unpack(pack(numpy.array([[0.0, 1.0], [2.0, 5.0]]))).tolist()
        [[0.0, 1.0], [2.0, 5.0]]
    """
    import numpy

    flat = frames.reshape(len(frames), -1)
    low, high = flat.min(1, keepdims=True), flat.max(1, keepdims=True)
    levels = numpy.round((flat - low) / numpy.where(high > low, high - low, 1.0) * (2**bits - 1))
    data = zlib.compress(levels.astype(f"<u{bits // 8}").tobytes(), 9)
    return {
        "shape": list(frames.shape),
        "bits": bits,
        "low": low[:, 0].tolist(),
        "high": high[:, 0].tolist(),
        "data": base64.b64encode(data).decode("ascii"),
    }


def unpack(packed: dict[str, Any]) -> NDArray:
    """Return the array that `pack` was given, up to rounding.

    Raises:
        InputError: The data do not fit the shape.
    """
    import numpy

    shape, size = packed["shape"], packed["bits"] // 8
    count = _product(shape)
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(packed["data"]), count * size + 1)
        flat = numpy.frombuffer(raw, f"<u{size}").reshape(shape[0], -1).astype(float)
        low, high = (numpy.array(packed[name]).reshape(shape[0], 1) for name in ("low", "high"))
        return (low + (high - low) * flat / (2 ** packed["bits"] - 1)).reshape(shape)
    except (ValueError, TypeError, zlib.error) as error:
        raise InputError(f"expected an array of shape {shape} in a record, got something else ({error})") from None


def _product(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    if not 0 < count <= _MAX_VALUES:
        raise InputError(f"expected an array of 1 to {_MAX_VALUES} values in a record, got the shape {list(shape)}")
    return count
