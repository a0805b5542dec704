"""The command, a study, Python and the explorer return equal records for the same spec."""

from __future__ import annotations

from pathlib import Path

import pytest

import howsmooth
from howsmooth.cli import main
from howsmooth.explorer import Limits
from howsmooth.explorer.catalog import ModelCatalog, prepare
from howsmooth.explorer.tabs import layers_form, texts_of
from howsmooth.records import unsealed
from howsmooth.studies import Store, measure, run_study, spec_of
from tests.tolerances import same_record

from .conftest import TEXT, save_tiny

MODEL, SOURCE = "tiny", "pasted"  # a text that the explorer is given has this name
IGNORED_FIELDS = ("seconds", "study", "path", "versions", "commit")  # time, name of the run, paths, software
FIELDS = {"lengths": [6, 12], "layers": [0, 1], "samples": 3, "tokens": ["all", "no-first"], "tol": 1e-4}
SINGLE_LENGTH = {"lengths": [12], "layers": [0, 1], "samples": 1, "tokens": ["no-first"]}


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch) -> Path:
    """The folder of a model and a text, and the working directory."""
    save_tiny(tmp_path / MODEL)
    (tmp_path / SOURCE).write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_command(fields: dict) -> list[dict]:
    options = [
        word
        for name, value in fields.items()
        for word in (f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value))
    ]
    with pytest.raises(SystemExit) as left:
        main(["measure", MODEL, "--text", SOURCE, "--json", "records.jsonl", *options])
    assert left.value.code == 0
    return [unsealed(line) for line in Path("records.jsonl").read_text(encoding="utf-8").splitlines()]


def by_study(fields: dict, workers: int) -> list[dict]:
    run_study(
        spec_of({"models": [MODEL], "texts": [SOURCE], **fields, "engine": {"workers": workers, "threads": 1}}),
        f"{workers}.sqlite",
    )
    with Store.read(f"{workers}.sqlite") as store:
        return list(store.records())


def by_explorer(fields: dict) -> list[dict]:
    limits = Limits(folders=(Path(MODEL),))
    values = texts_of({name: value for name, value in fields.items() if name != "samples"})  # always one
    spec = layers_form(limits).spec({"model": MODEL, **values})
    work = prepare(spec, TEXT, ModelCatalog(limits))
    return list(measure(work.model, work.text, work.settings))


def ordered(records) -> list[dict]:
    """Sort the records, since engines return the longest length first."""
    return sorted(records, key=lambda r: [str(r[name]) for name in ("n", "sample", "layer", "tokens")])


def differences(one: list[dict], other: list[dict]) -> set[str]:
    """Return the fields in which two lists of records differ; "records" if they have different records."""
    if len(one) != len(other):
        return {"records"}
    return {
        name
        for a, b in zip(ordered(one), ordered(other), strict=True)
        for name in a.keys() | b.keys()
        if name not in IGNORED_FIELDS and not same_record(a.get(name), b.get(name), but=IGNORED_FIELDS)
    }


@pytest.mark.slow
def test_two_workers_return_equal_records(capfd):
    assert differences(by_command(FIELDS), by_study(FIELDS, 2)) == set()


def test_command_study_and_python_return_equal_records(capfd):
    """A model in memory may have been changed: its tasks equal no others, and nothing else differs."""
    command = by_command(FIELDS)
    results = {
        "study": by_study(FIELDS, 0),
        "python": list(howsmooth.measure(MODEL, SOURCE, **FIELDS)),
        "a loaded model": list(howsmooth.measure(howsmooth.load(MODEL), SOURCE, **FIELDS)),
    }
    assert len(command) == 2 * 2 * 3 * 2
    for source, records in results.items():
        expected = {"task"} if source == "a loaded model" else set()
        assert differences(command, records) == expected, source


def test_the_explorer_returns_equal_records(capfd):
    by_cli, by_app = by_command(SINGLE_LENGTH), by_explorer(SINGLE_LENGTH)
    assert len(by_cli) == 2 and differences(by_cli, by_app) == {"task"}  # of a model in memory


def test_the_comparison_can_fail():
    first, other = (list(howsmooth.measure(MODEL, SOURCE, **SINGLE_LENGTH, seed=seed)) for seed in (0, 1))
    assert differences(first, other) >= {"seed", "task"}
    assert differences(first, first[:1]) == {"records"}
    assert differences(first, [{**record, "value": 1.01 * record["value"]} for record in first]) == {"value"}
