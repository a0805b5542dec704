"""Command groups that import a command only when it is called, so that `--help` is fast."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """A command of a lazy group.

    Attributes:
        location: `module` or `module:name` within `howsmooth.cli`; the name is `command` by default.
        short_help: The command's line in the help of its group.
    """

    location: str
    short_help: str


class LazyGroup(click.Group):
    """A group of commands given by location and short help; the group's own help imports none of them."""

    def __init__(self, *arguments: Any, entries: dict[str, Entry], **settings: Any) -> None:
        """Take the entries by command name, and the arguments of `click.Group`."""
        super().__init__(*arguments, **settings)
        self.entries = entries

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the entries."""
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a command by name; return None if the group has no such command."""
        if name not in self.entries:
            return None
        module, _, attribute = self.entries[name].location.partition(":")
        return getattr(importlib.import_module(f"howsmooth.cli.{module}"), attribute or "command")

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and short help of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])
