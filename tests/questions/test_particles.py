"""The question particles: what its spec refuses, its records, resuming, flows that end early or are interrupted."""

from __future__ import annotations

import json

import pytest

import howsmooth as package
from howsmooth.questions import find_question, question_of, record_error
from howsmooth.questions.spec import spec_of
from tests.tolerances import same_record

QUICK = {"particles": 6, "until": 1.0, "frames": 3}
LINE = "flow particles low_rank --particles 6 --until 1 --frames 3"
BLOWS_UP = '[attention]\nname = "linear"\n[tokens]\ncount = 6\n[flow]\nframes = 5\n'


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"particles": 0}, "particles: expected a whole number from 1"),
        ({"attention": "hard"}, "attention: expected 'softmax'"),
        ({"solver": "euler"}, "expected a solver among rk45"),
        ({"sphere": True}, "off the sphere"),
        ({"artefacts": "a.pt"}, "artefacts: expected a file ending in .safetensors"),
        ({"example": "polytop"}, "did you mean 'polytope'"),
        ({"mean": [0]}, "unknown key 'mean'"),
    ],
)
def test_what_the_spec_refuses(fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("particles", **fields)


def test_it_is_asked_in_python(tmp_path):
    found = package.ask("particles", example="hyperplanes", **QUICK, growth=2, residual_layers=4)
    depths = found.records[:3]
    assert [record["kind"] for record in found] == ["particles"] * 3 + ["perturbation growth"] * 2
    assert all(record_error(record) is None and question_of(record) == "particles" for record in found)
    assert [r["t"] for r in depths] == pytest.approx([0, 0.5, 1]) and len({r["flow"] for r in found}) == 1
    assert len(depths[0]["labels"]) == 6 and [len(depths[0][name][0]) for name in ("plane", "space")] == [2, 3]
    assert "labels" not in depths[1] and "at most three" in depths[0]["title"]
    assert "6 tokens in dimension 3" in str(found) and "σ₁ of the flow" in str(found)
    found.plot(tmp_path / "a.png")
    assert len(str(found[1:2])) > 100  # a slice without the first record still has a table
    saved = package.read(found.save(tmp_path / "a.jsonl"))
    assert all(same_record(one, other) for one, other in zip(saved, found, strict=True))


def test_a_file_and_its_contents_decide_about_the_place_not_its_path(tmp_path):
    texts = {"one/mine.toml": "[tokens]\ncount = 4", "two/mine.toml": "[tokens]\ncount = 4"}
    texts["three/mine.toml"] = "[tokens]\ncount = 4\n[attention]\nV = -1.0"
    keys = []
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        spec = spec_of({"question": "particles", "example": "mine.toml", "base": str((tmp_path / name).parent)})
        keys.append(json.dumps(spec.determining(), sort_keys=True))
    assert keys[0] == keys[1] != keys[2]


def test_its_command_resumes(howsmooth, tmp_path, monkeypatch):
    from howsmooth.dynamics import example

    lines, integrated, real = tmp_path / "a.jsonl", [], example.integrate_example
    assert howsmooth(f"{LINE} --json {lines}").code == 0
    monkeypatch.setattr(
        example, "integrate_example", lambda *given, **more: integrated.append(1) or real(*given, **more)
    )
    again = howsmooth(f"{LINE} --json {lines}")
    assert again.code == 0 and integrated == [] and "3 records had been in" in again.err
    assert howsmooth(f"{LINE} --json {lines} --growth 2 --residual-layers 4").code == 0 and integrated == [1]
    assert [record["kind"] for record in read(lines)] == ["particles"] * 3 + ["perturbation growth"] * 2
    tensors = tmp_path / "a.safetensors"
    assert howsmooth(f"{LINE} --json {lines} --artefacts {tensors}").code == 0
    assert tensors.exists() and len(read(lines)) == 5


def test_a_flow_that_blows_up_is_computed_again_and_appends_nothing(howsmooth, tmp_path):
    lines, mine = tmp_path / "a.jsonl", tmp_path / "mine.toml"
    mine.write_text(BLOWS_UP)
    first, second = (howsmooth(f"flow particles {mine} --json {lines}") for _ in range(2))
    assert first.code == second.code == 0
    for shown in (first, second):
        assert "warning: blew up at depth" in shown.err
    assert 2 <= len(read(lines)) < 5 and f"{len(read(lines))} records had been in" in second.err


def test_an_interrupted_flow_is_kept_and_not_mixed_with_the_whole_one(howsmooth, tmp_path, monkeypatch):
    from howsmooth.dynamics.fixed_steps import FixedStep

    lines, real = tmp_path / "a.jsonl", FixedStep.__call__
    line = f"flow particles collapse --solver residual --solver-steps 20 --until 1 --frames 5 --json {lines}"

    def late(step, x):
        if step.t > 0.5:
            raise KeyboardInterrupt
        return real(step, x)

    monkeypatch.setattr(FixedStep, "__call__", late)
    assert howsmooth(line).code == 130
    partial = read(lines)
    assert {record["status"] for record in partial} == {"interrupted"} and {r["task"] for r in partial} == {None}
    monkeypatch.setattr(FixedStep, "__call__", real)
    again = howsmooth(line)
    assert again.code == 0 and "finished at depth 1" in again.out and "interrupted" not in again.out
    everything = read(lines)
    assert len(everything) == len(partial) + 5 and all(record_error(record) is None for record in everything)
    tables = find_question("particles").tables(everything)
    assert sum(getattr(part, "title", None) == everything[0]["title"] for part in tables) == 2
    assert "5 records had been in" in howsmooth(line).err


def test_an_interrupted_flow_is_not_the_result_of_a_study(tmp_path, monkeypatch):
    from howsmooth.dynamics.fixed_steps import FixedStep
    from howsmooth.studies import Store, run_study

    def stopped(step, x):
        raise KeyboardInterrupt

    fields = {"question": "particles", "example": "collapse", "solver": "residual", "steps": 4, "until": 1.0}
    study = spec_of({**fields, "frames": 3, "engine": {"workers": 0}})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(FixedStep, "__call__", stopped)
        run_study(study, tmp_path / "a.sqlite")
    with Store.read(tmp_path / "a.sqlite") as store:
        assert store.counts()["done"] == 0
    assert run_study(study, tmp_path / "a.sqlite")["done"] == 3


def test_many_tokens_are_thinned_in_records():
    first = package.ask("particles", example="sphere", particles=1201, until=0.01, frames=2)[0]
    assert first["n"] == 1201 and len(first["plane"]) == len(first["labels"]) == 401
