"""The gallery shows each picture with the command that draws it."""

from __future__ import annotations

import shlex

import pytest

from tests import reasons
from tests.docs.comparison import ROOT, script

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)

GALLERY = script("gallery.py")


def test_the_page_is_that_of_the_script():
    assert (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8") == GALLERY.page(), "python docs/gallery.py --page"


def test_every_picture_is_there_and_no_other():
    assert {path.name for path in GALLERY.PICTURES.iterdir()} == {picture.name for picture in GALLERY.GALLERY}
    assert sum(path.stat().st_size for path in GALLERY.PICTURES.iterdir()) < 4 * 2**20


@pytest.mark.parametrize("picture", GALLERY.GALLERY, ids=lambda picture: picture.name)
def test_the_command_ends_with_the_file_of_the_picture(picture):
    *_, option, file = shlex.split(picture.line)
    assert option in ("--plot", "--animate") and file == picture.name
    assert (ROOT / "docs" / picture.page).is_file()


@pytest.mark.parametrize("command", ["measure", "bound", "meanfield", "flow"])
def test_every_group_that_draws_is_there(command):
    assert any(picture.line.split()[0] == command for picture in GALLERY.GALLERY)


def test_a_command_draws_its_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(GALLERY, "PICTURES", tmp_path)
    GALLERY.draw(next(picture for picture in GALLERY.GALLERY if picture.name == "gaussian.png"))
    assert (tmp_path / "gaussian.png").read_bytes().startswith(b"\x89PNG")
