"""Kills and second writers at random moments: no record is lost, repeated, cut or different.

The moment is a call of a function, drawn from a seed: the command pauses in it (`tests/paused.py`), so that each
interleaving can be repeated.
"""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from howsmooth.records import is_intact
from howsmooth.studies.store import Store
from tests.seeds import seeds
from tests.tiers import rest_is_slow
from tests.tolerances import FLOAT32, same_record

pytestmark = pytest.mark.random
KEYS = 'lengths = [6, 8]\nsamples = 2\nlayers = "all"\n'  # with the tiny model: 8 tasks
OPTIONS = "--lengths 6,8 --samples 2 --layers all"
SAME = ("n", "layer", "head", "sample", "status", "seed", "text_sha256", "source", "value", "lower", "upper")
# Functions, and how often each is called at least. The last ones are within a transaction, or before a line is written.
OF_A_STUDY = {
    "howsmooth.cli.loading:load_torch": 1,
    "howsmooth.studies.plan:prepare": 1,
    "howsmooth.studies.store:Store.plan": 3,
    "howsmooth.questions.quantities:local_lipschitz": 4,
    "howsmooth.studies.store:Store.add": 4,
    "howsmooth.studies.store:sealed_line": 8,
}
OF_A_FILE = {
    "howsmooth.cli.loading:load_model_and_text": 1,
    "howsmooth.questions.quantities:local_lipschitz": 4,
    "howsmooth.cli.outputs:RecordFile.write": 8,
    "howsmooth.cli.outputs:sealed_line": 8,
}
ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def moment(functions: dict[str, int], draw: random.Random) -> tuple[str, int]:
    name = draw.choice(sorted(functions))
    return name, draw.randint(1, functions[name])


def ended(process, draw: random.Random) -> None:
    process.send_signal(draw.choice(ENDS))
    process.communicate()


def numbers(records) -> dict[str, dict]:
    found = {record["task"]: record for record in records}
    assert len(found) == len(records), "a task has two records"
    return found


def assert_same(found: dict[str, dict], expected: dict[str, dict]) -> None:
    """A task that is computed alone has other rounding than in a batch, so that steps and residuals may differ."""
    assert found.keys() == expected.keys()
    for task, record in found.items():
        one, other = ({name: each[name] for name in SAME} for each in (record, expected[task]))
        assert same_record(one, other, FLOAT32), (one, other)


@pytest.mark.parametrize("seed", rest_is_slow(seeds(3)))
def test_a_study_that_is_killed_twice(seed, start_paused_at, howsmooth, tiny, text_file, tmp_path):
    draw = random.Random(f"study {seed}")
    file = tmp_path / "s.toml"
    file.write_text(f'models = "{tiny}"\ntexts = "{text_file}"\n{KEYS}[engine]\nworkers = 0\n')
    store = file.with_suffix(".sqlite")

    def stored() -> dict[str, dict]:
        if not store.exists():
            return {}
        with Store.read(store) as opened:
            return numbers(list(opened.records(everything=True)))

    ended(start_paused_at(f"study run {file}", *moment(OF_A_STUDY, draw)), draw)
    first = stored()
    if len(first) < 4:  # all functions are still called often enough for a second moment
        name, call = moment({name: max(1, count // 2) for name, count in OF_A_STUDY.items()}, draw)
        process = start_paused_at(f"study resume {file}", name, call)
        assert howsmooth(f"study resume {file}").code == 2, "two at a time"
        ended(process, draw)
    second = stored()
    assert {task: second[task] for task in first} == first  # exact: no record is computed again
    assert howsmooth(f"study resume {file}").code == 0
    last = stored()
    assert {task: last[task] for task in second} == second  # exact: as above
    assert howsmooth(f"study run {file} --store {tmp_path / 'whole.sqlite'}").code == 0
    with Store.read(tmp_path / "whole.sqlite") as opened:
        assert_same(last, numbers(list(opened.records())))


@pytest.mark.parametrize("seed", rest_is_slow(seeds(3)))
def test_a_file_of_a_run_that_is_killed_beside_another(seed, start_paused_at, howsmooth, tiny, text_file, tmp_path):
    draw = random.Random(f"file {seed}")
    file, whole = tmp_path / "r.jsonl", tmp_path / "whole.jsonl"
    line = f"measure {tiny} --text {text_file} {OPTIONS} --json"
    name, call = moment(OF_A_FILE, draw)
    process = start_paused_at(f"{line} {file}", name, call)
    refused = howsmooth(f"{line} {file}")
    assert refused.code == 2 and len(refused.errors) == 1 and "nobody else is writing" in refused.err
    ended(process, draw)
    before = file.read_bytes() if file.exists() else b""
    assert all(is_intact(text) for text in before.decode().splitlines())
    if before and draw.random() < 0.5:  # as when the disk was full, or the system stopped
        before = before[: -draw.randrange(1, min(len(before), 400))]
        file.write_bytes(before)
    assert howsmooth(f"{line} {file}").code == 0 and howsmooth(f"{line} {whole}").code == 0
    lines = file.read_bytes()
    kept = before[: before.rindex(b"\n") + 1] if b"\n" in before else b""
    assert lines.startswith(kept) and all(is_intact(text) for text in lines.decode().splitlines())
    found, expected = (
        numbers([json.loads(text) for text in Path(path).read_text().splitlines()]) for path in (file, whole)
    )
    assert_same(found, expected)
