"""Docstrings are plain text with unicode maths and doctests; the site wants Markdown. For griffe."""

from __future__ import annotations

import re
import textwrap

import griffe


class PlainDocstrings(griffe.Extension):
    """Doctests become code, `Args:` a list, and everything else is shown as it is typed."""

    def on_instance(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    r"""The Markdown that looks like this plain text.

    >>> markdown("Of n* tokens, `a*b`.\n\n>>> 1 + 1\n2")
    'Of n\\* tokens, `a*b`.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    blocks = [block for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]
    return "\n\n".join(map(_block, blocks))


def _block(block: str) -> str:
    if block.lstrip().startswith(">>>"):
        return f"```pycon\n{textwrap.dedent(block)}\n```"
    head, _, rest = block.partition("\n")
    if head.strip() in ("Args:", "Returns:", "Raises:") and rest:
        return f"{head}\n\n" + _entries(rest)
    if all(line.startswith("    ") for line in block.splitlines()):
        return block  # a displayed formula
    lines = block.splitlines()
    if ">>>" in block and any(line.startswith(">>>") for line in lines):  # no blank line before the doctest
        at = next(number for number, line in enumerate(lines) if line.startswith(">>>"))
        return _shown("\n".join(lines[:at])) + "\n\n" + _block("\n".join(lines[at:]))
    return _shown(block)


def _entries(text: str) -> str:
    """`name: what it is`, indented text below each belonging to it."""
    found = re.split(r"\n(?=\S)", textwrap.dedent(text))
    return "\n".join("- " + re.sub(r"^([\w, *]+): ", r"`\1`: ", _shown(" ".join(entry.split()))) for entry in found)


def _shown(text: str) -> str:
    """With what Markdown would read as a sign escaped, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<_\[\]])", r"\\\1", part) for part in parts)
