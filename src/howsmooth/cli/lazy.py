"""Groups of commands whose files are imported when a command is called, so that `--help` is instant."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """Where a command is in `howsmooth.cli`, `module` or `module:name` (else `command`), and its line in the help."""

    place: str
    short_help: str


class LazyGroup(click.Group):
    """A group that knows its commands by place and short help; showing the group's help imports none of them."""

    def __init__(self, *arguments: Any, entries: dict[str, Entry], **settings: Any):
        super().__init__(*arguments, **settings)
        self.entries = entries

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.entries:
            return None
        module, _, attribute = self.entries[name].place.partition(":")
        return getattr(importlib.import_module(f"howsmooth.cli.{module}"), attribute or "command")

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])
