"""The one-way street: a room imports only from rooms before it, outside packages only where they belong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "howsmooth"

# From left to right; rooms in one group do not see each other. `errors`, `fits`, `records` and `texts` are open to all.
STREET = (
    ("kernels", "spectral"),
    ("attention",),
    ("transport",),
    ("bounds", "lipschitz", "dynamics", "models"),
    ("attack",),
    ("studies",),
    ("report",),
    ("explorer",),
    ("cli",),
)
OPEN = {"errors", "fits", "records", "texts"}
ONLY_IN: dict[str, tuple[str, ...]] = {
    "transformers": ("models",),
    "tokenizers": ("models",),
    "triton": ("kernels",),
    "matplotlib": ("report",),
    "click": ("cli",),
    "pydantic": ("dynamics", "records", "studies"),
    "ray": ("studies",),
    "sqlite3": ("studies",),
    "pyarrow": ("studies",),
    "ot": ("transport",),
    "torchdiffeq": ("dynamics",),
    "gradio": ("explorer",),
    "jinja2": ("report",),
}
PLACE = {room: place for place, group in enumerate(STREET) for room in group}


def imported(source: str, module: str) -> set[str]:
    """Full names of all that a module imports, wherever in the file; relative imports are made absolute."""
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
    """What this module imports and should not. `module` is its dotted name, howsmooth.room.file."""
    room = module.split(".")[1]
    wrong = []
    for name in sorted(imported(source, module)):
        top, _, rest = name.partition(".")
        if top == "experiments":
            wrong.append(f"{module} imports experiments, which are not part of the package")
        if top in ONLY_IN and room not in ONLY_IN[top]:
            wrong.append(f"{module} imports {top}, which belongs to {' and '.join(ONLY_IN[top])} alone")
        other = rest.partition(".")[0]
        if top != "howsmooth" or other not in PLACE or other == room:
            continue
        if room in OPEN or PLACE[other] >= PLACE[room]:
            wrong.append(f"{module} imports {other}, which is not before {room} in the street")
    return wrong


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if len(parts) > 1:
            found.append((".".join(["howsmooth", *parts]), path))
    return found


def test_every_room_has_its_place():
    rooms = {name.split(".")[1] for name, _ in modules()}
    assert {"spectral", "attention", "lipschitz", "models", "studies", "report", "cli"} <= rooms
    assert rooms <= set(PLACE) | OPEN, rooms - set(PLACE) - OPEN


@pytest.mark.parametrize("name, path", modules(), ids=[name for name, _ in modules()])
def test_layers(name, path):
    assert violations(path.read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize(
    "source, module",
    [
        ("from howsmooth.attention import attend", "howsmooth.spectral.power"),
        ("import howsmooth.models", "howsmooth.lipschitz.local"),
        ("def f():\n    from ..cli import main", "howsmooth.report.table"),
        ("import transformers.models", "howsmooth.lipschitz.local"),
        ("from pydantic import BaseModel", "howsmooth.attack.starts"),
        ("if x:\n    import triton.language as tl", "howsmooth.attention.op"),
        ("from howsmooth import studies", "howsmooth.models.loading"),
        ("from experiments.records import Records", "howsmooth.cli.measure"),
    ],
)
def test_the_check_can_fail(source, module):
    assert violations(source, module)


@pytest.mark.parametrize(
    "source, module",
    [
        ("from howsmooth.spectral import singular_values", "howsmooth.lipschitz.local"),
        ("from howsmooth.errors import InputError", "howsmooth.spectral.power"),
        ("from .operator import LinearOperator", "howsmooth.spectral.power"),
        ("import transformers", "howsmooth.models.loading"),
        ("from pydantic import BaseModel", "howsmooth.dynamics.example"),
    ],
)
def test_the_check_lets_good_imports_pass(source, module):
    assert violations(source, module) == []


def private_names(source: str) -> list[str]:
    """What a script takes from elsewhere although its name begins with an underscore: imports and attributes."""
    found = [
        name
        for name in imported(source, "experiments.script")
        if any(part.startswith("_") and part not in ("__future__", "__main__") for part in name.split("."))
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(ast.unparse(node))
    return sorted(found)


SCRIPTS = sorted((ROOT / "experiments").rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(path.relative_to(ROOT)) for path in SCRIPTS])
def test_experiments_use_public_names(path):
    assert private_names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from howsmooth.models.model import _apart",
        "import howsmooth._hidden",
        "def f():\n    from howsmooth._hidden import name",
        "tokenizer = model._need_tokenizer()",
    ],
)
def test_the_check_of_experiments_can_fail(source):
    assert private_names(source)


def test_a_script_may_have_private_names_of_its_own():
    assert private_names("from __future__ import annotations\nclass A:\n    def f(self):\n        self._x = _g()") == []
