"""A column of a table and how it becomes inputs, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats
from fedreach.data.cells import LARGEST, Cells, Words, days_of
from fedreach.data.columns import Decimal, InputKind, Reading
from fedreach.errors import DataError
from fedreach.tables import visible

Kind = Literal["client", "label", "target", "group", InputKind, "left out", "dropped"]
NAMED: dict[Kind, str] = {"number": "numbers", "boolean": "true and false", "date": "dates", "category": "words"}
"""Kinds that become inputs, and what their cells hold."""
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
FEW = 6  # categories that are named where there may be many


@dataclass(frozen=True)
class InputColumn:
    """How a column of a table becomes inputs; or what it is else, such as the client of each row.

    A number x becomes (x - mean) / sd, and 0 where it is missing; so do true and false, as 1 and 0, and dates, as days
    since 1970. A word becomes one input for each category, 1 for its own and 0 for the others, and 0 everywhere if no
    participant has it.
    """

    name: str
    kind: Kind
    missing: int = 0  # rows of participants; where there are any, being missing is an input, too
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()
    why: str = ""  # it is no input
    odd: str = ""  # cells of participants that are none of its kind, and count as missing
    empty: tuple[str, ...] = ()  # what cells say that hold nothing, beside what they always may
    decimal: Decimal = "."

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each input that it becomes."""
        if self.kind not in NAMED:
            return ()
        names = [f"{self.name} = {category}" for category in self.categories] or [self.name]
        return (*names, f"{self.name} is missing") if self.missing else tuple(names)

    def raw(self, cells: Cells | None) -> Floats:
        """Return (n,) one number a row: the number itself, or the place of a word among the categories.

        What is missing, or of another kind, is nan, and a word that no participant has is -1.

        Raises:
            DataError: If no cell that holds something is of the column's kind.
        """
        if cells is not None:
            found = values_of(self.kind, cells, self.categories)
            if not (np.isnan(found).all() and held(cells).any()):
                return found
        raise DataError(f"table: column {self.name!r} must hold {NAMED[self.kind]}, as it did for those who trained.")

    def write(self, raw: Floats, inputs: Float32s) -> None:
        """Write the (n, f) inputs that the (n,) numbers of `raw` become.

        Raises:
            DataError: If a number is so far from the mean that float32 has none for it.
        """
        gone = np.isnan(raw)
        if self.kind == "category":
            end = len(self.categories)
            inputs[:, :end] = raw[:, None] == np.arange(end)
        else:
            scaled = np.where(gone, 0.0, (raw - self.mean) / self.sd)
            far = np.flatnonzero(np.abs(scaled) > LARGEST)
            if len(far):
                raise DataError(
                    f"table: column {self.name!r} holds {raw[far[0]]:g}, and participants {self.about}: that is too "
                    "far from their mean for float32. Leave the cell empty, or the row out, or drop the column."
                )
            inputs[:, 0] = scaled
        if self.missing:
            inputs[:, -1] = gone

    @property
    def reading(self) -> Reading:
        """How its cells are read."""
        return Reading(self.empty, self.decimal)

    @property
    def about(self) -> str:
        """What it is like, in words."""
        said = self.why
        if self.kind == "number":
            said = f"{self.mean:.4g} ± {self.sd:.4g}"
        if self.kind == "date":
            said = f"{self.shown(self.mean)} ± {self.sd:.4g} days"
        if self.kind == "boolean":
            said = f"{100 * self.mean:.3g}% true"
        if self.categories:
            said = ", ".join(self.categories[:FEW])
            said += f" and {len(self.categories) - FEW} more" * (len(self.categories) > FEW)
        missing = f", {self.missing} missing" * bool(self.missing)
        return visible(said) + missing + visible(f" ({self.odd})" if self.odd else "")

    def shown(self, value: float) -> str:
        """Return one of its numbers as people write it."""
        return f"{np.array([value]).astype('datetime64[D]')[0]}" if self.kind == "date" else f"{value:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; what is as always is left out."""
        scale = {} if self.kind not in NAMED or self.kind == "category" else {"mean": self.mean, "sd": self.sd}
        words = {"categories": list(self.categories), "why": self.why, "odd": self.odd, "empty": list(self.empty)}
        said = {"name": self.name, "kind": self.kind} | ({"missing": self.missing} if self.kind in NAMED else {})
        rest = {key: value for key, value in words.items() if value}
        return said | scale | rest | ({} if self.decimal == "." else {"decimal": self.decimal})

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        said: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in stored.items()}
        return cls(**said)

    def __str__(self) -> str:
        return f"{visible(self.name)}: {self.kind}" + f", {self.about}" * bool(self.about)


def held(cells: Cells) -> Bools:
    """Return (n,) whether a cell holds something."""
    numbers: Bools = ~np.isnan(cells.numbers)
    return numbers if cells.words is None else numbers | (cells.words.codes >= 0)


def values_of(kind: Kind, cells: Cells, categories: Sequence[str] = ()) -> Floats:
    """Return (n,) one number a row, nan for cells of another kind."""
    words = cells.words or Words((), np.full(len(cells), -1))
    if kind == "number":
        return cells.numbers
    if kind == "category":
        place: Mapping[str, float] = {category: float(j) for j, category in enumerate(categories)}
        levels = [place.get(level, -1.0) for level in words.levels]
    elif kind == "boolean":
        levels = [TRUTH.get(level.casefold(), np.nan) for level in words.levels]
    else:
        levels = days_of(words.levels).tolist()
    found: Floats = np.array([*levels, np.nan])[words.codes]
    if kind == "boolean":
        found = np.where((cells.numbers == 0) | (cells.numbers == 1), cells.numbers, found)
    return found
