"""Commands and functions that are imported only when they are called, so that `--help` and errors are fast."""

from __future__ import annotations

import difflib
import importlib
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from howsmooth.questions import QUESTIONS


class Entry(NamedTuple):
    """A command of a lazy group.

    Attributes:
        location: `module` or `module:name` within `howsmooth.cli`; the name is `command` by default. ?NAME is the
            command of a question; with `help` it is a group of such commands.
        short_help: The command's line in the help of its group.
        help: What a group of questions is about.
    """

    location: str
    short_help: str
    help: str = ""


def question_entries(group: str) -> dict[str, Entry]:
    """Return the entries of the questions of a group of commands, by command name."""
    return {
        entry.command or name: Entry(f"?{name}", entry.help)
        for name, entry in QUESTIONS.items()
        if entry.group == group
    }


def _command_paths() -> dict[str, str]:
    """Return the command lines of the questions, by command name."""
    return {
        entry.command or name: " ".join(filter(None, ("howsmooth", entry.group, entry.command or name)))
        for name, entry in QUESTIONS.items()
    }


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
        location, short_help, about = self.entries[name]
        if about:
            return LazyGroup(name, entries=question_entries(name), short_help=short_help, help=about)
        if location.startswith("?"):
            from howsmooth.cli.ask import question_command

            return question_command(location[1:])
        module, _, attribute = location.partition(":")
        return getattr(importlib.import_module(f"howsmooth.cli.{module}"), attribute or "command")

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name; the error for an unknown one suggests the nearest, of other groups, too."""
        name = arguments[0]
        if name in self.entries or name.startswith("-") or context.resilient_parsing:
            return super().resolve_command(context, arguments)
        paths = {**_command_paths(), **{own: f"{context.command_path} {own}" for own in self.entries}}
        near = difflib.get_close_matches(name, paths, n=1)
        hint = f"did you mean `{paths[near[0]]}`?" if near else f"choose among {', '.join(self.entries)}"
        raise click.UsageError(f"expected a command, got {name[:60]!r}; {hint}", context)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, or the group's own options, that start with what was typed; no command is imported."""
        if incomplete.startswith("-"):
            return super().shell_complete(context, incomplete)
        return [
            CompletionItem(name, help=entry.short_help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and short help of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])
