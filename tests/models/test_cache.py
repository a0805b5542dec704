"""Temporary folders of the cache: those of dead processes are removed, those of running ones are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from howsmooth.models.cache import building_folder, remove_abandoned

KILLED = """
import sys
from pathlib import Path
from howsmooth.models.cache import building_folder
with building_folder(Path(sys.argv[1]), "abc.") as folder:
    (folder / "weights").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_removed_unless_it_was_renamed(tmp_path):
    with building_folder(tmp_path / "cache", "abc.") as folder:
        assert folder.is_dir() and folder.name.startswith("abc.building-")
    assert list((tmp_path / "cache").iterdir()) == []
    with building_folder(tmp_path / "cache") as folder:
        folder.rename(tmp_path / "cache" / "final")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["final"]
    with pytest.raises(RuntimeError), building_folder(tmp_path / "cache"):
        raise RuntimeError
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["final"]


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        left = process.stdout.readline().strip()
        with building_folder(tmp_path):
            assert os.path.isfile(os.path.join(left, "weights")), "its process is running"
        process.send_signal(signal.SIGKILL)
    assert os.path.isdir(left)
    with building_folder(tmp_path) as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, folder.name + ".lock"]


def test_folders_without_a_lock_are_removed_by_age(tmp_path):
    old, new = tmp_path / "a.building-old", tmp_path / "a.building-new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (0, 0))
    remove_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [new.name]
