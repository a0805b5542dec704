"""`howsmooth doctor`: what is installed, which device is found, which implementation runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text

    from howsmooth.studies.provenance import Part


@click.command(name="doctor", short_help="Show what is installed and which implementation runs.")
def command() -> None:
    """Show what is installed, which device is found and which implementation runs."""
    import platform

    from howsmooth import __version__
    from howsmooth.cli.loading import load_torch
    from howsmooth.cli.run import make_console

    load_torch(make_console(stderr=True))

    from howsmooth.report.table import Table
    from howsmooth.studies.provenance import embedded_models, machine, packages

    make_console().print(
        Table.of_facts(
            [
                ("howsmooth", __version__),
                ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
                *((part.name, _status(part)) for part in packages()),
                *machine().items(),
                *((part.name, _status(part)) for part in embedded_models()),
                ("cache", _cache_size()),
            ]
        )
    )


def _status(part: Part) -> str | Text:
    """Return what was found of a package or a model, or how to install it."""
    from rich.text import Text

    if part.found is not None:
        return part.found
    if part.required:
        return Text.assemble(("missing", "red"), f": {part.remedy}")
    return Text(f"not installed: {part.remedy}", style="yellow")


def _cache_size() -> str:
    """Return the folder of the cache and its size."""
    from howsmooth.models import cache_root
    from howsmooth.report.plan_tables import show_bytes

    folder = cache_root()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{folder} ({show_bytes(size)})"
