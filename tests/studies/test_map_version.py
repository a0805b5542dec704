"""Ask for `MAP_VERSION` to be raised when code changes that computes the numbers of records.

`map_version.json` has a hash of each source file, without comments, docstrings, annotations and error messages, and
the version that they belong to. After a change run `python -m tests.studies.test_map_version`.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import howsmooth
from howsmooth.models.map_types import MAP_VERSION
from howsmooth.questions import QUESTIONS

SOURCE = Path(howsmooth.__file__).parent
STORED = Path(__file__).with_name("map_version.json")
PARTS = (
    *("attack", "attention", "bounds", "dynamics", "kernels", "lipschitz", "models", "questions", "spectral"),
    *("studies/worker.py", "texts", "transport"),
)
# They decide what is asked, where a model comes from and what is said about it, not what is computed.
WITHOUT = {
    *(f"models/{name}.py" for name in ("cache", "compatibility", "files", "identity", "locations")),
    *(f"questions/{name}.py" for name in ("__init__", "artefacts", "command_line", "fields", "question", "spec")),
}
_ANNOTATIONS = {"annotation", "returns", "type_comment", "type_params"}


def structure(node: object) -> Iterator[str]:
    """Yield the parts of a syntax tree that can change what code computes, the same in every version of Python."""
    if isinstance(node, ast.Raise):
        yield "raise"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name in _ANNOTATIONS or name == "ctx" or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = [item for item in value if not _is_string(item)]
            yield name
            yield from structure(value)
    elif isinstance(node, list):
        for item in node:
            yield from structure(item)
    else:
        yield repr(node)


def _is_string(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def source_hash(source: str) -> str:
    return hashlib.sha256("\n".join(structure(ast.parse(source))).encode()).hexdigest()[:16]


def found() -> dict[str, object]:
    files = [
        file for part in PARTS for file in ([SOURCE / part] if part.endswith(".py") else (SOURCE / part).rglob("*.py"))
    ]
    hashes = {file.relative_to(SOURCE).as_posix(): source_hash(file.read_text(encoding="utf-8")) for file in files}
    return {"version": MAP_VERSION, "files": {name: hashes[name] for name in sorted(hashes.keys() - WITHOUT)}}


def test_code_that_computes_numbers_has_the_version_it_was_stored_with():
    stored, now = json.loads(STORED.read_text()), found()
    names = stored["files"].keys() | now["files"].keys()
    changed = sorted(name for name in names if stored["files"].get(name) != now["files"].get(name))
    assert stored == now, (
        f"the code that computes numbers has changed since version {stored['version']}: {', '.join(changed)}. "
        "Does any configuration now give another number? If so, raise MAP_VERSION, or the version of the map, in "
        "src/howsmooth/models/map_types.py, so that old records are not used again. In both cases run: "
        "python -m tests.studies.test_map_version"
    )


def test_each_question_is_among_that_code():
    """The keys of its records have the version."""
    stored = json.loads(STORED.read_text())["files"]
    assert {f"questions/{entry.module}.py" for entry in QUESTIONS.values()} <= stored.keys()


def test_the_hash_of_source_ignores_what_computes_nothing():
    code = 'def f(x):\n    if x < 0:\n        raise ValueError("negative")\n    return 2 * x\n'
    same = (
        'def f(x: int) -> int:\n    """Double a number."""\n    # why\n    if x < 0:\n'
        '        raise ValueError("expected more")\n    return (2 * x)\n'
    )
    assert source_hash(code) == source_hash(same)
    assert source_hash(code) != source_hash(code.replace("2 * x", "3 * x"))
    assert source_hash(code) != source_hash(code.replace("x < 0", "x <= 0"))


if __name__ == "__main__":
    STORED.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
