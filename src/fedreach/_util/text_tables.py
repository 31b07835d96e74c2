"""Tables and wrapped text for the terminal. Functions import rich when they are called, because the import is slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedreach._util.tables import shorten, visible, visible_lines

MIN_TEXT_WIDTH = 8  # smallest width of a column of text, in characters
GAP = 2  # characters between columns
MAX_CELL = 200  # characters of a cell on a terminal; more would push other rows off the screen


def text_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None,
    *,
    left: int = 1,
    title: str = "",
    note: str = "",
) -> str:
    r"""Return a table as text, with text columns aligned left and number columns aligned right.

    If the table is too wide, text and headers are wrapped, in the widest column first. Numbers are never wrapped. With
    a width, cells of more than `MAX_CELL` characters are shortened in the middle.

    Args:
        header: Column titles, which can have several lines.
        rows: Cells of one line each.
        width: Width of the terminal in characters; wide characters count twice. None: no wrapping.
        left: Number of text columns, which come first.
        title: Text above the table.
        note: Text below the table.

    Example:
        >>> print(text_table(["client", "time\ns"], [["in the north", "4"], ["south", "12.5"]], 14))
                  time
        client       s
        ────────  ────
        in the       4
        north
        south     12.5
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads = [*map(visible_lines, header)]
    cells = [[visible(cell) if width is None else shorten(cell, MAX_CELL) for cell in row] for row in rows]
    widths = _widths(heads, cells, width, left)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    for j, (head, column_width) in enumerate(zip(heads, widths, strict=True)):
        table.add_column(Text(head), justify="left" if j < left else "right", width=column_width, overflow="fold")
    for row in (["─" * column_width for column_width in widths], *cells):
        table.add_row(*map(Text, row))
    console = Console(width=sum(widths) + GAP * (len(widths) - 1))
    lines = ["".join(segment.text for segment in line).rstrip() for line in console.render_lines(table)]
    blocks = (folded(visible_lines(title), width), lines, folded(visible_lines(note), width))
    return "\n\n".join(filter(None, map("\n".join, blocks)))


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int | None, text_columns: int) -> list[int]:
    """Return the widths of the columns; shrink the widest until the table fits.

    Rich would also shrink number columns and split numbers over two lines.
    """
    numbers = [max(map(_wide, column)) for column in zip(*cells, strict=True)] or [1] * len(heads)
    widths = [max(_wide(head), number) for head, number in zip(heads, numbers, strict=True)]
    min_widths = [min(widths[j], MIN_TEXT_WIDTH if j < text_columns else numbers[j] or 1) for j in range(len(heads))]
    room = sum(widths) if width is None else width - GAP * (len(heads) - 1)
    while sum(widths) > room and widths != min_widths:
        widths[max(range(len(heads)), key=lambda j: (widths[j] > min_widths[j], widths[j]))] -= 1
    return widths


def _wide(text: str) -> int:
    """Return the width of the longest line in terminal cells; wide characters count twice."""
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def folded(text: str, width: int | None) -> list[str]:
    """Return the lines of a text wrapped to a width, between words if possible; each line keeps its indent.

    Example:
        >>> folded("  - one item of a list", 14)
        ['  - one item', '  of a list']
    """
    from rich.console import Console
    from rich.text import Text

    lines = []
    for line in text.split("\n"):
        if width is None or _wide(line) <= width:
            lines.append(line)
            continue
        words = line.lstrip(" ")
        indent = " " * (len(line) - len(words))
        wrapped = Text(words).wrap(Console(width=width), max(1, width - len(indent)), overflow="fold")
        lines += [f"{indent}{part.plain.rstrip()}" for part in wrapped]
    return lines
