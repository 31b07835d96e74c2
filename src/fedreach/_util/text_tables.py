"""Tables and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from fedreach._util.tables import visible, visible_lines

LEAST = 8  # smallest width of a column of text, in characters


GAP = "  "


def text_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None,
    *,
    left: int = 1,
    title: str = "",
    note: str = "",
) -> str:
    r"""Return a table as text, with columns of text aligned left and columns of numbers aligned right.

    If the table is too wide, text and headers are wrapped, in the widest column first; numbers never are.

    Args:
        header: Column titles, which may have several lines.
        rows: Cells of one line each.
        width: Width of the terminal in characters, where some scripts count twice. None: wrap nothing.
        left: Number of columns of text, which come first.
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
    from wcwidth import ljust, rjust

    heads, cells = [*map(visible_lines, header)], [[*map(visible, row)] for row in rows]
    widths = _widths(heads, cells, width, left)
    pads = [ljust if j < left else rjust for j in range(len(heads))]

    def lines(row: Sequence[str], *, low: bool = False) -> list[str]:
        parts = [folded(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        high = max(map(len, parts))
        parts = [[""] * (high - len(part)) + part for part in parts] if low else parts
        return [
            GAP.join(pad(cell, wide) for pad, cell, wide in zip(pads, line, widths, strict=True)).rstrip()
            for line in zip_longest(*parts, fillvalue="")
        ]

    table = [*lines(heads, low=True), *lines(["─" * wide for wide in widths])]
    table += [line for row in cells for line in lines(row)]
    parts = (folded(visible_lines(title), width), table, folded(visible_lines(note), width))
    return "\n\n".join(filter(None, map("\n".join, parts)))


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int | None, text_columns: int) -> list[int]:
    """Return the widths of the columns; if they need too much together, the widest shrink."""
    numbers = [max(map(_wide, column)) for column in zip(*cells, strict=True)] or [1] * len(heads)
    widths = [max(_wide(head), number) for head, number in zip(heads, numbers, strict=True)]
    min_widths = [min(widths[j], LEAST if j < text_columns else numbers[j] or 1) for j in range(len(heads))]
    room = sum(widths) if width is None else width - len(GAP) * (len(heads) - 1)
    while sum(widths) > room and widths != min_widths:
        widths[max(range(len(heads)), key=lambda j: (widths[j] > min_widths[j], widths[j]))] -= 1
    return widths


def _wide(text: str) -> int:
    """Return the width of the longest line in characters; wide characters count twice."""
    from wcwidth import wcswidth

    return max(map(wcswidth, text.split("\n")))


def folded(text: str, width: int | None) -> list[str]:
    """Wrap a text to a width, between words if possible; each line keeps its indent.

    Example:
        >>> folded("  - what is said of it", 14)
        ['  - what is', '  said of it']
    """
    from wcwidth import wrap

    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")))
        if width is None or _wide(line) <= width:
            lines.append(line)
        else:
            lines += wrap(line.strip(), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return lines
