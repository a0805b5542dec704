"""What is published: the contents of the wheel and its metadata, the lock file and the citation."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import howsmooth
from tests import reasons
from tests.install import CHECKS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:  # its build environment cannot be made
        pytest.skip(reasons.HATCHLING)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("howsmooth-*.whl")))


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel):
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    package = ROOT / "src" / "howsmooth"
    files = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "conftest.py"
    }
    assert set(names) == files
    assert not [name for name in names if re.search(r"(^|/)(tests?|experiments|benchmarks|conftest)(/|\.py|$)", name)]
    assert {"howsmooth/py.typed", "howsmooth/__init__.pyi", "howsmooth/texts/default.txt"} <= set(names)


@pytest.mark.slow
def test_the_metadata_of_the_wheel(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    found = email.message_from_bytes(wheel.read(name))
    assert found["Version"] == howsmooth.__version__ and found["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert set(found.get_all("Provides-Extra", [])) == {*PROJECT["optional-dependencies"]}
    assert found["License-Expression"] == "MIT" and name.replace("METADATA", "licenses/LICENSE") in wheel.namelist()


def versions(path: Path) -> dict[str, str]:
    """Return the pinned version of each package of a file of requirements, by its normalised name."""
    found = re.findall(r"^([\w.-]+)==([\w.+]+)", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_lock_has_hashes_of_everything_that_is_pinned_but_torch():
    lock, pinned = versions(ROOT / "requirements" / "lock.txt"), versions(ROOT / "constraints.txt")
    for name in ("torch", "colorama"):  # torch's build is the user's choice; the other is for Windows
        assert name not in lock and pinned.pop(name)
    assert lock.pop("pip") and lock == pinned
    blocks = re.split(r"\n(?=[\w.-]+==)", (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"))[1:]
    assert len(blocks) == len(lock) + 1 and all("--hash=sha256:" in block for block in blocks)


def test_every_extra_of_users_is_installed_alone():
    assert {*CHECKS} - {"core"} == {*PROJECT["optional-dependencies"]} - {
        *("all", "test", "docs", "notebook", "datasets")  # datasets are read from the network
    }


def test_no_address_of_the_project_is_stated_before_it_exists():
    """The URLs are those of the paper; the README installs from a copy, and clones nothing."""
    assert {*PROJECT["urls"]} == {"Paper"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "git clone" not in readme and not re.search(r"^pip install '?howsmooth", readme, re.M)
