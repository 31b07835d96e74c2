"""CSV and Markdown tables, and text that is safe to print on a terminal."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# ---- CSV and Markdown

FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")
"""Beginnings of cells that a spreadsheet treats as a formula."""
UNFIT_FOR_CSV = re.compile("[\0\r\ud800-\udfff]")  # readers refuse them, or read another name


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return one or more rows with the same keys as CSV; None becomes an empty cell.

    Example:
        >>> csv_text([{"client": "a", "joules": 0.5}, {"client": "b", "joules": None}])
        'client,joules\na,0.5\nb,\n'

    Text that a spreadsheet would treat as a formula gets a leading apostrophe, which spreadsheets hide:

        >>> csv_text([{"client": "=1+1"}, {"client": "-3.5"}, {"client": "@x"}])
        "client\n'=1+1\n-3.5\n'@x\n"
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writerow({key: _harmless(key) for key in rows[0]})
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = UNFIT_FOR_CSV.sub(lambda found: visible(found[0]), cell)
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def visible(text: str) -> str:
    r"""Escape characters without a shape of their own: those that command a terminal, turn text, or cannot be seen.

    Example:
        >>> visible("ward\x1b[2J 7\u202e")
        'ward\\x1b[2J 7\\u202e'
    """
    if text.isprintable():  # fast, as most texts are
        return text
    return "".join(c.encode("unicode_escape").decode() if _commands(c) else c for c in text)


def visible_lines(text: str) -> str:
    r"""Escape each line of a text (see `visible`).

    Example:
        >>> visible_lines("one\ntwo\a")
        'one\ntwo\\x07'
    """
    return "\n".join(map(visible, text.split("\n")))


def shorten(name: str, length: int = 26) -> str:
    """Return a name of at most `length` characters, shortened in the middle, with `visible` control characters.

    Example:
        >>> shorten("my_experiments.policies:ByDistance", 20)
        'my_experim…yDistance'
    """
    name = visible(name)
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1) // 2 :]}"


def _commands(character: str) -> bool:
    # Controls, formats such as turns of the direction and letters without width, halves of a letter, separators.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def count_noun(number: int, noun: str) -> str:
    """Return a number and a noun, with an s unless the number is 1.

    Example:
        >>> count_noun(1, "round"), count_noun(2, "round")
        ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def markdown_lines(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return the lines of a table in GitHub's Markdown.

    Args:
        header: Column titles.
        rows: Cells, already escaped.
        right: Align all columns except the first to the right.

    Example:
        >>> markdown_lines(["method", "joules"], [["csra", "3"]], right=True)
        ['| method | joules |', '| --- | ---: |', '| csra | 3 |']
    """
    rule = ["---", *["---:" if right else "---"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
