"""Damaged files: valid records are read, all others are left out or refused in one sentence.

Each test makes a fixed number of mutations from the seeds of `tests/seeds.py`; a failure names that of its mutation.
"""

from __future__ import annotations

import copy
import io
import json
import random
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from howsmooth.errors import InputError
from howsmooth.fits import growth_laws
from howsmooth.questions.spec import read_study
from howsmooth.records import json_line, make_record
from howsmooth.report.measurement_tables import Summary, study_tables, summary
from howsmooth.report.page_tables import tables_of
from howsmooth.report.web_page import report_page, write_csv
from howsmooth.studies.formats import export, read_records
from howsmooth.studies.store import Store
from tests.seeds import seeds

pytestmark = pytest.mark.random
MUTATIONS = 4000
HOSTILE = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "\ud800",
    "é" * 40,
    [],
    {},
    [None],
    [[1]],
    {"value": None},
    "9" * 5000,
    10**400,
)
SHARED = {
    "model": "m",
    "layer": 0,
    "head": None,
    "map": "attention",
    "text": "t",
    "tokens": "all",
    "versions": {"howsmooth": "0.2", "torch": "2"},
    "source": {"origin": "folder", "sha256": {"a": "b"}},
    "device": "cpu",
    "status": "converged",
    "confidence": 0.999,
    "seed": 0,
    "dtype": "float32",
    "tol": 1e-3,
}
NUMBER = {"value": 2.0, "lower": 1.9, "upper": 2.1, "dtype": "float32", "status": "converged"}


def valid_records() -> list[dict]:
    """A record of each kind, measurements at several lengths."""
    measured = [
        make_record(
            "measurement",
            {
                **SHARED,
                "n": n,
                "sample": sample,
                "value": 2.0 * n**0.3,
                "lower": 1.9 * n**0.3,
                "upper": 2.1 * n**0.3,
                "residual": 1e-5,
                "steps": 9,
                "radius": 4.0,
                "mean_radius": 3.0,
                "relative": 1.0,
                "seconds": 0.1,
                "top_tokens": [{"position": 1, "token": "a", "share": 0.5}],
                "shares": [1 / n] * n,
                "words": ["w"] * n if sample == 0 else None,
            },
        )
        for n in (4, 8, 16, 32)
        for sample in (0, 1)
    ]
    bound = make_record(
        "bound",
        {
            **SHARED,
            "n": 8,
            "sample": 0,
            "bound": "local",
            "side": "upper",
            "holds": "at X",
            "value": 3.0,
            "log_value": 1.1,
            "ratio": 1.5,
            "log_ratio": 0.4,
            "R": 4.0,
            "refused": None,
            "conditions": ["a"],
            "measured": NUMBER,
        },
    )
    worst = make_record(
        "worst case",
        {
            **SHARED,
            "n": 8,
            "within": "norm",
            "R": None,
            "eps": None,
            **NUMBER,
            "best_start": 1.0,
            "on_text": NUMBER,
            "over_text": 1.5,
            "upper_bound": {"name": "u", "value": 9.0, "log_value": 2.2},
            "masses": [3, 5],
        },
    )
    ball = make_record(
        "ball",
        {
            **SHARED,
            "n": 8,
            "eps": 0.1,
            "certified": 4.0,
            "log_certified": 1.4,
            "tightness": 2.0,
            "method": "m",
            "vacuous_eps": 0.5,
            "found": NUMBER,
            "centre": NUMBER,
        },
    )
    return [*measured, bound, worst, ball]


def mutate(record: dict, rng: random.Random) -> dict:
    """Return the record with one or two fields, at any depth, removed or replaced."""
    record = copy.deepcopy(record)
    for _ in range(rng.choice((1, 1, 2))):
        inside = record
        while True:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(inside[key], (dict, list)) and rng.random() < 0.5:
                inside = inside[key]
                continue
            if rng.random() < 0.3:
                del inside[key]
            else:
                inside[key] = rng.choice(HOSTILE)
            break
    return record


def loose_json(record: dict) -> str:
    """Return a record as lenient JSON, with NaN, infinities and half surrogate pairs."""
    return json.dumps(record)


def show_everything(paths: list[str], folder: Path) -> None:
    """Make the page, the CSV files and all tables of the records."""
    read = read_records(paths)
    tables = tables_of(read.records)
    report_page(read.records, notes=read.notes, tables=tables).encode("utf-8")
    write_csv(tables, folder)
    measured = [record for record in read.records if record["kind"] == "measurement"]
    shown = Console(file=io.StringIO(), width=80)
    whole = [record for record in measured if record["value"] is not None and record["lower"] is not None]
    if whole:
        shown.print(summary(whole, growth_laws(whole, draws=5)))
        for table in study_tables(Summary(whole, draws=5)):
            shown.print(table)


def test_valid_records_are_all_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json_line(record) + "\n" for record in valid_records()), encoding="utf-8")
    read = read_records([str(path)])
    assert len(read.records) == len(valid_records()) and not read.notes
    show_everything([str(path)], tmp_path)


def test_a_layer_that_is_missing_among_others(tmp_path):
    path, records = tmp_path / "r.jsonl", valid_records()
    for record in records[::3]:
        record["layer"] = None
    path.write_text("".join(json_line(record) + "\n" for record in records), encoding="utf-8")
    assert len(read_records([str(path)]).records) == len(records)
    show_everything([str(path)], tmp_path)


@pytest.mark.parametrize("key", ["kind", "schema"])
def test_half_a_character_in_what_a_note_quotes(tmp_path, key):
    path = tmp_path / "r.jsonl"
    lines = [
        json.dumps({**record, key: "\ud800"} if not number else record) for number, record in enumerate(valid_records())
    ]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (note,) = read_records([str(path)]).notes
    assert r"\ud800" in note and note.encode("utf-8")
    show_everything([str(path)], tmp_path)


def test_mutated_json_lines(tmp_path):
    path, left_out = tmp_path / "r.jsonl", 0
    for seed in seeds(MUTATIONS // 10):
        rng = random.Random(seed)
        lines = [loose_json(mutate(record, rng)) for record in valid_records()]
        if rng.random() < 0.2:
            cut = rng.randrange(len(lines))
            lines[cut] = lines[cut][: rng.randrange(1, len(lines[cut]))]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        try:
            show_everything([str(path)], tmp_path)
            left_out += len(lines) - len(read_records([str(path)]).records)
        except InputError:
            left_out += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert left_out > 100  # the mutations have an effect


def test_mutated_stores(tmp_path):
    records, refused = valid_records()[:8], 0
    for seed in seeds(MUTATIONS // 50, 1000):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}.sqlite"
        with Store.write(path) as store:
            store.plan({"name": "s"}, [str(i) for i in range(len(records))])
            store.add((str(i), record, None) for i, record in enumerate(records))
        with sqlite3.connect(path) as db:
            for i in range(len(records)):
                text = (
                    loose_json(mutate(records[i], rng))
                    if rng.random() < 0.8
                    else rng.choice(("", "{", "[]", "null", b"\xff\xfe"))
                )
                db.execute("UPDATE records SET record = ? WHERE id = ?", (text, i + 1))
        db.close()
        if rng.random() < 0.5:
            raw = bytearray(path.read_bytes())
            for _ in range(rng.randrange(1, 30)):
                raw[rng.randrange(16, len(raw))] = rng.randrange(256)
            path.write_bytes(bytes(raw))
        for use in (
            partial(show_everything, [str(path)], tmp_path),
            partial(_export, path, tmp_path),
            partial(_status, path),
        ):
            try:
                use()
            except InputError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
    assert refused > 10  # the mutations have an effect


def _export(path: Path, folder: Path) -> None:
    with Store.read(path) as store:
        for name in ("out.csv", "out.jsonl"):
            export(store, str(folder / name))


def _status(path: Path) -> None:
    with Store.read(path) as store:
        store.counts(), store.failures(), store.study, list(store.records(everything=True))


STUDY = """name = "grid"
models = ["minilm", { name = "random:gpt2", weights = "random", layers = [0, 1] }]
texts = ["embedded"]
lengths = "16..64*2"
samples = 2
tol = 1e-3
engine = { workers = 2, name = "local" }
"""


def test_mutated_study_files(tmp_path):
    path = tmp_path / "s.toml"
    pieces = (
        "=",
        "[",
        "]",
        "{",
        "}",
        "\n",
        '"',
        "1e999",
        "nan",
        "-1",
        "16..",
        "*",
        "\x00",
        "lengths",
        "= [[",
        "é",
        "9" * 5000,
        "true",
        "1979-05-27",
        "'''",
        "..",
        ",",
    )
    for seed in seeds(MUTATIONS, 2000):
        rng = random.Random(seed)
        text = STUDY
        for _ in range(rng.choice((1, 1, 2, 3))):
            at, length = rng.randrange(len(text)), rng.choice((0, 1, 3, 8))
            text = text[:at] + rng.choice(pieces) + text[at + length :]
        path.write_text(text, encoding="utf-8")
        try:
            read_study(path)
        except InputError as error:
            assert "\n" not in str(error), f"seed {seed}: more than one line"
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
