r"""Tables as data, rendered for the terminal, as HTML, as Markdown and as CSV.

A column is a heading and a function from a row to its cell.

Example:
    >>> table = Table("Squares", [Column("n", lambda n: n), Column("n²", lambda n: n * n, style="bold")], range(2, 4))
    >>> print(table.markdown())
    | n | n² |
    |---:|---:|
    | 2 | 4 |
    | 3 | 9 |
    <BLANKLINE>
    >>> table.csv()
    'n,n²\n2,4\n3,9\n'
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from howsmooth.records.lines import csv_line, replace_non_finite


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: Text above the column.
        cell: Function from a row to its cell: a string, a number, a styled `rich.text.Text`, or None if empty.
        align: "left" or "right".
        style: Style of the cells on the terminal, in the syntax of rich.
        wrap: Whether long cells may wrap on the terminal.
        min_width: Smallest width on the terminal, in characters.
        css: CSS class of the cells in HTML.
        key: Whether the column identifies the row; key columns are repeated when a wide table is split.
        when: Whether the table has this column at all.
    """

    heading: str
    cell: Callable[[Any], Any]
    align: str = "right"
    style: str = ""
    wrap: bool = True
    min_width: int | None = None
    css: str = ""
    key: bool = False
    when: bool = True


@dataclass(frozen=True)
class Table:
    """A table with a title, columns and rows.

    Attributes:
        title: Text above the table.
        columns: The columns; those with `when=False` are dropped.
        rows: One object for each row, of any type that the columns accept.
        group: Function from a row to its group; a line separates groups on the terminal.
        row_style: Function from a row to its style on the terminal.
        caption: Text below the table.
        caption_style: Style of the caption on the terminal.
        ruled: Whether there are lines between groups and below the headings; without, empty headings are dropped and
            long words are folded.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    group: Callable[[Any], Any] | None = None
    row_style: Callable[[Any], str] | None = None
    caption: str = ""
    caption_style: str = "dim"
    ruled: bool = True

    def __post_init__(self) -> None:
        """Drop the columns with `when=False`."""
        object.__setattr__(self, "columns", tuple(column for column in self.columns if column.when))

    @classmethod
    def of_fields(cls, rows: Sequence[dict[str, Any]], names: Sequence[str], title: str = "") -> Table:
        """Return a table of the named fields of dictionaries; numbers that are not finite become None."""
        return cls(title, [Column(name, _field(name)) for name in names], rows)

    @classmethod
    def of_facts(cls, facts: Sequence[tuple[str, Any]]) -> Table:
        """Return a table of (name, value) pairs without headings.

        Example:
            >>> Table.of_facts([("n", 8), ("tokens", "all")]).values("")
            ['n', 'tokens']
        """
        name = Column("", lambda fact: fact[0], "left", style="bold", wrap=False, key=True)
        return cls("", [name, Column("", lambda fact: fact[1], "left")], facts, ruled=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [column.heading for column in self.columns]

    def values(self, heading: str) -> list[Any]:
        """Return the cells under a heading."""
        column = self.columns[self.headings.index(heading)]
        return [column.cell(row) for row in self.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Render the table for a terminal; if it is too wide, split it by columns so that no number is truncated."""
        if self.title:
            yield Text(self.title, style="bold cyan")  # not the title of rich, which wraps at the width of the table
        parts = self._parts(options.max_width)
        for columns in parts:
            yield self._rich(columns, options.max_width, caption=len(parts) == 1)
        if self.caption and len(parts) > 1:
            yield Text(self.caption, style=self.caption_style)

    def _parts(self, width: int) -> list[list[Column]]:
        """Split the columns into parts that fit the width, each with the key columns.

        A column without a heading stays with the column to its left.
        """
        keys = [column for column in self.columns if column.key] or [self.columns[0]]
        blocks: list[list[Column]] = []
        for column in self.columns:
            if column.heading == "" and blocks:
                blocks[-1].append(column)
            elif column not in keys:
                blocks.append([column])
        available = width - sum(self._width(column) for column in keys)
        parts, used = [list(keys)], 0
        for block in blocks:
            needed = sum(self._width(column) for column in block)
            used += needed
            if used > available and len(parts[-1]) > len(keys):
                parts, used = [*parts, list(keys)], needed
            parts[-1] += block
        return [sorted(part, key=self.columns.index) for part in parts]

    def _width(self, column: Column, *, fold: bool = True) -> int:
        """Return the width of a column with the space after it, with headings and text folded at words or not.

        Numbers, and cells of columns with `wrap=False`, are never folded.
        """
        cells = [_plain(column.cell(row)) for row in self.rows]
        if fold and column.align == "left" and column.wrap:
            cells = [word for cell in cells for word in cell.split()]
        words = column.heading.split() if fold else [column.heading]
        return max(*map(cell_len, [*cells, *words, ""]), column.min_width or 0) + 2

    def _rich(self, columns: Sequence[Column], width: int, *, caption: bool) -> rich_table.Table:
        narrow = sum(self._width(column, fold=False) for column in columns) > width
        table = plain_table()
        if not self.ruled:
            table.box, table.padding = None, (0, 2, 0, 0)
            table.show_header = any(self.headings)
        if self.caption and caption:
            table.caption, table.caption_justify = Text(self.caption, style=self.caption_style), "left"
        for column in columns:
            smallest = self._width(column) - 2
            table.add_column(
                column.heading if column.wrap or not narrow else _folded(column.heading, smallest),
                justify="right" if column.align == "right" else "left",
                style=column.style,
                no_wrap=not column.wrap,
                min_width=smallest if self.ruled else None,
                overflow="ellipsis" if self.ruled else "fold",
            )
        for row, last in self._grouped():
            table.add_row(
                *(_printed(column.cell(row)) for column in columns),
                end_section=last,
                style=self.row_style(row) if self.row_style else None,
            )
        return table

    def _grouped(self) -> Iterator[tuple[Any, bool]]:
        """Yield each row, and whether it is the last of its group."""
        for index, row in enumerate(self.rows):
            following = self.rows[index + 1] if index + 1 < len(self.rows) else None
            yield row, self.group is not None and (following is None or self.group(following) != self.group(row))

    def html(self, css_class: str = "") -> str:
        """Return an HTML `<table>`; cells are escaped unless they are `markupsafe.Markup`."""
        classes = [
            " ".join(filter(None, ("number" if column.align == "right" else "", column.css))) for column in self.columns
        ]
        attributes = [f' class="{escape(name)}"' if name else "" for name in classes]
        head = "".join(
            f'<th scope="col"{attribute}>{escape(column.heading)}</th>'
            for attribute, column in zip(attributes, self.columns, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{attribute}>{_markup(column.cell(row))}</td>"
                for attribute, column in zip(attributes, self.columns, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        opening = f'<table class="{escape(css_class)}">' if css_class else "<table>"
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f"{opening}{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def markdown(self) -> str:
        """Return a Markdown table."""
        lines = [
            "| " + " | ".join(self.headings) + " |",
            "|" + "|".join("---:" if column.align == "right" else "---" for column in self.columns) + "|",
        ]
        lines += [
            "| " + " | ".join(_plain(column.cell(row)).replace("|", "\\|") for column in self.columns) + " |"
            for row in self.rows
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return CSV with all digits of numbers, and lists and dictionaries as JSON."""
        rows = ([_raw(column.cell(row)) for column in self.columns] for row in self.rows)
        return "\n".join([csv_line(self.headings), *map(csv_line, rows)]) + "\n"


def plain_table(title: Text | None = None) -> rich_table.Table:
    """Return an empty `rich.table.Table` in the style of all tables on the terminal."""
    return rich_table.Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        title_justify="left",
        title=title,
    )


def _folded(heading: str, width: int) -> str:
    r"""Return a heading on lines of at most the width: as few lines as possible, of about the same length.

    Example:
        >>> _folded("interval, 99.9 % sure", 15)
        'interval,\n99.9 % sure'
    """
    lines = textwrap.wrap(heading, max(1, width), break_long_words=False)
    for narrower in range(width - 1, 0, -1):
        shorter = textwrap.wrap(heading, narrower, break_long_words=False)
        if len(shorter) > len(lines):
            break
        lines = shorter
    return "\n".join(lines)


def _field(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: replace_non_finite(row.get(name))


def _printed(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text(_plain(cell))  # rich would parse a string as markup


def _plain(cell: Any) -> str:
    return "" if cell is None else cell.plain if isinstance(cell, Text) else str(cell)


def _markup(cell: Any) -> str:
    return cell.__html__() if hasattr(cell, "__html__") else escape(_plain(cell))


def _raw(cell: Any) -> Any:
    return cell.plain if isinstance(cell, Text) else cell
