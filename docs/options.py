"""The table of all options of all commands, which docs/notation.md includes as {{ options }}.

python docs/options.py            # prints it
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

SEPARATORS = (". ", ":", ";", " [")  # what ends the meaning in a help text


class Option(NamedTuple):
    """An option of a command as its help shows it; the default is empty if there is none."""

    command: str
    name: str
    field: str
    help: str
    default: str


def options(command: click.Command | None = None, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the options of a command and of those in its group, by default of all commands."""
    from howsmooth.cli.main import group

    command = command or group
    context = click.Context(command)
    for param in command.params:
        if isinstance(param, click.Option):
            name = next(name for name in param.opts if name.startswith("--"))
            yield Option(" ".join(path) or "howsmooth", name, param.name or "", *_help_and_default(param, context))
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        yield from options(command.get_command(context, name), (*path, name))


def _help_and_default(param: click.Option, context: click.Context) -> tuple[str, str]:
    help_text = " ".join((param.help or "").split())
    shown_default = re.search(r"\[default: (.*)\]", help_text)
    if shown_default:
        return help_text, shown_default[1]
    default = None if param.is_flag else param.get_default(context, call=False)
    return help_text, str(default) if isinstance(default, (str, int, float)) else ""


def meaning(same: Sequence[Option]) -> str:
    """Return what an option means in all its commands: the beginning of all its help texts, up to a separator.

    Raises:
        ValueError: it has two meanings.
    """
    beginnings = [_beginnings(f"{option.help.rstrip('.')}. ") for option in same]
    common = set(beginnings[0]).intersection(*beginnings)
    if not common:
        said = "; ".join(f"{option.command}: {option.help!r}" for option in same)
        raise ValueError(
            f"expected one meaning of {same[0].name}, got {said}; begin each help text with the same words"
        )
    return min(common, key=len)


def _beginnings(text: str) -> list[str]:
    return [
        text[: found.start()] for mark in SEPARATORS for found in re.finditer(re.escape(mark), text) if found.start()
    ]


def table() -> str:
    """Return the table as Markdown: each option with its meaning, its default, and commands with another default."""
    by_name: dict[str, list[Option]] = {}
    for option in options():
        by_name.setdefault(option.name, []).append(option)
    rows = ["| option | meaning | default | commands with another default |", "|---|---|---|---|"]
    for name, same in sorted(by_name.items(), key=lambda item: (item[0].lower(), item[0])):
        default = Counter(option.default for option in same).most_common(1)[0][0]
        other = "; ".join(f"{option.command} {_code(option.default)}" for option in same if option.default != default)
        rows.append(f"| `{name}` | {_cell(meaning(same))} | {_code(default) if default else ''} | {_cell(other)} |")
    return "\n".join(rows)


def _code(default: str) -> str:
    return f"`{default}`" if default else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(table())
