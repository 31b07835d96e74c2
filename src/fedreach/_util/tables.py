"""Tables as text, and tables read from text."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

# ---- CSV and Markdown


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return at least one row as CSV; rows have the same keys, and None becomes an empty cell.

    Example:
        >>> csv_text([{"client": "a", "joules": 0.5}, {"client": "b", "joules": None}])
        'client,joules\na,0.5\nb,\n'

    An apostrophe, which spreadsheets hide, precedes text that a spreadsheet would read as a formula:

        >>> csv_text([{"client": "=1+1"}, {"client": "-3.5"}, {"client": "@x"}])
        "client\n'=1+1\n-3.5\n'@x\n"
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def visible(text: str) -> str:
    r"""Escape characters that move a terminal's cursor, change its colors or reverse its writing direction.

    Example:
        >>> visible("ward\x1b[2J 7\u202e")
        'ward\\x1b[2J 7\\u202e'
    """
    return "".join(c.encode("unicode_escape").decode() if _commands(c) else c for c in text)


def visible_lines(text: str) -> str:
    r"""Escape the lines of a text, see `visible`.

    Example:
        >>> visible_lines("one\ntwo\a")
        'one\ntwo\\x07'
    """
    return "\n".join(map(visible, text.split("\n")))


def _commands(character: str) -> bool:
    turns = unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return turns or unicodedata.category(character) in ("Cc", "Zl", "Zp")


def markdown_lines(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return the lines of a table in GitHub's Markdown; cells must be escaped already. `right` aligns numbers right.

    Example:
        >>> markdown_lines(["method", "joules"], [["csra", "3"]], right=True)
        ['| method | joules |', '| --- | ---: |', '| csra | 3 |']
    """
    rule = ["---", *["---:" if right else "---"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


# ---- Tables and sentences for the terminal

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
