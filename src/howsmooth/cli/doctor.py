"""`howsmooth doctor`: what is installed, which device there is, which implementation will run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text

    from howsmooth.studies.provenance import Part


@click.command(name="doctor", short_help="What is installed and what will run.")
def command() -> None:
    """Show what is installed, which device there is and which implementation will run."""
    import platform

    from howsmooth import __version__
    from howsmooth.cli.run import console
    from howsmooth.report.table import Table
    from howsmooth.studies.provenance import embedded_models, machine, packages

    console().print(
        Table.of_facts(
            [
                ("howsmooth", __version__),
                ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
                *((part.name, _found(part)) for part in packages()),
                *machine().items(),
                *((part.name, _found(part)) for part in embedded_models()),
                ("cache", _cache()),
            ]
        )
    )


def _found(part: Part) -> str | Text:
    from rich.text import Text

    if part.found is not None:
        return part.found
    if part.required:
        return Text.assemble(("missing", "red"), f": {part.remedy}")
    return Text(f"not installed: {part.remedy}", style="yellow")


def _cache() -> str:
    from howsmooth.models import cache_root
    from howsmooth.report.plan_tables import show_bytes

    folder = cache_root()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{folder} ({show_bytes(size)})"
