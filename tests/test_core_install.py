"""What works with torch, numpy and scipy alone, and what the others say is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import howsmooth
from howsmooth.errors import InputError
from howsmooth.extras import EXTRAS, MissingPackage, require
from tests.tolerances import assert_close, at_most

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {"numpy", "scipy", "torch"}
MAIN = "from howsmooth.__main__ import main; main()"

# Hides every installed package that the core does not need, as in an environment where it is not installed.
HIDE = """
import importlib.metadata as metadata, re, sys

def name(requirement):
    return re.match(r"[\\w.-]+", requirement)[0].lower().replace("_", "-")

allowed, todo = set(), [{core}]
while todo:
    package = todo.pop()
    if package in allowed:
        continue
    allowed.add(package)
    try:
        todo += [name(one) for one in metadata.requires(package) or () if "extra ==" not in one]
    except metadata.PackageNotFoundError:
        pass  # a dependency on another platform
hidden = {{
    module
    for module, packages in metadata.packages_distributions().items()
    if not allowed & {{package.lower().replace("_", "-") for package in packages}} and module != "howsmooth"
}}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, module, path=None, target=None):
        return None if module.partition(".")[0] in hidden else self.finder.find_spec(module, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
""".format(core=", ".join(map(repr, sorted(CORE))))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in its own process."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)


def run_in_core(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where only the dependencies of the core can be imported."""
    return run_python(HIDE + code, *arguments)


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", one)[0] for one in requirements} - {"howsmooth"}


def test_the_core_depends_on_three_packages():
    assert requirement_names(PYPROJECT["dependencies"]) == CORE


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extras_are_those_of_the_package(extra):
    declared = requirement_names(PYPROJECT["optional-dependencies"][extra])
    assert set(EXTRAS[extra]) <= declared if extra == "test" else set(EXTRAS[extra]) == declared


def test_attention_and_its_constants_work_in_the_core():
    done = run_in_core(
        """
import json, torch, howsmooth

generator = torch.Generator().manual_seed(0)
q, k, v, t = (torch.randn(1, 2, 6, 4, generator=generator, dtype=torch.float64) for _ in range(4))

def derivatives(f):
    at = q.clone().requires_grad_()
    o, do = torch.func.jvp(f, (at,), (t,))
    (gradient,) = torch.autograd.grad((do * t).sum(), at)
    return [part.tolist() for part in (o, do, gradient)]

layer = howsmooth.SelfAttention(*(torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(3)))
x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
estimate = howsmooth.local_lipschitz(layer, x)
found = {
    "fused": derivatives(lambda q: howsmooth.attend(q, k, v)),
    "dense": derivatives(lambda q: torch.softmax(q @ k.mT / 2, -1) @ v),
    "interval": [estimate.lower, estimate.upper],
    "norm": float(torch.linalg.matrix_norm(torch.func.jacrev(layer)(x).reshape(40, 40), 2)),
    "modules": sorted((hidden - {"coverage"}) & set(sys.modules)),  # coverage measures this process, too
}
print(json.dumps(found))
"""
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert_close(found["fused"], found["dense"])
    assert at_most(found["interval"][0], found["norm"], found["interval"][1])
    assert found["modules"] == []


def test_what_needs_more_says_what_to_install():
    """Every public name, and calls of those that import what they need when they are called."""
    calls = {
        "howsmooth.measure('minilm')": "transformers",
        "howsmooth.ask('regimes')": "transformers",
        "howsmooth.models.AttentionFile": "safetensors",
        "howsmooth.dynamics.read_example": "pydantic",
        "howsmooth.studies.read_study": "pydantic",
        "howsmooth.report.report_page": "rich",
    }
    done = run_in_core(
        f"""
import howsmooth
for call in [*("howsmooth." + name for name in howsmooth.__all__), *{list(calls)}]:
    try:
        eval(call)
    except ImportError as error:
        assert isinstance(error, howsmooth.InputError)
        print(f"{{call}}: {{error}}")
"""
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    expected = dict.fromkeys(("howsmooth.load", "howsmooth.Monitor", "howsmooth.register"), "transformers") | calls
    assert list(found) == list(expected)
    for call, package in expected.items():
        pattern = rf"expected {package} for [\w.]+, got none installed; pip install 'howsmooth\[models\]'"
        assert re.fullmatch(pattern, found[call]), found[call]


def test_the_command_says_what_to_install():
    done = run_in_core(MAIN, "measure", "minilm")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "howsmooth: expected click and rich for the command line, got none installed; pip install 'howsmooth[models]'\n"
    )


def test_a_command_without_transformers_says_what_to_install():
    """The command line is there, but models cannot be loaded."""
    done = run_python("import sys; sys.modules['transformers'] = None\n" + MAIN, "measure", "minilm")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"howsmooth: expected transformers .*; pip install 'howsmooth\[models\]'\n", done.stderr)


def test_every_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingPackage, match=r"^expected gguf and accelerate to read, got none installed; pip install"):
        require("gguf", "accelerate", purpose="to read")
    assert issubclass(MissingPackage, InputError) and howsmooth.InputError is InputError
