"""Records out of a store: JSON lines, CSV, Parquet. Written beside the target and moved there when complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.studies.lines import csv_line, flat, json_line
from howsmooth.studies.store import Store

FORMS = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_ROWS_AT_ONCE = 10_000


def form_of(path: str, form: str | None = None) -> str:
    """The format asked for, or the one that the file's name means."""
    if form:
        return form
    suffix = Path(path).suffix.lower()
    if suffix not in FORMS:
        raise InputError(f"expected a file ending in {', '.join(FORMS)}, got {path}; name the format with --format")
    return FORMS[suffix]


def export(store: Store, path: str, form: str | None = None, everything: bool = False) -> int:
    """Write the records to a file, or to stdout for "-"; how many there were."""
    form = form_of(path, form) if path != "-" else form or "jsonl"
    if path == "-":
        if form == "parquet":
            raise InputError("expected a file for Parquet, got - (stdout); name a file")
        return _lines(store, sys.stdout, form, everything)
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"expected a file in a folder that exists, got {path}; name another one")
    partial = target.with_name(f".{target.name}.partial")
    try:
        if form == "parquet":
            count = _parquet(store, partial, everything)
        else:
            with open(partial, "w", encoding="utf-8", newline="") as stream:
                count = _lines(store, stream, form, everything)
        os.replace(partial, target)
    except OSError as error:
        raise InputError(f"expected a writable file, got {path} ({(error.strerror or str(error)).lower()}); "
                         "name another one") from None
    finally:
        partial.unlink(missing_ok=True)
    return count


def _lines(store: Store, stream: Any, form: str, everything: bool) -> int:
    count, columns = 0, _columns(store, everything) if form == "csv" else []
    if columns:
        stream.write(csv_line(columns) + "\n")
    for record in store.records(everything):
        line = json_line(record) if form == "jsonl" else csv_line([record.get(name) for name in columns])
        stream.write(line + "\n")
        count += 1
    return count


def _parquet(store: Store, path: Path, everything: bool) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("expected the package pyarrow for Parquet, got none; pip install 'howsmooth[parquet]', or "
                         "export to .csv or .jsonl") from None
    kinds: dict[str, set[type]] = {}
    for record in store.records(everything):
        for name, value in record.items():
            kinds.setdefault(name, set()).add(type(value))
    schema = pa.schema([(name, _arrow(pa, kind)) for name, kind in kinds.items()])
    count, records = 0, store.records(everything)
    with pq.ParquetWriter(path, schema) as writer:
        while some := list(islice(records, _ROWS_AT_ONCE)):
            writer.write_table(pa.table({name: pa.array([flat(r.get(name)) for r in some], schema.field(name).type)
                                         for name in schema.names}, schema=schema))
            count += len(some)
    return count


def _arrow(pa: Any, kinds: set[type]) -> Any:
    kinds = kinds - {type(None)}
    if kinds <= {bool} and kinds:
        return pa.bool_()
    if kinds <= {int} and kinds:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def _columns(store: Store, everything: bool) -> list[str]:
    names: dict[str, None] = {}
    for record in store.records(everything):
        names.update(dict.fromkeys(record))
    return list(names)


def records_of(path: str | Path) -> Iterator[dict[str, Any]]:
    """The study's records, straight from its file."""
    with Store.read(path) as store:
        yield from store.records()
