"""Files of records: read from stores, JSON lines and Parquet; written to JSON lines, CSV and Parquet.

A file is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from howsmooth.errors import InputError
from howsmooth.extras import require
from howsmooth.questions import record_error
from howsmooth.reading import read_line, replacing
from howsmooth.records.columns import Records
from howsmooth.records.lines import (
    ChangedRecord,
    ExistingLines,
    csv_line,
    digest_of,
    flat_cell,
    read_lines,
    records_stdout,
    sealed_line,
    unsealed,
)
from howsmooth.records.lock import only_writer
from howsmooth.studies.store import Store

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_SQLITE, _PARQUET = b"SQLite format 3\0", b"PAR1"
_ROWS_PER_BATCH = 10_000
_WHOLE = "json"  # the Parquet column of whole records; the others are for readers that are not howsmooth


Source = Callable[[], Iterable[dict[str, Any]]]  # iterates anew at each call


@dataclass
class Read:
    """The records of some files.

    Attributes:
        records: The records, each once.
        notes: Remarks about the files, for example that a line was cut off.
    """

    records: Records = field(default_factory=Records)
    notes: list[str] = field(default_factory=list)


def read_records(paths: Sequence[str]) -> Read:
    """Read the records of several files.

    Args:
        paths: Stores, studies (STUDY.toml, whose store has the same name), JSON lines, Parquet files, or "-" for stdin.

    Returns:
        The records and remarks. Objects that are not records of this version are left out, with a remark.

    Raises:
        InputError: A file cannot be read, or there are no records.
    """
    read, seen, duplicates = Read(), set[int](), 0
    for path in paths:
        first, wrong = "", 0
        for where, line, record in _records_of(path, read.notes):
            if (reason := record_error(record, line)) is not None:
                first, wrong = first or f"{where}: {reason}", wrong + 1
                continue
            digest = digest_of(line, record)
            duplicates += digest in seen
            if digest not in seen:
                seen.add(digest)
                read.records.append(record)
        if wrong:
            many = f"{wrong} records were left out, the first of them " if wrong > 1 else "left out "
            read.notes.append(f"{many}{first}")
    if duplicates:
        read.notes.append(f"{duplicates} records came twice and count once.")
    if not read.records:
        reason = f" ({read.notes[0]})" if read.notes else ""
        raise InputError(
            f"expected records of measure, bound, attack or a study, got none in {', '.join(paths)}{reason};"
            " write some with --json, or run the study first"
        )
    return read


def read_to_continue(path: str) -> ExistingLines:
    """Return the records of a file that a command appends to; raise if it contains anything else."""

    def check(record: dict[str, Any]) -> None:
        if (reason := record_error(record)) is not None:
            raise ValueError(reason)

    return read_lines(path, check, "records of this version", '{"kind": "')


def _records_of(path: str, notes: list[str]) -> Iterable[tuple[str, str, Any]]:
    """Return (position, line, record) for each record of one file."""
    if path == "-":
        return _lines("stdin", sys.stdin.buffer, notes)
    if FORMATS.get(Path(path).suffix.lower()) == "csv":
        raise InputError(
            f"expected JSON lines, Parquet or a store, got {path}: CSV does not distinguish numbers, "
            "text and missing values; save the records as .jsonl or .parquet as well"
        )
    file = Path(path).with_suffix(".sqlite") if path.endswith(".toml") else Path(path)
    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_SQLITE))
        if magic == _SQLITE:
            return _stored(file, notes)
        return _from_parquet(file) if magic.startswith(_PARQUET) else _of_file(file, path, notes)
    except OSError as error:
        raise InputError(
            f"expected a store or a file of JSON lines, got {path} "
            f"({(error.strerror or str(error)).lower()}); name another one"
        ) from None


def _of_file(file: Path, name: str, notes: list[str]) -> Iterator[tuple[str, str, Any]]:
    with file.open("rb") as stream:
        yield from _lines(name, stream, notes)


def _stored(path: Path, notes: list[str]) -> Iterator[tuple[str, str, Any]]:
    with Store.read(path) as store:
        counts, number = store.counts(), 0
        for everything in (False, True):
            for line, record in store.lines(everything):
                number += 1
                yield f"record {number} of {path.name}", line, record
            if number or store.changed:  # a store without a plan may still have records
                break
    notes.extend(store.changed)
    if counts["done"] < counts["planned"]:
        notes.append(
            f"{path.name}: {counts['done']} of {counts['planned']} tasks are done, {counts['failed']} failed; "
            "curves may lack lengths or samples."
        )


def _lines(name: str, stream: BinaryIO, notes: list[str]) -> Iterator[tuple[str, str, Any]]:
    any_read = False
    for number, line in enumerate(iter(partial(read_line, stream, name), b""), 1):
        if not line.strip():
            continue
        try:
            text = line.rstrip(b"\n").decode("utf-8")
            record, any_read = unsealed(text), True
        except ChangedRecord as error:
            notes.append(f"{name}: line {number} is left out: {error}.")
        except ValueError as error:  # of the encoding or of JSON
            is_last = not any(rest.strip() for rest in iter(partial(read_line, stream, name), b""))
            if is_last and (any_read or line.startswith(b'{"')):  # a run that was killed while writing
                notes.append(f"{name}: the last line is cut off and was left out.")
                break
            if isinstance(error, UnicodeDecodeError):
                raise InputError(
                    f"expected a store or a file of JSON lines, got {name}, which is neither; "
                    "name what --json wrote, or a study's .sqlite"
                ) from None
            raise InputError(
                f"expected one JSON object per line, got something else in line {number} of {name}; "
                "name what --json wrote, or a study's .sqlite"
            ) from None
        else:
            yield f"line {number} of {name}", text, record


def export(store: Store, path: str, form: str | None = None, everything: bool = False) -> int:
    """Write the records of a store to a file; return their number.

    Args:
        store: The store.
        path: The file, or "-" for stdout.
        form: "jsonl", "csv" or "parquet"; the ending of the file name decides without it.
        everything: Also write records that the study no longer contains.
    """
    if path != "-":
        return write_records(lambda: store.records(everything), path, form)
    form = form or "jsonl"
    if form == "parquet":
        raise InputError("expected a file for Parquet, got - (stdout); name a file")
    return _write_lines(lambda: store.records(everything), records_stdout(), form)


def write_records(records: Source, path: str | Path, form: str | None = None) -> int:
    """Write records to a file; return their number.

    Args:
        records: Returns an iterator over the records; it is called several times, so that memory does not grow.
        path: The file.
        form: "jsonl", "csv" or "parquet"; the ending of the file name decides without it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records(lambda: iter([{"value": 1.5}]), f"{folder}/records.csv")
        1
    """
    target = Path(path)
    form = form or _format_of(target)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"expected a file in a folder that exists, got {path}; name another one")
    try:
        with only_writer(path, "a file of records", "file"), replacing(target) as partial:
            if form == "parquet":
                return _write_parquet(records, partial)
            with open(partial, "w", encoding="utf-8", newline="") as stream:
                return _write_lines(records, stream, form)
    except OSError as error:
        raise InputError(
            f"expected a writable file, got {path} ({(error.strerror or str(error)).lower()}); name another one"
        ) from None


def _format_of(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"expected a file ending in {', '.join(FORMATS)}, got {path}; name the format with --format")
    return FORMATS[path.suffix.lower()]


def _write_lines(records: Source, stream: TextIO, form: str) -> int:
    count, columns = 0, list(_columns(records)) if form == "csv" else []
    if columns:
        stream.write(csv_line(columns) + "\n")
    for record in records():
        line = sealed_line(record) if form == "jsonl" else csv_line([record.get(name) for name in columns])
        stream.write(line + "\n")
        count += 1
    return count


def _write_parquet(records: Source, path: Path) -> int:
    pa, pq = _pyarrow()
    columns = [pa.field(name, _arrow(pa, types)) for name, types in _columns(records).items()]
    schema = pa.schema([*columns, pa.field(_WHOLE, pa.string())])
    count, rows = 0, iter(records())
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(rows, _ROWS_PER_BATCH)):
            cells = {column.name: [_cell(row.get(column.name), column) for row in batch] for column in columns}
            cells[_WHOLE] = list(map(sealed_line, batch))
            writer.write_table(pa.table(cells, schema=schema))
            count += len(batch)
    return count


def _cell(value: Any, column: Any) -> Any:
    """Return a value as its column stores it: lists as JSON, None for numbers that are not finite."""
    value = flat_cell(value)
    return str(value) if value is not None and str(column.type) == "string" else value


def _from_parquet(path: Path) -> Iterator[tuple[str, str, Any]]:
    pa, pq = _pyarrow()
    try:
        with pq.ParquetFile(path) as file:
            if _WHOLE not in file.schema_arrow.names:
                raise InputError(
                    f"expected records in the column {_WHOLE}, got none in {path}, which an older version or another "
                    "program wrote; export the study again, or read its store"
                )
            cells = (cell for batch in file.iter_batches(columns=[_WHOLE]) for cell in batch[_WHOLE].to_pylist())
            for number, cell in enumerate(cells, 1):
                yield f"row {number} of {path.name}", cell, unsealed(cell)
    except InputError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(
            f"expected a Parquet file of records, got {path} ({str(error).splitlines()[0]}); name another one"
        ) from None


def _pyarrow() -> tuple[Any, Any]:
    require("pyarrow", purpose="for Parquet", otherwise="or export to .csv or .jsonl")
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


def _arrow(pa: Any, types: set[type]) -> Any:
    types = types - {type(None)}
    if types <= {bool} and types:
        return pa.bool_()
    if types <= {int} and types:
        return pa.int64()
    return pa.float64() if types and types <= {int, float} else pa.string()


def _columns(records: Source) -> dict[str, set[type]]:
    """Return the names of all fields in the order in which they occur, with the types of their values."""
    names: dict[str, set[type]] = {}
    for record in records():
        for name, value in record.items():
            names.setdefault(name, set()).add(type(value))
    return names
