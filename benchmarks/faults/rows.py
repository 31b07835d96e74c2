"""A row of the table of faults: how many there were, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

HEAD = ("fault", "injected", "survived", "told", "lost", "wrong")
TOTAL = "**all**"


class Row(NamedTuple):
    """What came of the faults of one kind.

    *survived*: the result is that of a run without the fault. *told*: it was refused in words that name it, and what
    was refused left no trace. *lost*: a traceback, or words that name nothing. *wrong*: taken for what it is not.
    """

    fault: str
    injected: int = 0
    survived: int = 0
    told: int = 0
    lost: int = 0
    wrong: int = 0
    found: tuple[str, ...] = ()  # the faults of the last two kinds

    @classmethod
    def of(cls, fault: str, counts: Any) -> Row:
        """Return the row of anything that counts by these names; `found`, or `first`, says what was lost or wrong."""
        numbers = (int(getattr(counts, name)) for name in HEAD[1:])
        found = getattr(counts, "found", None) or filter(None, [getattr(counts, "first", "")])
        return cls(fault, *numbers, found=tuple(map(str, found)))

    @classmethod
    def of_endings(cls, fault: str, endings: Iterable[tuple[str, str]]) -> Row:
        """Return the row of faults that each ended in one of these ways, given with what to call it."""
        ended = [*endings]
        numbers = ([how for how, _ in ended].count(name) for name in HEAD[2:])
        bad = tuple(f"{how}: {what}" for how, what in ended if how not in ("survived", "told"))
        return cls(fault, len(ended), *numbers, found=bad)

    @property
    def is_clean(self) -> bool:
        """Whether something was injected, and nothing was lost, wrong or left out of the count."""
        return 0 < self.injected == self.survived + self.told and not self.lost and not self.wrong


def markdown(rows: Iterable[Row]) -> str:
    """Return the table, the sum of its rows last.

    Example:
        >>> print(markdown([Row("power cut", 3, 2, 1)]))
        | fault | injected | survived | told | lost | wrong |
        | --- | ---: | ---: | ---: | ---: | ---: |
        | power cut | 3 | 2 | 1 | 0 | 0 |
        | **all** | 3 | 2 | 1 | 0 | 0 |
    """
    rows = [*rows]
    total = Row(TOTAL, *(sum(row[i] for row in rows) for i in range(1, len(HEAD))))
    lines = [HEAD, ("---", *["---:"] * 5), *(row[: len(HEAD)] for row in [*rows, total])]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def merged(text: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a text that holds a table, those of the same faults exchanged and new ones at the end.

    Example:
        >>> text = markdown([Row("killed", 3, 3), Row("damaged", 5, 1, 4)])
        >>> print(markdown(merged(text, [Row("damaged", 9, 2, 7), Row("lies", 1, 0, 1)])))
        | fault | injected | survived | told | lost | wrong |
        | --- | ---: | ---: | ---: | ---: | ---: |
        | killed | 3 | 3 | 0 | 0 | 0 |
        | damaged | 9 | 2 | 7 | 0 | 0 |
        | lies | 1 | 0 | 1 | 0 | 0 |
        | **all** | 13 | 5 | 8 | 0 | 0 |
    """
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    old = [Row(fault, *map(int, numbers)) for fault, *numbers in cells[2:] if fault != TOTAL]
    return [*({row.fault: row for row in old} | {row.fault: row for row in rows}).values()]
