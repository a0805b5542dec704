"""Corpora: a file, stdin, a folder, a dataset or one of the paper's two corpora, read as a sequence of documents.

A source is one string, interpreted in this order:

    embedded            the text that ships with the package, about 5,000 tokens
    generated           a generated text of 150,000 words; generated:COUNT has another number of words
    -                   stdin
    alice, ag_news      the paper's corpora: a file in $HOWSMOOTH_DATA, otherwise NLTK and `datasets`
    hf:NAME             a dataset on the Hugging Face Hub
    string:TEXT         the text itself
    anything else       a path: a folder of text files, a CSV file in the form of AG_NEWS, or a text file
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from howsmooth.choices import FORMATS
from howsmooth.errors import InputError, first_line
from howsmooth.extras import require
from howsmooth.reading import read_whole

STRING = "string:"  # a source that starts with it is the text itself
DATA = "HOWSMOOTH_DATA"  # environment variable: a folder with the files of the paper's corpora
PAPER_CORPORA = {"alice": "alice.txt", "ag_news": "ag_news_test.csv"}
_LONGEST_NAME = 200  # characters of a name without white space; a longer string is a text, in any script
_LONGEST_PATH = 4096
_SUFFIXES = (".txt", ".md", ".rst", ".text")


def default_text() -> str:
    """Return the English text that ships with the package, two stories and an essay of about 4,300 words in all.

    Example:
        >>> len(default_text().split()) > 4000
        True
    """
    return files("howsmooth.texts").joinpath("default.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Corpus:
    r"""Documents in order, under one name.

    Attributes:
        name: The name of the corpus in records.
        documents: The texts. `read_corpus` converts all line ends to newlines.

    Example:
        >>> corpus = Corpus("two lines", ("It was late.", "It rained."))
        >>> corpus.content
        'It was late.\nIt rained.'
    """

    name: str
    documents: tuple[str, ...]

    @cached_property
    def content(self) -> str:
        """All documents as one text, joined by newlines."""
        return "\n".join(self.documents)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 hash of the content in UTF-8."""
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
    """Read a corpus from a source: a name or a path, as described above.

    Args:
        source: "embedded", "generated", "-", "alice", "ag_news", "hf:NAME", "string:TEXT", or the path of a file or a
            folder.
        name: The name of the corpus in records; by default it is derived from the source.
        format: Of a file: "text", "ag_news" (rows of class, title, description), or "auto" (by the file's ending).
        split: Of a dataset on the Hugging Face Hub: which split.
        column: Of such a dataset: the column with the text; by default "text", else the first column of strings.
        subset: Of such a dataset: which configuration.

    Returns:
        The documents that are not blank, with the name.

    Raises:
        InputError: The source does not exist, cannot be read or decoded, or has no text.

    Example:
        >>> corpus = read_corpus("embedded")
        >>> corpus.name, len(corpus.documents)
        ('embedded', 1)
    """
    if format not in FORMATS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {format!r}; choose one of them")
    if not source:
        raise InputError("expected a file, a folder, - or a name for a text, got an empty one; try 'embedded'")
    documents: tuple[str, ...]
    if source == "embedded":
        found, documents = "embedded", (default_text(),)
    elif re.fullmatch(r"generated(:\d{1,9})?", source) and not os.path.exists(source):
        words = int(source.partition(":")[2] or DEFAULT_WORDS)
        found, documents = source, (generated_text(words),)
    elif source == "-":
        found, documents = "stdin", (_decode(read_whole(sys.stdin.buffer, "stdin"), "stdin"),)
    elif source in PAPER_CORPORA and not os.path.exists(source):
        found, documents = source, _read_paper_corpus(source)
    elif source.startswith(STRING):
        found, documents = "string", (_checked_string(source.removeprefix(STRING)),)
    elif source.startswith("hf:"):
        found, documents = source, _read_dataset(source.removeprefix("hf:"), split, column, subset)
    else:
        found, documents = Path(source).name, _read_path(Path(source).expanduser(), format)
    documents = tuple(document for document in documents if document.strip())
    if not documents:
        raise InputError(
            f"expected some text, got nothing in {'stdin' if source == '-' else found}; give a text that is not empty"
        )
    return Corpus(name or found, documents)


def _read_path(path: Path, format: str) -> tuple[str, ...]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if not found:
            raise InputError(
                f"expected text files ({', '.join(_SUFFIXES)}) in the directory {path}, got none; "
                "name a readable text file or another folder"
            )
        return tuple(_decode(_read_bytes(file), file) for file in found)
    content = _decode(_read_bytes(path), path)
    if format == "ag_news" or (format == "auto" and path.suffix.lower() == ".csv"):
        return _parse_ag_news(content, path)
    return (content,)


def _parse_ag_news(content: str, path: Path) -> tuple[str, ...]:
    """Return the documents of a CSV file with rows of class, title, description: title and description, joined."""
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


def _read_bytes(path: Path) -> bytes:
    try:
        return read_whole(path, path)
    except FileNotFoundError as error:
        raise InputError(
            f"expected a text, got {str(path)[:200]} ({(error.strerror or str(error)).lower()}); give the path of a "
            "file, a corpus (embedded, generated, alice, ag_news, hf:NAME), or the text itself (--string TEXT, in "
            "Python 'string:TEXT')"
        ) from None
    except OSError as error:
        raise InputError(
            f"expected a readable text file, got {str(path)[:200]} ({(error.strerror or str(error)).lower()}); check "
            "the path"
        ) from None


def corpus_name(name: str) -> str:
    """Return the name of a corpus in a sentence.

    Example:
        >>> corpus_name("embedded"), corpus_name("alice")
        ('the embedded text', 'alice')
    """
    return {"embedded": "the embedded text", "string": "the given text"}.get(name, name)


def is_text_itself(text: str) -> bool:
    """Return whether a string is a text, not the name of one: it has white space, and names no corpus and no file.

    Example:
        >>> is_text_itself("It rained."), is_text_itself("alice"), is_text_itself("hf:a dataset")
        (True, False, False)
    """
    if not re.search(r"\s", text.strip()) and len(text) <= _LONGEST_NAME:
        return False
    return not text.startswith(("hf:", STRING)) and not os.path.exists(os.path.expanduser(text[:_LONGEST_PATH]))


def _checked_string(text: str) -> str:
    """Return a text with newlines as line ends; a command line may contain bytes that are no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("expected a text in UTF-8, got other bytes; check how the terminal encodes it") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode(raw: bytes, where: object) -> str:
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected UTF-8 text, got other bytes in {where} (at byte {error.start}); convert it "
            "first, for example with iconv"
        ) from None


def _read_paper_corpus(name: str) -> tuple[str, ...]:
    folder = os.environ.get(DATA)
    file = Path(folder).expanduser() / PAPER_CORPORA[name] if folder else None
    if file is not None and file.is_file():
        return _read_path(file, "auto")
    searched = f"{file} is not there" if file else f"${DATA} is not set"
    try:
        return _read_nltk_alice() if name == "alice" else _read_dataset("fancyzhx/ag_news", "test", "text", None)
    except InputError as error:
        raise InputError(
            f"expected the corpus {name}, got none ({searched}; {error}); give a path to a copy, or set "
            f"{DATA} to a folder with {PAPER_CORPORA[name]}"
        ) from None


def _read_nltk_alice() -> tuple[str, ...]:
    require("nltk", purpose="to read it from NLTK's corpora")
    import nltk

    book = "carroll-alice.txt"
    try:
        return (nltk.corpus.gutenberg.raw(book),)
    except LookupError:
        # Without a network, nltk.download returns False and raises nothing.
        if not nltk.download("gutenberg", quiet=True):
            raise InputError("NLTK has no copy and could not download one") from None
        return (nltk.corpus.gutenberg.raw(book),)


def _read_dataset(name: str, split: str, column: str | None, subset: str | None) -> tuple[str, ...]:
    require("datasets", purpose=f"to read {name!r} from the hub", otherwise="or give a file")
    import datasets

    try:
        # Version 3 of the library asks on the terminal whether a script may run; version 4 has none and accepts False.
        table = datasets.load_dataset(name, subset, split=split, trust_remote_code=False)
    except Exception as error:  # exceptions of the library, of the hub and of the network
        reason = first_line(error)
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


T = TypeVar("T")

DEFAULT_WORDS = 150_000  # about 170,000 tokens
_SENTENCES = range(4, 9)  # of a paragraph

_TOPICS = {
    "workshop": "lathe bench file clamp gauge drill spindle vice chisel rule apprentice mechanic blueprint bearing",
    "harbour": "quay ferry mooring crane tide pilot buoy warehouse lighthouse dredger cargo anchor sailor channel",
    "observatory": "telescope dome lens star catalogue eclipse astronomer meridian clock comet plate horizon orbit",
    "archive": "ledger shelf catalogue letter clerk index envelope map registrar signature folder stamp margin",
    "orchard": "apple ladder basket graft hedge frost gardener branch cellar press blossom wall crate harvest",
    "railway": "signal platform timetable engine carriage porter junction tunnel whistle ticket bridge points guard",
    "kitchen": "kettle oven recipe flour cook table knife spoon pantry stove bread bowl window apron",
    "laboratory": "flask balance thermometer burner crystal sample chemist notebook valve scale magnet current prism",
    "school": "slate teacher lesson pupil corridor bell ruler blackboard question exercise compass essay lamp",
    "valley": "river mill path meadow stone farmer fence hill flood weir boat willow ford village",
}
_WORDS = {
    "adjective": "old narrow patient careful bright uneven familiar borrowed second broken quiet heavy distant modest "
    "accurate doubtful plain crooked ordinary slow stubborn generous faded empty painted reliable curious wooden",
    "adverb": "slowly twice carefully seldom almost gladly soon again rarely quietly often suddenly patiently badly "
    "exactly once evenly promptly",
    "verb": "measured carried repaired mislaid counted described lifted compared moved opened painted sold borrowed "
    "cleaned followed ordered weighed copied explained replaced praised doubted finished inherited",
    "noun": "reason answer mistake number season promise habit rumour debt silence method journey visitor agreement "
    "error pattern story neighbour morning winter",
    "name": "Amara Bruno Celeste Dmitri Elspeth Farid Greta Hanno Ilse Jonas Kamala Ludo Mirela Nadir Odile Pascal "
    "Quentin Rosa Stellan Tamsin Ulla Viktor Wanda Xenia Yusuf Zora",
    "place": "upstairs outside nearby downstream indoors elsewhere overhead abroad",
    "unit": "inches minutes pounds paces degrees pages coins hours yards ounces",
    "connective": "because although while until unless after before since",
}
_PATTERNS = (
    "{Name} {verb} the {adjective} {topic} before the {topic} was {verb}.",
    "Nobody had {verb} the {topic}, and the {noun} was {adverb} {verb}.",
    "The {topic} beside the {topic} was {number} {unit} long, which {name} {adverb} {verb}.",
    "It was a {adjective} {noun}, {connective} the {topic} could not be {verb} {place}.",
    "When the {adjective} {topic} had been {verb}, {name} and {name} went {place}.",
    "There were {number} {unit} between one {topic} and the next, and each {topic} was {adjective}.",
    '"The {topic} is {adjective}," said {name}, who had {adverb} {verb} the {noun}.',
    "Every {noun} that {name} {verb} had something to do with the {adjective} {topic}.",
    "{Name} asked whether the {topic} or the {topic} was more {adjective}, and {verb} both.",
    "After {number} {unit} the {noun} was {adjective}, {connective} {name} {verb} the {topic} {adverb}.",
    "The {adjective} {topic}, the {topic} and the {adjective} {noun} were {verb} {place}.",
    "Not one {topic} in {number} was {adjective}, and still {name} {verb} it.",
    "If the {topic} is {verb} {adverb}, the {noun} becomes {adjective}.",
    "From the {topic} to the {topic} it was {number} {unit}, as {name} had {verb}.",
    "They {verb} the {topic} {adverb}, {connective} a {adjective} {noun} had been {verb} {place}.",
    "What {name} called a {noun} was only a {adjective} {topic} that somebody had {verb}.",
)


def generated_text(words: int = DEFAULT_WORDS) -> str:
    """Return a generated text of at least so many words; a shorter text is the beginning of a longer one.

    Args:
        words: The number of words.

    Returns:
        The text: paragraphs of sentences, none of which occurs twice.

    Example:
        >>> text = generated_text(500)
        >>> len(text.split()) >= 500 and generated_text(1000).startswith(text)
        True
        >>> text.split(".")[0]
        '"The pupil is accurate," said Kamala, who had exactly compared the silence'
    """
    draw = random.Random(0)
    choices = {key: tuple(value.split()) for key, value in _WORDS.items()}
    topics = [tuple(value.split()) for value in _TOPICS.values()]
    seen: set[str] = set()
    paragraphs: list[str] = []
    count = 0
    while count < words:
        nouns, sentences = _pick(draw, topics), []
        for _ in range(_pick(draw, _SENTENCES)):
            sentence = _sentence(draw, choices, nouns)
            while sentence in seen:
                sentence = _sentence(draw, choices, nouns)
            seen.add(sentence)
            sentences.append(sentence)
        paragraphs.append(" ".join(sentences))
        count += len(paragraphs[-1].split())
    return "\n\n".join(paragraphs)


def _sentence(draw: random.Random, choices: dict[str, tuple[str, ...]], nouns: tuple[str, ...]) -> str:
    """Return a random pattern whose places are filled with random words."""

    def fill(place: re.Match[str]) -> str:
        key = place[1].lower()
        if key == "number":
            return str(2 + int(draw.random() * 98))
        return _pick(draw, nouns if key == "topic" else choices[key])

    sentence = re.sub(r"\{(\w+)\}", fill, _pick(draw, _PATTERNS))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)


def _pick(draw: random.Random, items: Sequence[T]) -> T:
    """Return a random item; by `random()` alone, whose numbers are the same in every version of Python."""
    return items[int(draw.random() * len(items))]
