"""The code of the documentation: blocks of Python and lines of shell, with what they need to run.

Code is found in fences (```python, ```sh, ```console after a `$`) and in indented blocks whose first line starts with a
command of `PROGRAMS`. What cannot run in the tests says so where the reader sees it:

* a line of shell by a comment with "needs", as in `howsmooth doctor  # needs a GPU`;
* a whole block by a comment above it, `<!-- needs a download -->`, or by a first line `# needs a download`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.comparison import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("howsmooth", "make", "pip", "python", "git", "cd", "ray", "echo", "pre-commit", ".venv/bin/python")
_NEEDS = re.compile(r"\bneeds (?P<what>an? [\w ]+|Alice|AG_NEWS|data|the network)")
_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=ticks)[ \t]*$", re.M | re.S)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.M)


@dataclass(frozen=True)
class Block:
    """Some code of a page.

    Attributes:
        page: The path of the page, relative to the repository.
        number: The number of the line on which the code starts.
        language: "python" or "sh".
        code: The code.
        needs: What it needs that tests do not have; None if they run it.
    """

    page: str
    number: int
    language: str
    code: str
    needs: str | None

    def __str__(self) -> str:
        """Return the place of the block."""
        return f"{self.page}:{self.number}"

    @property
    def lines(self) -> Iterator[tuple[str, str | None]]:
        """The commands of a block of shell, without comments, each with what it needs."""
        for line in re.sub(r" *\\\n\s*", " ", self.code).splitlines():
            command, comment = split_comment(line)
            if command:
                yield command, self.needs or needs(comment)


def blocks(page: Path) -> list[Block]:
    """Return the code of a page in the order of the page."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    found, prose = [], list(text)
    for fence in _FENCE.finditer(text):
        prose[fence.start() : fence.end()] = re.sub(r"[^\n]", "x", fence[0])  # indented code in a fence is no block
        language, code = fence["info"].split(" ")[0].strip(), fence["code"]
        if language == "console":
            language, code = "sh", commands_after_prompts(code)
        if language in ("python", "sh") and "--8<--" not in code:
            found.append((fence.start("code"), language, code))
    for block in _INDENTED.finditer("".join(prose)):
        if block[0].split()[0] in PROGRAMS:
            found.append((block.start(), "sh", re.sub(r"^ {4}", "", block[0], flags=re.M)))
    return [
        Block(name, text.count("\n", 0, start) + 1, language, code, _needs_of_block(text[:start], code))
        for start, language, code in sorted(found)
    ]


def commands_after_prompts(session: str) -> str:
    """Return the commands of a terminal session."""
    return "".join(line[2:] + "\n" for line in re.sub(r" \\\n\s*", " ", session).splitlines() if line.startswith("$ "))


def split_comment(line: str) -> tuple[str, str]:
    """Return a line of shell without its comment, and the comment."""
    words = shlex.shlex(line, posix=False, punctuation_chars=False)
    words.commenters, words.whitespace_split = "", True
    position = 0
    for word in words:
        at = line.index(word, position)
        if word.startswith("#"):
            return line[:at].strip(), line[at:]
        position = at + len(word)
    return line.strip(), ""


def needs(comment: str) -> str | None:
    """Return what a comment says that a command needs."""
    found = _NEEDS.search(comment)
    return found["what"] if found else None


def _needs_of_block(before: str, code: str) -> str | None:
    above = re.search(r"<!-- (needs [^\n]*) -->\n+(?:```[^\n]*\n)?\Z", before)
    first = code.partition("\n")[0]
    return needs(above[1]) if above else needs(first) if first.startswith("# ") else None
