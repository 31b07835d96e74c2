"""Rows of cells for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedreach.tables import visible

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


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
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table
