"""`howsmooth flow particles`: examples, files of one's own, outputs, errors."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open

from tests.tolerances import at_most

QUICK = "--particles 8 --until 2 --frames 5"


def test_an_example_reports_its_clusters(howsmooth):
    shown = howsmooth("flow particles low_rank --frames 7")
    assert shown.code == 0 and "zeros and ones" in shown.out
    assert "2 clusters from depth" in shown.out and "finished at depth 15" in shown.out
    assert "warning" not in shown.err


def test_records_figure_animation_and_tokens(howsmooth, tmp_path):
    files = {name: tmp_path / name for name in ("a.jsonl", "a.csv", "a.png", "a.gif", "a.safetensors")}
    shown = howsmooth(
        f"flow particles polytope {QUICK} --lipschitz --growth 2 --residual-layers 8",
        "--json",
        str(files["a.jsonl"]),
        "--csv",
        str(files["a.csv"]),
        "--plot",
        str(files["a.png"]),
        "--animate",
        str(files["a.gif"]),
        "--artefacts",
        str(files["a.safetensors"]),
    )
    assert shown.code == 0, shown.err
    for line in (f"drew {files['a.png']}", f"wrote {files['a.gif']}", f"saved tensors in {files['a.safetensors']}"):
        assert line in shown.err
    records = [json.loads(line) for line in files["a.jsonl"].read_text().splitlines()]
    depths = [r for r in records if r["kind"] == "particles"]
    grown = [r for r in records if r["kind"] == "perturbation growth"]
    assert [r["t"] for r in depths] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0]) and len(grown) == 2
    assert all(r["n"] == 8 and r["status"] == "finished" and r["local"] > 0 for r in depths)
    assert all(at_most(r["lower"], r["value"], r["product"] * 1.001) for r in grown)
    assert "σ₁ of the flow" in shown.out
    assert len(files["a.csv"].read_text().splitlines()) == 1 + len(records) == 8
    assert files["a.png"].read_bytes()[:4] == b"\x89PNG" and files["a.gif"].read_bytes()[:3] == b"GIF"
    with safe_open(files["a.safetensors"], "pt") as kept:
        assert kept.get_tensor("tokens").shape == (5, 8, 2) and kept.metadata()["coordinates"] == "renormalised"


def test_json_is_the_only_output_on_stdout(howsmooth):
    shown = howsmooth(f"flow particles low_rank {QUICK} --json -")
    assert [json.loads(line)["kind"] for line in shown.out.splitlines()] == ["particles"] * 5


def test_own_file_and_options(howsmooth, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('title = "Mine"\n[attention]\nname = "linear"\n[tokens]\ncount = 6\n[flow]\nframes = 4\n')
    shown = howsmooth("flow particles", str(mine))
    assert shown.code == 0 and "Mine" in shown.out
    assert "blew up at depth" in shown.err and "token" in shown.err
    calm = howsmooth(
        "flow particles",
        str(mine),
        "--attention",
        "l2",
        "--sphere",
        "--until",
        "1",
        "--solver",
        "residual",
        "--solver-steps",
        "20",
        "--noise",
        "0.1",
    )
    assert calm.code == 0 and "finished at depth 1" in calm.out and "20 steps of residual" in calm.out


def test_a_failed_expectation_is_reported(howsmooth, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("[tokens]\ncount = 4\n[flow]\nuntil = 0.1\nframes = 3\n[expect]\nclusters = 1\n")
    shown = howsmooth("flow particles", str(mine))
    assert shown.code == 0 and "clusters: expected equal to 1" in shown.err


@pytest.mark.parametrize(
    "line, words",
    [
        ("flow particles polytop", "did you mean 'polytope'"),
        ("flow particles none.toml", "readable TOML"),
        (
            "flow particles --solver euler",
            "expected a solver among rk45, dop853, lsoda, radau, torchdiffeq, residual, rk4, got 'euler'",
        ),
        ("flow particles --solver rk4", "expected a number of steps for the solver rk4, got none; set --solver-steps"),
        ("flow particles --dim 3 hyperplanes --dim 2", "expected V of shape"),
        ("flow particles --particles 0", "--particles"),
        ("flow particles --sphere", "off the sphere"),
        ("flow particles --attention l2", "renormalised"),
        ("flow particles --plot a.xyz", "ending in .png"),
        ("flow particles --animate a.mp4", "ending in .gif for --animate"),
        ("flow particles --artefacts a.pt", ".safetensors"),
        ("flow particles --json x --csv x", "different files"),
    ],
)
def test_bad_input_is_one_line(howsmooth, line, words):
    shown = howsmooth(line)
    assert shown.code == 2 and words in shown.err and len(shown.errors) == 1


@pytest.mark.parametrize(
    "options, words",
    [
        ("--particles 5", "points without another"),
        ("--size 2", "points without another"),
        ("--growth 2 --solver residual --solver-steps 9 --noise 1", "without noise"),
    ],
)
def test_options_without_effect_are_errors(howsmooth, tmp_path, options, words):
    (tmp_path / "mine.toml").write_text("[tokens]\npoints = [[1, 0], [0, 1], [1, 1]]\n")
    shown = howsmooth(f"flow particles {tmp_path / 'mine.toml'} {options}")
    assert shown.code == 2 and words in shown.err


def test_an_interrupted_run_shows_its_records(howsmooth, tmp_path, monkeypatch):
    from howsmooth.dynamics.fixed_steps import FixedStep

    real = FixedStep.__call__

    def late(step, x):
        if step.t > 0.5:
            raise KeyboardInterrupt
        return real(step, x)

    monkeypatch.setattr(FixedStep, "__call__", late)
    shown = howsmooth(
        "flow particles collapse --solver residual --solver-steps 20 --until 1 "
        f"--json {tmp_path / 'x.json'} "
        f"--artefacts {tmp_path / 'x.safetensors'} --growth 2"
    )
    assert shown.code == 130 and "interrupted at depth 0.5" in shown.err
    assert len((tmp_path / "x.json").read_text().splitlines()) > 3 and (tmp_path / "x.safetensors").exists()
