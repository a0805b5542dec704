"""Groups of commands whose files are imported when a command is named, so that `--help` is instant."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """A group that knows its commands by the files they live in; each file has a `command`."""

    def __init__(self, *arguments, files: dict[str, str], **settings):
        super().__init__(*arguments, **settings)
        self.files = files

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.files)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.files:
            return None
        return importlib.import_module(self.files[name]).command
