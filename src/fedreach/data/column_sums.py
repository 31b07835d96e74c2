"""What participants tell of a column so that all agree on what it is: counts and sums, and what follows from these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.data.cells import BOOLEANS, Cells
from fedreach.data.columns import NUMBERS_SHARE, InputKind
from fedreach.data.input_column import InputColumn, held, values_of

MOST_CATEGORIES = 100  # what has more of them names a row rather than says something about it
FEW_CATEGORIES = 20  # which a column may have whatever the number of rows
CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding
SAME = "it is the same for all who take part"
FEWEST_NUMBERED = 20  # rows, of which a column may be taken for their numbers
NUMBERS_ROWS = "it numbers the rows"
NAMES_ROWS = re.compile(
    r"(?i:(^|.*[^a-z])(id|ids|pid|uid|row|rows|rowid|rownames?|index|idx|no|nr|num|number|order|key|seq|serial|record|obs))"
    r"|.*[a-z](Id|ID|Nr|No)|Unnamed: [0-9]+"
)
"""What columns are called that number rows, persons or cases; an index without a name is "Unnamed: 0" in pandas."""
ROUNDING = 1e-9
FOREIGN = r"[+-]?[0-9]{1,3}([.,][0-9]{3})*([.,][0-9]+)?|[+-]?[0-9]+,[0-9]+"
"""Numbers with points or commas, of which it must be said what these are."""


class Counts(NamedTuple):
    """How many cells of participants' training rows are what; those of several participants add up."""

    rows: int = 0
    unreadable: int = 0  # rows of a column that holds neither numbers nor words nor dates, such as lists
    held: int = 0  # that hold something
    booleans: int = 0
    numbers: int = 0
    dates: int = 0
    foreign: int = 0  # no numbers as they stand, which they would be with other points and commas
    unique: int = 0  # rows of participants at whom all cells are different whole numbers
    dense: int = 0  # of these, at whom they fill at least half of their range

    @classmethod
    def of(cls, cells: Cells | None, clients: Sequence[Ints]) -> Counts:
        """Return the counts of clients together; each different text is looked at once, however many clients there are.

        Args:
            cells: Of a column; None: of one that cannot be read.
            clients: The rows of each client.
        """
        rows = sum(map(len, clients))
        if cells is None:
            return cls(rows, unreadable=rows)
        parts = [_numbering(cells.numbers[own]) for own in clients]
        unique, dense = (sum(column) for column in zip(*parts, strict=True)) if parts else (0, 0)
        cells = cells.at(np.concatenate(clients) if clients else np.zeros(0, np.int64))
        there, numbers, booleans, foreign = held(cells), ~np.isnan(cells.numbers), 0, 0
        if cells.words is not None:
            levels = [*cells.words.levels, None]
            is_foreign = np.array([level is not None and bool(re.fullmatch(FOREIGN, level)) for level in levels])
            booleans = int(np.array([level in BOOLEANS for level in levels])[cells.words.codes].sum())
            foreign = int((is_foreign[cells.words.codes] & ~numbers).sum())
        dates = int((~np.isnan(values_of("date", cells))).sum())
        return cls(rows, 0, int(there.sum()), booleans, int(numbers.sum()), dates, foreign, unique, dense)

    @property
    def kind(self) -> InputKind:
        """What the column is, where some cell holds something."""
        if self.booleans == self.held:
            return "boolean"
        if self.numbers >= NUMBERS_SHARE * self.held - ROUNDING:
            return "number"
        return "date" if self.dates >= NUMBERS_SHARE * self.held - ROUNDING else "category"

    @property
    def is_foreign(self) -> bool:
        """Whether nine in ten cells are numbers, and some with other points and commas than ours."""
        return self.foreign > 0 and self.foreign + self.numbers >= NUMBERS_SHARE * self.held - ROUNDING

    def numbers_rows(self, sd: float) -> bool:
        """Whether a column of numbers with this deviation rather numbers the rows, as an index or an id does.

        All are different whole numbers at each participant, and fill at least half of their range there or a fifth of
        it at all of them together; and they are no more than the whole numbers of that range, which a column of years
        has again at every participant. The range is that of evenly spread numbers, sqrt(12) sd.
        """
        if self.rows < FEWEST_NUMBERED or self.unique < self.rows:
            return False
        whole_range = 12**0.5 * sd
        fills = self.dense == self.rows or self.rows >= 0.2 * whole_range
        return fills and self.rows <= 1.1 * whole_range + 1

    @property
    def left_out(self) -> str:
        """Why the column is no input whatever its kind; "" where it may be one."""
        if self.unreadable:
            return "it holds neither numbers nor words nor dates"
        return "" if self.held else "no participant has a value"


def _numbering(numbers: Floats) -> tuple[int, int]:
    """Return how many rows have whole numbers that are all different, and that are dense, too: all or none."""
    rows = len(numbers)
    if not rows or np.isnan(numbers).any() or (numbers != np.floor(numbers)).any():
        return 0, 0
    if len(np.unique(numbers)) < rows:
        return 0, 0
    return rows, rows if 2 * rows >= np.ptp(numbers) + 1 else 0


def met(cells: Cells) -> tuple[str, ...]:
    """Return the different texts that stand in some cells, sorted."""
    assert cells.words is not None  # or all cells are numbers
    codes = np.unique(cells.words.codes[cells.words.codes >= 0])
    return tuple(cells.words.levels[code] for code in codes.tolist())


def number_column(
    name: str, kind: InputKind, counts: Counts, there: int, mean: float, squares: float, *, is_asked: bool
) -> InputColumn:
    """Return a column of numbers, dates or truth values.

    Args:
        name: Of the column.
        kind: What it is.
        counts: Of all participants.
        there: Cells that hold such a value.
        mean: Of these.
        squares: Sum of their squared differences from it.
        is_asked: Whether it is said to be of this kind.
    """
    sd = (squares / there) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    told = ""
    if kind == "number" and not is_asked and counts.numbers_rows(sd):
        if NAMES_ROWS.fullmatch(name):
            return InputColumn(name, "left out", why=f"{NUMBERS_ROWS}; name it in columns.number to use it")
        told = f"{NUMBERS_ROWS}; drop it if it is no more than that"
    return InputColumn(name, kind, counts.rows - there, mean, sd, odd=told)


def category_column(
    name: str, counts: Counts, categories: Sequence[str] | None, *, is_asked: bool, example: str = ""
) -> InputColumn:
    """Return a column of categories.

    Args:
        name: Of the column.
        counts: Of all participants.
        categories: The different texts, sorted; None: more than a column may have that is not said to be of categories.
        is_asked: Whether it is said to be.
        example: Of a number with other points and commas.
    """
    if not is_asked and counts.is_foreign:
        how = f"as {example!r}" if example else "with other points and commas"
        why = f"its numbers are written {how}: set columns.decimal, and leave out what parts thousands"
        return InputColumn(name, "left out", why=why)
    missing = counts.rows - counts.held
    if categories is not None and len(categories) + bool(missing) < 2:
        return InputColumn(name, "left out", why=SAME)
    most = min(MOST_CATEGORIES, max(FEW_CATEGORIES, counts.rows / 2))
    if categories is None or (not is_asked and len(categories) > most):
        many = f"more than {MOST_CATEGORIES}" if categories is None else str(len(categories))
        share = 100 * counts.numbers / max(counts.held, 1)
        numbers = f", {share:.0f}% of them numbers," if counts.numbers else ""
        return InputColumn(
            name, "left out", why=f"{many} different texts{numbers} in {counts.rows} rows are rather names"
        )
    return InputColumn(name, "category", missing, categories=tuple(categories))


def squares(values: Floats, mean: float) -> float:
    """Return the sum of squared differences from a mean."""
    return float(((values - mean) ** 2).sum())
