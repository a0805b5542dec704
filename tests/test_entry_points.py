"""The public names of the lazy packages, and the files that the README shows."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import howsmooth

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
LAZY = (
    "howsmooth",
    "howsmooth.attack",
    "howsmooth.dynamics",
    "howsmooth.models",
    "howsmooth.report",
    "howsmooth.studies",
    "howsmooth.studies.figures",
    "howsmooth.texts",
)


@pytest.mark.parametrize("name", howsmooth.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(howsmooth, name) is not None
    assert name in dir(howsmooth)


def test_an_unknown_name_raises_an_error_that_lists_the_names():
    with pytest.raises(AttributeError, match="local_lipschitz"):
        howsmooth.smoothness  # noqa: B018


def lazy_names(source: str) -> dict[str, str]:
    """Return the dictionary that a package passes to `attach`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attach":
            return ast.literal_eval(node.args[1])
    raise AssertionError("no call of attach")


def imports_for_type_checkers(source: str) -> dict[str, str]:
    """Return the names imported under `if TYPE_CHECKING:`, each with the module that defines it."""
    found = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom) and node.module is not None, ast.unparse(node)
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    is_module = (ROOT / "src" / submodule.replace(".", "/")).is_dir() or (
                        ROOT / "src" / (submodule.replace(".", "/") + ".py")
                    ).is_file()
                    found[alias.asname or alias.name] = submodule if is_module else node.module
    return found


def all_lazy_packages() -> list[str]:
    """Return the packages whose `__init__` calls `attach`."""
    root = ROOT / "src"
    return [
        ".".join(path.parent.relative_to(root).parts)
        for path in sorted((root / "howsmooth").rglob("__init__.py"))
        if "attach(" in path.read_text(encoding="utf-8")
    ]


def test_all_lazy_packages_are_compared():
    assert sorted(LAZY) == sorted(all_lazy_packages())


@pytest.mark.parametrize("package", LAZY)
def test_the_lists_of_names_of_a_lazy_package_agree(package):
    """The dictionary for `attach`, `__all__`, `dir()` and the imports for type checkers."""
    source = (ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    names, module = lazy_names(source), importlib.import_module(package)
    assert [name for name in module.__all__ if name in names] == list(names), "the same names in the same order"
    assert sorted(module.__all__) == dir(module)
    assert {name for name in module.__all__ if name not in names} <= set(vars(module)), "the others are imported"
    assert imports_for_type_checkers(source) == names, "the same modules"
    for name in names:
        assert getattr(module, name) is not None


def test_differences_between_lists_of_names_are_found():
    source = (
        "if TYPE_CHECKING:\n    from howsmooth.fits import Law\n__getattr__, __dir__ = attach(__name__, {'Law': 'a'})"
    )
    assert lazy_names(source) == {"Law": "a"} and imports_for_type_checkers(source) == {"Law": "howsmooth.fits"}
    assert imports_for_type_checkers("if TYPE_CHECKING:\n    from howsmooth import fits, models") == {
        "fits": "howsmooth.fits",
        "models": "howsmooth.models",
    }


def test_files_that_the_readme_shows_exist():
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text()):
        assert (README.parent / path).exists(), path
