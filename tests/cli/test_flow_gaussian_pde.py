"""`howsmooth flow gaussian` and `howsmooth flow pde`: tables, records, figures, errors."""

from __future__ import annotations

import json

import pytest


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_gaussian_reports_the_time_of_blow_up(howsmooth, tmp_path):
    result = howsmooth(f"flow gaussian --A 1,-2 --covariance 2,1 --until 3 --json {tmp_path / 'g.json'}")
    assert result.code == 0, result.err
    assert "blew up at t = 0.25 along" in result.out and "closed form: blow-up at t = 0.25" in result.out
    assert "stop before it" in result.err
    (record,) = read(tmp_path / "g.json")
    assert record["blow_up"]["time"] == pytest.approx(0.25, rel=1e-4) == pytest.approx(record["closed_form_blow_up"])
    assert record["limiting_rank"]["shape_rank"] == 1 and len(record["times"]) == len(record["covariances"]) >= 101


def test_gaussian_says_early_that_its_steps_will_not_suffice(howsmooth):
    slow = "flow gaussian --A random --V random --dim 4 --seed 3 --until 30 --json -"
    result = howsmooth(f"{slow} --max-solver-steps 1200")
    assert result.code == 0, result.err
    assert "of 30 after 1,000 of at most 1,200 steps: at this pace the steps do not suffice" in result.err
    assert json.loads(result.out)["status"] == "step limit"
    assert "pace" not in howsmooth(f"{slow} --max-solver-steps 900").err


def test_gaussian_with_particles_and_figures(howsmooth, tmp_path):
    plot, film = tmp_path / "g.png", tmp_path / "g.gif"
    result = howsmooth(
        f"flow gaussian collapse --until 1 --particles 40 --frames 11 --json - --plot {plot} --animate {film}"
    )
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert record["particles"]["n"] == 40 and len(record["particles"]["coupled"]) == 11
    assert plot.read_bytes()[:4] == b"\x89PNG" and film.read_bytes()[:3] == b"GIF"


def test_own_file(howsmooth, tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[attention]\nname = "l2"\nA = [[1.0, 0.0], [0.5, 1.0]]\nV = -1.0\n[tokens]\ndim = 2\n[flow]\nuntil = 0.5\n',
        encoding="utf-8",
    )
    result = howsmooth(f"flow gaussian {tmp_path / 'mine.toml'} --json -")
    record = json.loads(result.out)
    # exact: as given on the command line
    assert record["attention"] == "l2" and record["until"] == 0.5 and record["A"] == [[1.0, 0.0], [0.5, 1.0]]
    assert howsmooth(f"flow pde {tmp_path / 'mine.toml'} --attention sigmoid --cells 16 --json -").code == 0


def test_two_numbers_of_particles_have_a_rate_without_an_error(howsmooth, tmp_path):
    result = howsmooth(
        "flow pde --V -identity --until 0.2 --cells 32 --particles 8,32 --repeats 1 "
        f"--plot {tmp_path / 'p.png'} --plot-rate {tmp_path / 'r.png'}"
    )
    assert result.code == 0 and "n^(" in result.out and "nan" not in result.out
    assert (tmp_path / "p.png").read_bytes() != (tmp_path / "r.png").read_bytes()


@pytest.mark.parametrize("more", ["", "--slices 3", "--dim 2 --cells 24"])
def test_pde_with_particles(howsmooth, tmp_path, more):
    lines = tmp_path / "p.json"
    counts = "30,90" if "dim" not in more else "10,20"
    result = howsmooth(
        f"flow pde --V -identity --until 0.5 --cells 60 {more} --particles {counts} --repeats 2 "
        f"--frames 4 --json {lines} --plot {tmp_path / 'p.png'} --plot-rate {tmp_path / 'r.png'}"
    )
    assert result.code == 0, result.err
    flow, *runs, rate = read(lines)
    assert flow["mass_error"] < 1e-13 and len(runs) == 4 and rate["distance"] == ("d₂" if "slices" in more else "W₂")
    assert rate["distance"] in result.out and "mass lost" in result.out
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("p.png", "r.png"))


@pytest.mark.parametrize("d", [1, 2])
def test_pde_animation(howsmooth, tmp_path, d):
    film = tmp_path / "p.gif"
    result = howsmooth(f"flow pde --dim {d} --V -identity --until 0.2 --cells 24 --frames 2 --animate {film}")
    assert result.code == 0 and film.read_bytes()[:3] == b"GIF"


def test_pde_that_leaves_its_grid_shows_the_part_before(howsmooth, tmp_path):
    result = howsmooth(f"flow pde --until 9 --extent 5 --cells 60 --json {tmp_path / 'p.json'}")
    assert result.code == 2 and "left the grid" in result.out
    assert "take a wider grid" in result.err and "at t = " in result.err
    (record,) = read(tmp_path / "p.json")
    assert record["status"] == "left the grid" and record["times"][-1] < 9


@pytest.mark.parametrize(
    "line, message",
    [
        ("gaussian --A 1,2,3", "shape (2, 2)"),
        ("gaussian --A one", "a diagonal such as 1,-2"),
        ("gaussian --A rotation --dim 3", "even dimension"),
        ("gaussian --covariance 1,-1", "negative eigenvalues"),
        ("gaussian --covariance '1,2;0,1'", "symmetric"),
        ("gaussian --mean 1", "a --mean of 2 numbers"),
        ("gaussian --mean x", "comma-separated numbers"),
        ("gaussian --attention sigmoid", "sigmoid"),
        ("gaussian sphere", "off the sphere"),
        ("gaussian nowhere.toml", "readable TOML"),
        ("pde --plot p.png --plot-rate p.png --particles 5,10", "different files"),
        ("gaussian --plot p.txt", ".png"),
        ("gaussian --animate p.txt", ".gif"),
        ("pde --dim 3", "expected a whole number from 1 to 2"),
        ("pde --extent 1", "wider grid"),
        ("pde --plot-rate r.png", "--particles with two"),
        ("pde --slices 2 --start gaussian", "--start bumps"),
        ("pde --slices 2 --particles 5,10 --V -1 --until 0.1", "multiples of the 2 slices"),
        ("pde --order 3", "order"),
    ],
)
def test_bad_input_is_one_line(howsmooth, line, message):
    result = howsmooth(f"flow {line}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1
