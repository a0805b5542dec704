"""`howsmooth cite`: BibTeX of the paper and of the methods used."""

from __future__ import annotations

import click


@click.command(name="cite", short_help="Print BibTeX of the paper and the methods used.")
def command() -> None:
    """Print the BibTeX of the paper and of the methods used."""
    from importlib.resources import files

    click.echo(files("howsmooth").joinpath("references.bib").read_text(encoding="utf-8"), nl=False)
