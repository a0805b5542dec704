"""Measures from files, and invalid files."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from howsmooth import InputError
from howsmooth.transport import TimedMeasure, TokenMeasure, read_measure

POINTS, WEIGHTS, TIMES = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.25, 0.75]), np.array([0.0, 1.0])


def test_one_measure_in_three_formats(tmp_path):
    np.savez(tmp_path / "a.npz", points=POINTS, weights=WEIGHTS, times=TIMES)
    save_file(
        {
            "points": torch.from_numpy(POINTS),
            "log_weights": torch.from_numpy(WEIGHTS).log(),
            "times": torch.from_numpy(TIMES),
        },
        tmp_path / "a.safetensors",
    )
    (tmp_path / "a.csv").write_text("x, time, weight, y\n1,0,1,2\n3,1,3,4\n")
    for name in ("a.npz", "a.safetensors", "a.csv"):
        found = read_measure(tmp_path / name, normalise=name.endswith("csv"))
        assert isinstance(found, TimedMeasure)
        assert (found.points.numpy() == POINTS).all() and (found.times.numpy() == TIMES).all()
        assert found.weights.tolist() == pytest.approx(WEIGHTS)


def test_points_without_weights(tmp_path):
    np.savez(tmp_path / "a.npz", points=POINTS)
    found = read_measure(tmp_path / "a.npz")
    assert type(found) is TokenMeasure and found.equal


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "1,2", "in a file .npz"),
        ("a.csv", "x,y\n1,two\n", "readable measure"),
        ("a.csv", "x,y\n1\n", "readable"),
        ("a.csv", "", "at least one atom"),
        ("a.npz", "no zip", "readable measure"),
        ("a.safetensors", "none", "readable"),
        ("a.csv", "x,weight\n1,-2\n", r"a.csv: expected finite positive weights"),
        ("a.csv", "0.5,1\n1,2\n", "names of the columns"),
        ("a.csv", "x,Weights\n1,1\n", "write it as weight"),
        ("a.csv", "x,times\n1,1\n", "column 'time'"),
        ("a.csv", "x,weight,weight\n1,1,1\n", "weight more than once"),
        ("a.csv", "x,weight\n1,2\n", "normalise=True"),
        ("missing.csv", None, "that exists"),
    ],
)
def test_invalid_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_measure(tmp_path / name)


def test_unknown_fields_are_rejected(tmp_path):
    np.savez(tmp_path / "a.npz", points=POINTS, wieghts=WEIGHTS)
    with pytest.raises(InputError, match="got points, wieghts"):
        read_measure(tmp_path / "a.npz")
