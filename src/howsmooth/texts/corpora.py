"""Where text comes from: a file, stdin, a folder, a dataset, the two corpora of the paper; always as documents.

A source is one string, and what it means is decided in this order:

    embedded            the story that ships with the package
    -                   stdin
    alice, ag_news      the paper's corpora: a file in $HOWSMOOTH_DATA, else NLTK and `datasets`
    hf:NAME             a dataset on the Hugging Face Hub
    anything else       a path: a folder of text files, a CSV file in the form of AG_NEWS, or a text file
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from howsmooth.errors import InputError
from howsmooth.texts import default_text

FORMATS = ("auto", "text", "ag_news")
DATA = "HOWSMOOTH_DATA"
NAMED = {"alice": "alice.txt", "ag_news": "ag_news_test.csv"}
_SUFFIXES = (".txt", ".md", ".rst", ".text")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in order, with the name they go by in records. New lines are \\n, whatever the file had."""

    name: str
    documents: tuple[str, ...]

    @cached_property
    def content(self) -> str:
        """All documents as one text, a new line between them."""
        return "\n".join(self.documents)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode("utf-8")).hexdigest()


def read_corpus(
    source: str,
    *,
    name: str | None = None,
    format: str = "auto",
    split: str = "test",
    column: str | None = None,
    subset: str | None = None,
) -> Corpus:
    """Read a corpus; `split`, `column` and `subset` are for datasets of the hub.

    >>> corpus = read_corpus("embedded")
    >>> corpus.name, len(corpus.documents)
    ('embedded', 1)
    """
    if format not in FORMATS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {format!r}; choose one of them")
    if not source:
        raise InputError("expected a file, a folder, - or a name for a text, got an empty one; try 'embedded'")
    if source == "embedded":
        found, documents = "embedded", (default_text(),)
    elif source == "-":
        found, documents = "stdin", (_decoded(sys.stdin.buffer.read(), "stdin"),)
    elif source in NAMED and not os.path.exists(source):
        found, documents = source, _named(source)
    elif source.startswith("hf:"):
        found, documents = source, _dataset(source.removeprefix("hf:"), split, column, subset)
    else:
        found, documents = Path(source).name, _path(Path(source).expanduser(), format)
    documents = tuple(document for document in documents if document.strip())
    if not documents:
        raise InputError(
            f"expected some text, got nothing in {source if source != '-' else 'stdin'}; give a text that is not empty"
        )
    return Corpus(name or found, documents)


def _path(path: Path, format: str) -> tuple[str, ...]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if not files:
            raise InputError(
                f"expected text files ({', '.join(_SUFFIXES)}) in the directory {path}, got none; "
                "name a readable text file or another folder"
            )
        return tuple(_decoded(_bytes(file), file) for file in files)
    content = _decoded(_bytes(path), path)
    if format == "ag_news" or (format == "auto" and path.suffix.lower() == ".csv"):
        return _rows(content, path)
    return (content,)


def _rows(content: str, path: Path) -> tuple[str, ...]:
    """Rows of class, title, description; a document is title and description with a blank between them."""
    documents = []
    for number, row in enumerate(csv.reader(io.StringIO(content)), start=1):
        if not row:
            continue
        if len(row) != 3 or not (row[0].strip().isdigit() or number == 1):
            raise InputError(
                f"expected rows of class, title and description as in AG_NEWS in {path}, got "
                f'{len(row)} fields in row {number}; give format = "text" to read it as plain text'
            )
        if row[0].strip().isdigit():  # a first row without a class is a header
            documents.append(f"{row[1]} {row[2]}")
    return tuple(documents)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"expected a readable text file, got {path} ({(error.strerror or str(error)).lower()}); check the path"
        ) from None


def _decoded(raw: bytes, where: object) -> str:
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected UTF-8 text, got other bytes in {where} (at byte {error.start}); convert it "
            "first, for example with iconv"
        ) from None


def _named(name: str) -> tuple[str, ...]:
    folder = os.environ.get(DATA)
    file = Path(folder).expanduser() / NAMED[name] if folder else None
    if file is not None and file.is_file():
        return _path(file, "auto")
    looked = f"{file} is not there" if file else f"${DATA} is not set"
    try:
        return _nltk_alice() if name == "alice" else _dataset("fancyzhx/ag_news", "test", "text", None)
    except InputError as error:
        raise InputError(
            f"expected the corpus {name}, got none ({looked}; {error}); give a path to a copy, or set "
            f"{DATA} to a folder with {NAMED[name]}"
        ) from None


def _nltk_alice() -> tuple[str, ...]:
    try:
        import nltk
    except ImportError:
        raise InputError("NLTK is not installed") from None
    book = "carroll-alice.txt"
    try:
        return (nltk.corpus.gutenberg.raw(book),)
    except LookupError:
        # nltk.download says False, or nothing of use, where there is no network.
        if not nltk.download("gutenberg", quiet=True):
            raise InputError("NLTK has no copy and could not download one") from None
        return (nltk.corpus.gutenberg.raw(book),)


def _dataset(name: str, split: str, column: str | None, subset: str | None) -> tuple[str, ...]:
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"expected the package datasets to read {name!r} from the hub, got none; "
            "pip install datasets, or give a file"
        ) from None
    try:
        table = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library raises its own, the hub's and the network's
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"cannot read the dataset {name!r}, split {split!r} ({reason}); check the name, the split "
            "and the network, or give a file"
        ) from None
    columns = [key for key, kind in table.features.items() if getattr(kind, "dtype", None) == "string"]
    chosen = column or ("text" if "text" in columns else next(iter(columns), None))
    if chosen not in columns:
        have = ", ".join(columns) or "none"
        raise InputError(f"expected a column of text in {name!r}, got {chosen!r}; it has {have}")
    return tuple(str(text) for text in table[chosen])
