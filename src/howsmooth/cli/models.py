"""`howsmooth models`: the model families that can be measured."""

from __future__ import annotations

import click


@click.command(name="models", short_help="List the model families that can be measured.")
@click.option("--markdown", is_flag=True, help="Print Markdown, as in docs/compatibility.md.")
def command(markdown: bool) -> None:
    """Show which model families can be measured, how, and what is not supported.

    Each family has the maps attention, head, normed, block, layer and model. Other families whose attention goes
    through the attention registry of transformers use the generic path, too; they are not tested.
    """
    from howsmooth.models import compatibility

    if markdown:
        click.echo(compatibility.markdown(), nl=False)
        return
    from rich.table import Table

    from howsmooth.cli.run import make_console

    table = Table(*compatibility.COLUMNS, box=None, header_style="bold", pad_edge=False)
    for row in compatibility.rows():
        table.add_row(*row)
    refused = Table("refused", "why", box=None, header_style="bold", pad_edge=False)
    for feature, reason in compatibility.REFUSED.items():
        refused.add_row(feature, reason)
    make_console().print(table)
    make_console().print()
    make_console().print(refused)
