"""The study commands: run, kill, resume, status, export."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from howsmooth.records.lock import only_writer
from tests import reasons
from tests.tolerances import FLOAT32, close, less


@pytest.fixture
def study(tiny, text_file, tmp_path):
    """Return a function that writes a study file with a number of samples; 2 layers × 2 lengths each."""

    def write(samples: int = 2, more: str = "") -> Path:
        file = tmp_path / "growth.toml"
        file.write_text(
            f'description = "small"\nmodels = "{tiny}"\ntexts = "{text_file}"\nlengths = [6, 8]\n'
            f"samples = {samples}\n{more}[engine]\nworkers = 0\n"
        )
        return file

    return write


def stored(file: Path) -> list[dict]:
    from howsmooth.studies.store import Store

    with Store.read(file.with_suffix(".sqlite")) as store:
        return list(store.records())


def test_run_status_ls_export(howsmooth, study, tmp_path):
    file = study(more='tokens = ["all", "no-first"]\n')
    result = howsmooth(f"study run {file}")
    assert result.code == 0, result.err
    assert "16 of 16 tasks done" in result.err and "time" in result.err and "memory" in result.err
    assert "without the first" in result.out and "is it Lip" in result.out
    again = howsmooth(f"study run {file} --samples 3")
    assert again.code == 0 and "16 of them done before" in again.err and "24 of 24" in again.err
    assert "24 of 24 tasks done" in howsmooth(f"study status {file}").out
    assert "small" in howsmooth(f"study ls {tmp_path}").out
    for name in ("x.csv", "x.jsonl", "x.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow", reason=reasons.extra("pyarrow", "parquet"))
        assert howsmooth(f"study export {file} --file {tmp_path / name}").code == 0
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    with open(tmp_path / "x.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert len(lines) == len(rows) == len(table) == 24
    for line, row, cells in zip(lines, rows, table, strict=True):
        # exact: one record in three formats, each with every digit
        assert float(row["value"]) == cells["value"] == line["value"]
        assert json.loads(cells["source"]) == json.loads(row["source"]) == line["source"]
        assert cells["n"] == line["n"] and cells["task"] == line["task"]
    printed = howsmooth(f"study export {file}").out.splitlines()
    assert [json.loads(line) for line in printed] == lines  # exact: the same records, printed


def test_killed_and_resumed(start_paused_at, howsmooth, study):
    """After SIGKILL the workers end with the driver, the store keeps its records, and resume computes the rest."""
    file, planned = study(samples=4), 3 * 4 * 4  # lengths × samples × heads of both layers
    process = start_paused_at(
        f"study run {file} --workers 2 --threads 1 --set tol=1e-5 --heads all --lengths 6..8",
        "howsmooth.studies.store:Store.add",
        3,
    )
    before = stored(file)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert stored(file) == before and 2 <= len(before) < planned and len(children) >= 2
    while any(_alive(int(child)) for child in children):  # a worker that outlives its driver runs into the time limit
        time.sleep(0.05)
    result = howsmooth(f"study resume {file.with_suffix('.sqlite')} --workers 0")
    assert result.code == 0, result.err
    assert f"{len(before)} of them done before" in result.err
    after = {record["task"]: record for record in stored(file)}
    assert len(after) == planned
    assert all(after[record["task"]] == record for record in before)  # exact: records are not computed again


def test_a_run_that_was_killed_early_is_resumed_as_it_would_be_run(start_paused_at, howsmooth, study):
    """Before the models are loaded there is no task in the store, but there is the study, with its options."""
    file = study()
    store = file.with_suffix(".sqlite")
    process = start_paused_at(f"study run {file} --samples 3", "howsmooth.cli.loading:load_torch", 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    result = howsmooth(f"study resume {store}")
    assert result.code == 0 and "12 of 12 tasks done" in result.err, result.err
    for emptied in (store.unlink, store.touch):  # killed before the store, or anything in it, was written
        emptied()
        result = howsmooth(f"study resume {file}")
        assert result.code == 0 and "8 of 8 tasks done" in result.err, result.err
        store.unlink()


def test_a_changed_record_is_reported_and_computed_again(howsmooth, study, tmp_path):
    file = study()
    store = file.with_suffix(".sqlite")
    assert howsmooth(f"study run {file}").code == 0
    before = stored(file)
    assert "was changed" not in howsmooth(f"study status {file}").out
    with sqlite3.connect(store) as db:
        (text,) = db.execute("SELECT record FROM records WHERE id = 3").fetchone()
        digits = repr(json.loads(text)["value"])
        flipped = str((int(digits[0]) + 1) % 10) + digits[1:]
        db.execute("UPDATE records SET record = ? WHERE id = 3", (text.replace(digits, flipped),))
    db.close()
    word = "record 3 of growth.sqlite was changed after it was written"
    status = howsmooth(f"study status {file}").out
    assert word in status and f"{len(before) - 1} of {len(before)} tasks done" in status
    assert f"{len(before) - 1} of {len(before)} tasks done" in howsmooth(f"study status {file} --with-tables").out
    assert word in howsmooth(f"report {store} -o {tmp_path / 'r.html'}").err
    assert word in howsmooth(f"study export {file} --file {tmp_path / 'r.jsonl'}").err
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == len(before) - 1
    result = howsmooth(f"study resume {file}")
    assert result.code == 0 and "1 record (3) of growth.sqlite" in result.err and "7 of them done" in result.err
    again = {record["task"]: record for record in stored(file)}
    assert all(close(again[record["task"]]["value"], record["value"], FLOAT32) for record in before)
    assert sum(again[record["task"]] == record for record in before) == len(before) - 1  # exact: kept in the store
    assert "was changed" not in howsmooth(f"study status {file}").out


@pytest.mark.parametrize("value", ["7", "[]", "null", '"x"'])
def test_a_study_in_the_store_that_is_none_is_one_line(howsmooth, study, value):
    file = study()
    assert howsmooth(f"study run {file}").code == 0
    with sqlite3.connect(file.with_suffix(".sqlite")) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'study'", (value,))
    db.close()
    assert howsmooth(f"study status {file}").code == 0
    result = howsmooth(f"study resume {file}")
    assert result.code == 2 and "expected a study in" in result.err and len(result.errors) == 1


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_second_run_at_the_same_time_is_an_error(howsmooth, study):
    from howsmooth.studies.store import Store

    file = study()
    with Store.write(file.with_suffix(".sqlite")):
        result = howsmooth(f"study run {file}")
    assert result.code == 2 and f"in use by process {os.getpid()}" in result.err and "Traceback" not in result.err


def test_interrupted(howsmooth, study, monkeypatch):
    from howsmooth.studies import run

    def interrupt(bundle):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_bundle", interrupt)
    result = howsmooth(f"study run {study()}")
    assert result.code == 130 and "resume with: howsmooth study resume" in result.err


def test_failed_tasks_are_reported(howsmooth, study, monkeypatch):
    from howsmooth.questions import quantities

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(quantities, "local_lipschitz", full)
    file = study()
    result = howsmooth(f"study run {file}")
    assert result.code == 1 and "8 failed" in result.err and "out of memory at n = 8" in result.err
    assert "4 tasks failed and are retried by resume: out of memory" in howsmooth(f"study status {file}").out


def test_plan(howsmooth, study, tiny, text_file):
    result = howsmooth(f"plan {study()}")
    assert result.code == 0 and "tasks      8" in result.out and "time" in result.out and "GiB are free" in result.out
    line = f"plan {tiny} --text {text_file} --lengths 8,16 --samples 3 --heads all --tokens all --tol 1e-2"
    result = howsmooth(line)
    assert result.code == 0, result.err
    assert [line.split()[:2] for line in result.out.splitlines()[1:3]] == [["8", "12"], ["16", "12"]]  # n, solves
    assert "are free" in result.out and "steps at n = 16" in result.out


def test_the_plan_of_a_study_rejects_dtype(howsmooth, study):
    refused = howsmooth(f"plan {study()} --dtype float64")
    assert refused.code == 2 and "expected --dtype only with a model" in refused.err


def test_plan_as_a_record(howsmooth, tiny, text_file):
    line = f"plan {tiny} --text {text_file} --layers 1 --samples 2 --tol 1e-2 --json - --lengths"
    result = howsmooth(f"{line} 8,40")
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert [(cost["n"], cost["solves"]) for cost in record["lengths"]] == [(8, 2), (40, 2)]
    for cost in record["lengths"]:
        assert 0 < cost["steps"] <= cost["most_steps"] and cost["bytes"]["total"] < record["free_bytes"]
        assert cost["bytes"]["vectors"] >= 4 * cost["n"] * 16 * 4 and cost["seconds"]["solving"] > 0
    assert record["device"] == "cpu" and less(0, record["loading"], record["seconds"])
    for more, words in (
        ("8 --workers 2", "--workers only with a study file"),
        ("8 --set a=1", "--set only with a study file"),
        ("8 --map block", "no plan"),
        ("8 --tol x", "a number"),
        ("80", "at most 64"),
        ("8 --max-memory 1K", "at least"),
    ):
        refused = howsmooth(f"{line} {more}")
        assert refused.code == 2 and words in refused.err, refused.err


@pytest.mark.parametrize(
    "line, words",
    [
        ("run {file} --set lenghts=3", ("unknown key 'lenghts'", "'lengths'")),
        ("run {file} --set max_memroy=3", ("did you mean 'max_memory'",)),  # a key, not the option
        ("run {file} --set lengths", ("KEY=VALUE",)),
        ("run {file} --layers 7", ("between 0 and 1, got 7",)),
        ("run {file} --samples 1000", ("tokens of text", "longer text")),
        ("run {file} --engine cloud", ("engine.name",)),
        ("run no.toml", ("no.toml", "no such file")),
        ("validate {file} --tol 2", ("tol",)),
        ("resume no.sqlite", ("does not exist", "study run")),
        ("status {file}", ("does not exist",)),
        ("export {file}", ("does not exist",)),
        ("ls no-such-folder", ("folder",)),
    ],
)
def test_bad_input(howsmooth, study, line, words):
    result = howsmooth("study " + line.format(file=study()))
    assert result.code == 2 and "Traceback" not in result.err, result.err
    complaint = result.err.strip().splitlines()[-1]
    for word in words:
        assert word in complaint, complaint


def test_validate(howsmooth, study):
    file = study()
    assert "fine" in howsmooth(f"study validate {file}").out
    assert "fine, 8 tasks" in howsmooth(f"study validate {file} --full").out


def test_validate_refuses_a_model_that_does_not_exist(howsmooth, study):
    file = study()
    text = file.read_text()
    for name in ("minilmm", "./no-such-folder"):
        file.write_text(re.sub(r"(?m)^models = .*$", f'models = ["{name}"]', text))
        refused = howsmooth(f"study validate {file}")
        assert refused.code == 2 and name in refused.err and "fine" not in refused.out


def test_export_errors(howsmooth, study, tmp_path):
    file = study()
    howsmooth(f"study run {file}")
    wrong = (("--file x.docx", ".parquet"), ("--format parquet", "stdout"), (f"--file {tmp_path}/no/x.csv", "folder"))
    for more, word in wrong:
        result = howsmooth(f"study export {file} {more}")
        assert result.code == 2 and word in result.err


def test_an_export_does_not_replace_a_file_that_another_process_writes(howsmooth, study, tmp_path):
    """The other process would write what it computes from then on into a file without a name."""
    file, theirs = study(), tmp_path / "theirs.jsonl"
    howsmooth(f"study run {file}")
    theirs.write_text("theirs")
    with only_writer(theirs, "a file", "--json"):
        refused = howsmooth(f"study export {file} --file {theirs}")
    assert refused.code == 2 and len(refused.errors) == 1 and "nobody else is writing" in refused.err
    assert theirs.read_text() == "theirs"
    assert howsmooth(f"study export {file} --file {theirs}").code == 0
    assert len(theirs.read_text().splitlines()) == 8 and not (tmp_path / "theirs.jsonl.lock").exists()


def test_export_to_a_full_disk_keeps_the_existing_file(howsmooth, study, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip(reasons.device_file("/dev/full"))
    file, kept = study(), tmp_path / "kept.csv"
    howsmooth(f"study run {file}")
    kept.write_text("earlier")
    partial = tmp_path / f".kept.csv.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    result = howsmooth(f"study export {file} --file {kept}")
    assert result.code == 2 and "no space left" in result.err and kept.read_text() == "earlier"
    assert not os.path.lexists(partial)


@pytest.mark.parametrize("option", ["trust_remote_code", "allow_pickle"])
def test_remote_code_needs_an_option_as_well(howsmooth, study, tiny, option):
    """A study file may be from an untrusted source: running a model's code needs an option on the command line, too."""
    file, flag = study(), "--" + option.replace("_", "-")
    file.write_text(file.read_text().replace(f'models = "{tiny}"', f'models = [{{name = "{tiny}", {option} = true}}]'))
    for line in (f"study run {file}", f"study validate {file} --full", f"plan {file}"):
        refused = howsmooth(line)
        assert refused.code == 2 and f"expected {flag} on the command line" in refused.err and tiny in refused.err, line
    message = howsmooth(f"study validate {file}")
    assert message.code == 0 and f"requests to run code that comes with {tiny}" in message.out and flag in message.out
    assert howsmooth(f"study run {file} {flag}").code == 0
    assert howsmooth(f"study resume {file}").code == 2  # a store remembers the study, not the word
    assert howsmooth(f"study resume {file} {flag}").code == 0


def test_a_cluster_in_a_study_needs_an_option_as_well(howsmooth, study, monkeypatch):
    """The address in a study file or a store alone is connected to by no command."""
    from howsmooth.studies import engines

    calls = []

    def engine(bundles, work, *, address, **_options):
        calls.append(address)
        return engines.in_this_process(bundles, work)

    monkeypatch.setattr(engines, "ray_engine", engine)
    file, address = study(), "192.0.2.1:6379"
    file.write_text(file.read_text() + f'name = "ray"\naddress = "{address}"\n')
    store = file.with_suffix(".sqlite")
    for line in (f"study run {file}", f"study run {file} --set name=other", f"study resume {file}"):
        refused = howsmooth(line)
        assert refused.code == 2 and f"expected --address {address} on the command line" in refused.err, line
        store.touch()  # resumes from the file beside it
    checked = howsmooth(f"study validate {file}")
    assert (
        checked.code == 0 and f"connect to the Ray cluster at {address}" in checked.out and "--address" in checked.out
    )
    assert not calls
    assert howsmooth(f"study run {file} --address {address}").code == 0 and calls == [address]
    assert howsmooth(f"study resume {store}").code == 2  # a store remembers the study, not the word
    assert howsmooth(f"study resume {store} --set engine.address={address}").code == 0
    assert howsmooth(f"study resume {store} --engine local --workers 0").code == 0  # the cluster is gone


def test_names_that_are_not_utf8(howsmooth, study, tmp_path, tiny, text_file):
    """The name of a study is shown with escapes; a model or a text in a record needs a name in UTF-8."""
    file = study()
    odd = file.rename(os.fsdecode(bytes(tmp_path) + b"/s\xff.toml"))
    result = howsmooth("study run", str(odd))
    assert result.code == 0, result.err
    assert {record["n"] for record in stored(odd)} == {6, 8}
    assert howsmooth("study status", str(odd)).code == 0
    listed = howsmooth("study ls", str(tmp_path))
    assert listed.code == 0 and "8 of 8 tasks done" in listed.out
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    shutil.copy(odd, folder / "growth.toml")
    refused = howsmooth("study run", str(folder / "growth.toml"))
    assert refused.code == 2 and "a folder with a name in UTF-8" in refused.err and "rename" in refused.err
    assert "a name in UTF-8" in " ".join(howsmooth("study ls", str(folder)).out.split())
    for kind, source in (("MODEL", tiny), ("--text", text_file)):
        link = tmp_path / os.fsdecode(b"l\xff" + kind.encode())
        link.symlink_to(source)
        given = {"MODEL": tiny, "--text": text_file, kind: str(link)}
        refused = howsmooth("measure", given["MODEL"], "--text", given["--text"], "--lengths", "4", "--samples", "1")
        assert refused.code == 2 and f"{kind}: expected a name in UTF-8" in refused.err and "rename" in refused.err
