"""The layering of packages: a package imports only from earlier layers, and third-party packages only where allowed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "howsmooth"

# From the first layer to the last; packages of one layer do not import each other.
LAYERS = (
    ("kernels", "spectral"),
    ("attention",),
    ("transport",),
    ("bounds", "lipschitz", "dynamics", "models"),
    ("attack",),
    ("questions",),
    ("studies",),
    ("training",),
    ("report",),
    ("explorer",),
    ("cli",),
)
# Every package may import these; they import only each other.
OPEN = {
    "choices",
    "display",
    "errors",
    "extras",
    "fits",
    "lazy",
    "norms",
    "quantised",
    "reading",
    "records",
    "texts",
    "threads",
}
ENTRY_POINTS = {"__init__", "__main__", "measurements"}  # may import everything
ONLY_IN: dict[str, tuple[str, ...]] = {
    "transformers": ("models", "training"),
    "lightning": ("training",),
    "tokenizers": ("models",),
    "triton": ("kernels",),
    "matplotlib": ("report",),
    "click": ("cli",),
    "pydantic": ("dynamics", "questions", "records", "studies"),
    "ray": ("studies",),
    "sqlite3": ("studies",),
    "pyarrow": ("studies",),
    "ot": ("transport",),
    "torchdiffeq": ("dynamics",),
    "gradio": ("explorer",),
    "jinja2": ("report",),
}
LAYER_OF = {package: number for number, group in enumerate(LAYERS) for package in group}


def imported(source: str, module: str) -> set[str]:
    """Return the full names of everything that a module imports, anywhere in the file, relative imports included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def violations(source: str, module: str) -> list[str]:
    """Return the imports of a module that break the layering. `module` is its dotted name, howsmooth.package.file."""
    package = module.split(".")[1]
    wrong = []
    for name in sorted(imported(source, module)):
        top, _, rest = name.partition(".")
        if top == "experiments":
            wrong.append(f"{module} imports experiments, which are not part of the package")
        if top in ONLY_IN and package not in ONLY_IN[top]:
            wrong.append(f"{module} imports {top}, which only {' and '.join(ONLY_IN[top])} may import")
        other = rest.partition(".")[0]
        if top != "howsmooth" or other not in LAYER_OF or other == package:
            continue
        if package in OPEN or LAYER_OF[other] >= LAYER_OF[package]:
            wrong.append(f"{module} imports {other}, which is not in an earlier layer than {package}")
    return wrong


def modules() -> list[tuple[str, Path]]:
    """Return the dotted name and the path of every module except the entry points."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] not in ENTRY_POINTS:
            found.append((".".join(["howsmooth", *parts]), path))
    return found


def test_every_package_has_a_layer():
    packages = {name.split(".")[1] for name, _ in modules()}
    assert packages == set(LAYER_OF) | OPEN


def test_layers():
    found = {name: violations(path.read_text(encoding="utf-8"), name) for name, path in modules()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert len(found) > 100


@pytest.mark.parametrize(
    "source, module",
    [
        ("from howsmooth.attention import attend", "howsmooth.spectral.power"),
        ("import howsmooth.models", "howsmooth.lipschitz.local"),
        ("def f():\n    from ..cli import main", "howsmooth.report.table"),
        ("import transformers.models", "howsmooth.lipschitz.local"),
        ("from pydantic import BaseModel", "howsmooth.attack.search"),
        ("if x:\n    import triton.language as tl", "howsmooth.attention.op"),
        ("from howsmooth import studies", "howsmooth.models.loading"),
        ("from howsmooth.models import Model", "howsmooth.lazy"),
        ("from howsmooth.models import Model", "howsmooth.texts.corpora"),
        ("from experiments.records import Records", "howsmooth.cli.measure"),
    ],
)
def test_a_wrong_import_is_found(source, module):
    assert violations(source, module)


@pytest.mark.parametrize(
    "source, module",
    [
        ("from howsmooth.spectral import singular_values", "howsmooth.lipschitz.local"),
        ("from howsmooth.errors import InputError", "howsmooth.spectral.power"),
        ("from howsmooth.lazy import attach", "howsmooth.spectral"),
        ("from howsmooth.lazy import attach", "howsmooth.texts"),
        ("from .operator import LinearOperator", "howsmooth.spectral.power"),
        ("import transformers", "howsmooth.models.loading"),
        ("from pydantic import BaseModel", "howsmooth.dynamics.declaration"),
    ],
)
def test_a_correct_import_is_accepted(source, module):
    assert violations(source, module) == []


def private_names(source: str) -> list[str]:
    """Return the private names that a script uses from other modules: imports and attributes."""
    found = [
        name
        for name in imported(source, "experiments.script")
        if any(part.startswith("_") and part not in ("__future__", "__main__") for part in name.split("."))
    ]
    found += [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    return sorted(found)


SCRIPTS = sorted((ROOT / "experiments").rglob("*.py"))


def test_experiments_use_public_names():
    found = {str(path.relative_to(ROOT)): private_names(path.read_text(encoding="utf-8")) for path in SCRIPTS}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from howsmooth.models.model import _is_modified",
        "import howsmooth._hidden",
        "def f():\n    from howsmooth._hidden import name",
        "sites = model._sites(inputs, [0])",
    ],
)
def test_a_private_name_in_an_experiment_is_found(source):
    assert private_names(source)


def test_a_script_may_have_private_names_of_its_own():
    assert private_names("from __future__ import annotations\nclass A:\n    def f(self):\n        self._x = _g()") == []
