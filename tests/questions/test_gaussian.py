"""The question gaussian: what its spec refuses, its records, resuming."""

from __future__ import annotations

import json

import pytest

import howsmooth as package
from howsmooth.questions import question_of, record_error
from howsmooth.records.arrays import unpack
from tests.tolerances import at_most, same_record

QUICK = {"until": 0.5, "frames": 11}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"attention": "sigmoid"}, "of softmax, l2, sinkhorn, linear, under which a Gaussian stays one, got sigmoid"),
        ({"mean": [1.0]}, "a --mean of 2 numbers"),
        ({"covariance": [1.0, 2.0, 3.0]}, "shape"),
        ({"A": "one"}, "a diagonal such as 1,-2"),
        ({"frames": 3}, "frames: expected a whole number from 11"),
        ({"rtol": 2}, "rtol: expected a finite number between 0 and 1"),
        ({"example": "sphere"}, "off the sphere"),
    ],
)
def test_what_the_spec_refuses(fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("gaussian", **fields)


def test_it_is_asked_in_python(tmp_path):
    found = package.ask("gaussian", **QUICK, V=-1.0, mean=[1.0, 0.0], particles=500)
    (record,) = found
    assert record_error(record) is None and question_of(record) == "gaussian" and record["status"] == "finished"
    drawn = unpack(record["positions"])
    assert drawn.shape == (11, 400, 2) and len(record["times"]) == 11
    assert at_most(abs(drawn[-1].mean(0) - record["means"][-1]).max(), 0.2)  # 400 draws of standard deviation < 1
    assert "no blow-up" not in str(found) and "eigenvalues of the covariance" in str(found)  # a formula for V = I alone
    found.plot(tmp_path / "a.png")
    assert same_record(package.read(found.save(tmp_path / "a.jsonl"))[0], record)


def test_no_blow_up_in_closed_form_is_known_from_a_file(tmp_path):
    """JSON has no infinity: the record says that there is a formula."""
    found = package.ask("gaussian", **QUICK, A=-1.0)
    assert "V = I in closed form: no blow-up" in str(found)
    assert str(package.read(found.save(tmp_path / "a.jsonl"))) == str(found)


def test_its_command_resumes_and_repeats_its_warning(howsmooth, tmp_path):
    lines = tmp_path / "a.jsonl"
    line = f"flow gaussian --A 1,-2 --covariance 2,1 --until 3 --frames 21 --json {lines}"
    first, second = howsmooth(line), howsmooth(line)
    assert first.code == second.code == 0 and first.out == second.out  # the seconds, too, are those of the record
    assert "stop before it" in second.err and "1 record had been in" in second.err
    assert howsmooth(f"{line} --mean 0,1").code == 0
    assert len({json.loads(written)["task"] for written in lines.read_text().splitlines()}) == 2
