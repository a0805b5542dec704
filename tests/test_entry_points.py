"""The public names of the lazy packages, and the files that the README shows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import howsmooth
from howsmooth.lazy import read_stub

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


@pytest.mark.parametrize("name", howsmooth.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(howsmooth, name) is not None
    assert name in dir(howsmooth)


def test_an_unknown_name_raises_an_error_that_lists_the_names():
    with pytest.raises(AttributeError, match="local_lipschitz"):
        howsmooth.smoothness  # noqa: B018


def lazy_packages() -> list[str]:
    """Return the packages whose names are in a stub."""
    root = ROOT / "src"
    return [".".join(path.parent.relative_to(root).parts) for path in sorted(root.rglob("__init__.pyi"))]


def test_every_package_that_attaches_names_has_a_stub():
    attaching = [path for path in (ROOT / "src").rglob("__init__.py") if "attach(" in path.read_text(encoding="utf-8")]
    assert len(attaching) == len(lazy_packages()) > 0


@pytest.mark.parametrize("package", lazy_packages())
def test_every_name_of_a_stub_is_that_of_its_module(package):
    """The names exist where the stub says; type checkers see only those that are imported as themselves."""
    module = importlib.import_module(package)
    source = Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    names = read_stub(source)
    assert [name for name in module.__all__ if name != "__version__"] == list(names)
    assert sorted(module.__all__) == dir(module)
    for name, (origin, original) in names.items():
        assert name == original and getattr(module, name) is getattr(importlib.import_module(origin), original)
    assert len(re.findall(r"\b(\w+) as \1\b", source)) == len(names)


def test_files_that_the_readme_shows_exist():
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text()):
        assert (README.parent / path).exists(), path
