"""Rows of cells, and sentences, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from fedreach.tables import visible, visible_lines

LEAST = 8  # letters of a line to which a column of text may shrink
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
    r"""Return a table as text: the first `left` columns are text and stand left, the others numbers and stand right.

    Where it would be too wide, texts and headers are folded, of the widest column first; numbers never are.

    Args:
        header: May have several lines.
        rows: Cells of one line each.
        width: Of the terminal, where letters of some languages are two wide; None folds nothing.
        left: How many columns are text.
        title: Stands above.
        note: Stands below.

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


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int | None, left: int) -> list[int]:
    """Return how wide columns are: as they need, or where that is too much, the widest give way."""
    numbers = [max(map(_wide, column)) for column in zip(*cells, strict=True)] or [1] * len(heads)
    widths = [max(_wide(head), number) for head, number in zip(heads, numbers, strict=True)]
    least = [min(widths[j], LEAST if j < left else numbers[j] or 1) for j in range(len(heads))]
    room = sum(widths) if width is None else width - len(GAP) * (len(heads) - 1)
    while sum(widths) > room and widths != least:
        widths[max(range(len(heads)), key=lambda j: (widths[j] > least[j], widths[j]))] -= 1
    return widths


def _wide(text: str) -> int:
    """Return the letters of the longest line, those twice that take two places."""
    from wcwidth import wcswidth

    return max(map(wcswidth, text.split("\n")))


def folded(text: str, width: int | None) -> list[str]:
    """Return the lines of a text, none wider, broken between words where that is possible; each keeps its indent.

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
