"""`howsmooth models`: which families can be measured, and how."""

from __future__ import annotations

import click


@click.command(name="models", short_help="Which model families can be measured, and how.")
@click.option("--markdown", is_flag=True, help="As Markdown, as in docs/compatibility.md.")
def command(markdown: bool) -> None:
    """Show which model families can be measured, how, and what cannot.

    Each has the maps attention, head, normed, block, layer and model. Other families that ask transformers' attention
    registry take the generic path too; the tests have not seen them.
    """
    from howsmooth.models import compatibility

    if markdown:
        click.echo(compatibility.markdown(), nl=False)
        return
    from rich.table import Table

    from howsmooth.cli.run import console

    table = Table(*compatibility.COLUMNS, box=None, header_style="bold", pad_edge=False)
    for row in compatibility.rows():
        table.add_row(*row)
    refused = Table("refused", "why", box=None, header_style="bold", pad_edge=False)
    for what, why in compatibility.REFUSED.items():
        refused.add_row(what, why)
    console().print(table)
    console().print()
    console().print(refused)
