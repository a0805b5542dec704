"""`howsmooth cite`: the BibTeX of the paper and of what the solver uses."""

from __future__ import annotations

import click


@click.command(name="cite")
def command() -> None:
    """Print the BibTeX of the paper and of the methods used."""
    from importlib.resources import files

    click.echo(files("howsmooth").joinpath("references.bib").read_text(encoding="utf-8"), nl=False)
