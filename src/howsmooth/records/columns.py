"""Many records in little memory: columns instead of dictionaries.

A page or a table of a million records looks at a few fields of each. `Records` is a sequence of dictionaries that are
made when they are asked for; `fields` and `split` read and group records without making them, and take plain lists of
dictionaries as well.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, TypeVar, overload

_SIZE = 64  # records of a chunk, which stay in the cache of a processor
_MISSING: Any = type("Missing", (), {})()  # the cell of a record without the field
_CODES = {float: "d", int: "q"}
Key = TypeVar("Key", bound=Hashable)


class Constant(Sequence[Any]):
    """One cell that all records of a chunk have."""

    __slots__ = ("_count", "cell")

    def __init__(self, cell: Any, count: int) -> None:
        """Take the cell, and how many records have it."""
        self.cell, self._count = cell, count

    def __len__(self) -> int:
        """Return the number of records."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return the cell."""
        return self.cell

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the cells."""
        return repeat(self.cell, self._count)


Chunk = dict[str, Sequence[Any]]  # the cells of each field
Part = tuple[Chunk, Sequence[int]]  # some records of a chunk


class Records(Sequence[dict[str, Any]]):
    """A sequence of records, kept as columns.

    Example:
        >>> records = Records([{"n": 8, "value": 1.5, "words": ["a"]}, {"n": 16, "value": 2.5}])
        >>> records[0], records[-1], len(records)
        ({'n': 8, 'value': 1.5, 'words': ['a']}, {'n': 16, 'value': 2.5}, 2)
        >>> list(fields(records, "n", "words"))
        [(8, ['a']), (16, None)]
        >>> {key: list(part) for key, part in group_by(records, "n").items()}[16,]
        [{'n': 16, 'value': 2.5}]
    """

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        """Take the first records."""
        self._parts: list[Part] = []
        self._pending: list[dict[str, Any]] = []
        self._count = 0
        for record in records:
            self.append(record)

    def append(self, record: dict[str, Any]) -> None:
        """Add a record, made of values as JSON has them."""
        self._pending.append(record)
        self._count += 1
        if len(self._pending) >= _SIZE:
            self._store_pending()

    def _store_pending(self) -> list[Part]:
        """Turn the last records into columns; return all of them."""
        if self._pending:
            self._parts.append((_chunk(self._pending), range(len(self._pending))))
            self._pending = []
        return self._parts

    def __len__(self) -> int:
        """Return the number of records."""
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Make one record after the other."""
        for chunk, places in self._store_pending():
            for row in zip(*(_gather(cells, places) for cells in chunk.values()), strict=True):
                yield _record(chunk, row)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Make one record, or those of a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if place >= 0:
            for chunk, places in self._store_pending():
                if place < len(places):
                    return _record(chunk, [cells[places[place]] for cells in chunk.values()])
                place -= len(places)
        raise IndexError(f"expected an index below {len(self)}, got {index}")

    def fields(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield some fields of each record, None for those that it does not have."""
        for chunk, places in self._store_pending():
            nothing = Constant(None, len(places))
            columns = (_values(_gather(chunk[name], places)) if name in chunk else nothing for name in names)
            yield from zip(*columns, strict=True)

    def packed(self, name: str) -> Iterator[Iterable[Any]]:
        """Yield the cells of a field as they are kept, some at a time, and equal ones in sequence once."""
        for chunk, places in self._store_pending():
            cells = _gather(chunk[name], places) if name in chunk else ()
            yield (cells.cell,) if isinstance(cells, Constant) else cells

    def split(self, keys: Iterable[Key]) -> dict[Key, Records]:
        """Group the records by one key for each, in the order of their first occurrence."""
        groups: dict[Key, Records] = {}
        keys = iter(keys)
        for chunk, places in self._store_pending():
            found: dict[Key, list[int]] = {}
            for place, key in zip(places, keys, strict=False):
                found.setdefault(key, []).append(place)
            for key, chosen in found.items():
                group = groups.setdefault(key, Records())
                group._parts.append((chunk, places if len(chosen) == len(places) else array("H", chosen)))
                group._count += len(chosen)
        return groups


def _chunk(records: list[dict[str, Any]]) -> Chunk:
    layouts = set(map(tuple, records))
    names = list(dict.fromkeys(chain.from_iterable(layouts)))
    if len(layouts) == 1 and len(names) > 1:
        columns: Iterable[Sequence[Any]] = zip(*map(itemgetter(*names), records), strict=True)
    else:
        columns = ([record.get(name, _MISSING) for record in records] for name in names)
    return dict(zip(names, map(_compact, columns), strict=True))


def _compact(cells: Sequence[Any]) -> Sequence[Any]:
    """Return the cells of a column in little memory, equal ones once, lists and dictionaries packed."""
    types, first = set(map(type, cells)), cells[0]
    only = types.pop() if len(types) == 1 else None
    # Of equal numbers the types and the signs of zeros may differ, also within lists and dictionaries.
    if only is not None and only is not float and _has_no_numbers(first) and cells.count(first) == len(cells):
        return Constant(_packed(first), len(cells))
    if only in _CODES:
        try:
            return array(_CODES[only], cells)
        except OverflowError:
            return list(cells)
    if only is str:
        kept: dict[str, str] = {}
        return list(map(kept.setdefault, cells, cells))
    return list(map(_packed, cells))


def _has_no_numbers(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_has_no_numbers, value.values()))
    return all(map(_has_no_numbers, value)) if isinstance(value, list) else value is None or isinstance(value, str)


def _packed(value: Any) -> Any:
    """Return lists and dictionaries as bytes, which JSON does not have."""
    return marshal.dumps(value, 2) if isinstance(value, (list, dict)) else value


def _values(cells: Sequence[Any]) -> Iterable[Any]:
    """Return what a reader sees of cells."""
    if isinstance(cells, Constant):
        return Constant(_value(cells.cell), len(cells))
    return cells if isinstance(cells, array) else map(_value, cells)


def _value(cell: Any) -> Any:
    return marshal.loads(cell) if type(cell) is bytes else None if cell is _MISSING else cell


def _gather(cells: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    if len(cells) == len(places):
        return cells
    if isinstance(cells, Constant):
        return Constant(cells.cell, len(places))
    return [cells[place] for place in places]


def _record(chunk: Chunk, row: Iterable[Any]) -> dict[str, Any]:
    return {
        name: marshal.loads(cell) if type(cell) is bytes else cell
        for name, cell in zip(chunk, row, strict=True)
        if cell is not _MISSING
    }


def fields(records: Iterable[dict[str, Any]], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield some fields of each record, None for those that it does not have.

    Example:
        >>> list(fields([{"n": 8, "value": 1.5}], "value", "head"))
        [(1.5, None)]
    """
    if isinstance(records, Records):
        return records.fields(*names)
    return (tuple(map(record.get, names)) for record in records)


def column(records: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """Return one field of each record, None for those that do not have it."""
    return [value for (value,) in fields(records, name)]


def distinct(records: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """Return the different values of a field of lists or dictionaries, without those that are empty.

    Example:
        >>> distinct([{"versions": {"torch": "2"}}, {"versions": {"torch": "2"}}, {}], "versions")
        [{'torch': '2'}]
    """
    if isinstance(records, Records):
        cells = dict.fromkeys(chain.from_iterable(records.packed(name)))
    else:
        cells = dict.fromkeys(_packed(record.get(name)) for record in records)
    return [value for value in map(_value, cells) if value]


def split(records: Sequence[dict[str, Any]], keys: Iterable[Key]) -> dict[Key, Sequence[dict[str, Any]]]:
    """Group records by one key for each, in the order of their first occurrence."""
    if isinstance(records, Records):
        return dict(records.split(keys))
    groups: dict[Key, list[dict[str, Any]]] = {}
    for record, key in zip(records, keys, strict=True):
        groups.setdefault(key, []).append(record)
    return dict(groups)


def group_by(records: Iterable[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], Sequence[dict[str, Any]]]:
    """Group records by the values of the named fields, in the order of their first occurrence."""
    records = records if isinstance(records, Sequence) else list(records)
    return split(records, fields(records, *names) if names else repeat((), len(records)))


def where(records: Iterable[dict[str, Any]], is_wanted: Callable[..., Any], *names: str) -> Sequence[dict[str, Any]]:
    """Return the records of which the named fields pass a test."""
    records = records if isinstance(records, Sequence) else list(records)
    return split(records, (bool(is_wanted(*row)) for row in fields(records, *names))).get(True, [])
