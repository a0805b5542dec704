"""Files that never end, or are larger than the memory, are refused in one line, whatever reads them."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from howsmooth import reading
from howsmooth.cli import main
from howsmooth.errors import InputError
from tests import reasons


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """Links to a device that never ends, with the endings of every kind of file; the limit is lower than usual."""
    if not os.path.exists("/dev/zero"):
        pytest.skip(reasons.device_file("/dev/zero"))
    for ending in ("txt", "toml", "jsonl", "csv"):
        (tmp_path / f"z.{ending}").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reading.read_whole, "__defaults__", (1 << 20,))


@pytest.mark.parametrize(
    "line",
    [
        "measure minilm --text z.txt",
        "measure minilm --text z.csv",
        "study run z.toml",
        "plan z.toml",
        "flow particles z.toml",
        "report z.jsonl -o r.html",
    ],
)
def test_a_file_without_end(endless, capsys, line):
    with pytest.raises(SystemExit) as left:
        main(shlex.split(line))
    errors = [text for text in capsys.readouterr().err.splitlines() if not text.startswith("loading ")]
    assert left.value.code == 2 and len(errors) == 1
    expected = r"expected (at most|lines of at most) [\d,]+ bytes, got (more|a longer one) in z\."
    assert errors[0].count("expected") == 1 and re.search(expected, errors[0])


def test_no_more_is_read_than_is_allowed():
    class Endless:
        given = 0

        def read(self, size):
            self.given += size
            return bytes(size)

    stream = Endless()
    with pytest.raises(InputError, match="at most 100 bytes"):
        reading.read_whole(stream, "it", 100)
    assert stream.given == 101


def test_a_flow_that_is_nested_too_deep(tmp_path, capsys):
    (tmp_path / "f.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(SystemExit) as left:
        main(["flow", "particles", str(tmp_path / "f.toml")])
    assert left.value.code == 2 and "expected valid TOML" in capsys.readouterr().err
