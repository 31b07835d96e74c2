"""Rows of cells as text: for programs (CSV), for pages (Markdown) and for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return rows with the same keys as CSV, empty where a value is None; there must be one.

    Example:
        >>> csv_text([{"client": "a", "joules": 0.5}, {"client": "b", "joules": None}])
        'client,joules\na,0.5\nb,\n'
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def markdown_lines(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return the lines of a table in GitHub's Markdown, whose cells are escaped already; numbers may stand `right`.

    Example:
        >>> markdown_lines(["method", "joules"], [["csra", "3"]], right=True)
        ['| method | joules |', '| --- | ---: |', '| csra | 3 |']
    """
    rule = ["---", *["---:" if right else "---"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def rich_table(
    header: Sequence[str | Text], rows: Iterable[Sequence[str]], *, left: int = 1, whole: bool = False, **options: Any
) -> Table:
    """Return a table for rich: the first `left` columns are text and fold, the others numbers; `whole` ones never wrap.

    Cells are no markup; `options` are those of `rich.table.Table`, such as its title.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", **options)
    for j, head in enumerate(header):
        table.add_column(
            Text(head) if isinstance(head, str) else head,
            justify="left" if j < left else "right",
            overflow="fold",
            no_wrap=whole and j >= left,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table
