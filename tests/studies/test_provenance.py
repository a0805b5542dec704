"""The commit in records is read without git's lock."""

from __future__ import annotations

import os
import subprocess
import time

from howsmooth.records import provenance


def test_the_commit_is_read_without_writing_the_index(tmp_path, monkeypatch):
    def git(*line: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *line]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file, index = tmp_path / "src" / "howsmooth" / "__init__.py", tmp_path / ".git" / "index"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(provenance.howsmooth, "__file__", str(file))
    os.utime(file, (time.time() - 1000, time.time() - 1000))  # the index is stale: git would like to refresh it
    before = index.stat()
    assert provenance.commit() == git("rev-parse", "HEAD")
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    file.write_text("a = 2\n")
    assert provenance.commit() == git("rev-parse", "HEAD") + "+"
