"""The one-way street: a room imports only from rooms before it, outside packages only where they belong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "howsmooth"

# From left to right; rooms in one group do not see each other. `errors` and `texts` are open to all.
STREET = (
    ("kernels", "spectral"),
    ("attention",),
    ("transport",),
    ("bounds", "lipschitz", "dynamics", "models"),
    ("attack",),
    ("studies",),
    ("report",),
    ("cli",),
)
OPEN = {"errors", "texts"}
ONLY_IN = {
    "transformers": "models",
    "tokenizers": "models",
    "triton": "kernels",
    "matplotlib": "report",
    "click": "cli",
    "pydantic": "studies",
    "ray": "studies",
    "sqlite3": "studies",
    "pyarrow": "studies",
    "ot": "transport",
    "torchdiffeq": "dynamics",
    "gradio": "report",
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
        if top in ONLY_IN and room != ONLY_IN[top]:
            wrong.append(f"{module} imports {top}, which belongs to {ONLY_IN[top]} alone")
        other = rest.partition(".")[0]
        if top != "howsmooth" or other not in PLACE or room in OPEN or other == room:
            continue
        if PLACE[other] >= PLACE[room]:
            wrong.append(f"{module} imports {other}, which is not before {room} in the street")
    return wrong


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if len(parts) > 1 and parts[0] not in OPEN:
            found.append((".".join(["howsmooth", *parts]), path))
    return found


def test_every_room_has_its_place():
    rooms = {name.split(".")[1] for name, _ in modules()}
    assert {"spectral", "attention", "lipschitz", "models", "studies", "report", "cli"} <= rooms
    assert rooms <= set(PLACE), rooms - set(PLACE)


@pytest.mark.parametrize("name, path", modules(), ids=[name for name, _ in modules()])
def test_street(name, path):
    assert violations(path.read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize(
    "source, module",
    [
        ("from howsmooth.attention import attend", "howsmooth.spectral.power"),
        ("import howsmooth.models", "howsmooth.lipschitz.local"),
        ("def f():\n    from ..cli import main", "howsmooth.report.table"),
        ("import transformers.models", "howsmooth.lipschitz.local"),
        ("if x:\n    import triton.language as tl", "howsmooth.attention.op"),
        ("from howsmooth import studies", "howsmooth.models.load"),
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
        ("import transformers", "howsmooth.models.load"),
    ],
)
def test_the_check_lets_good_imports_pass(source, module):
    assert violations(source, module) == []
