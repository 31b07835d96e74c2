"""What may be said of a table's columns: which are no inputs, of what kind they are, and what their cells mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, TypedDict, get_args

from fedreach.errors import ConfigError, nearest

InputKind = Literal["number", "boolean", "date", "category"]
KINDS: tuple[InputKind, ...] = get_args(InputKind)
EMPTY = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Texts that say that a cell holds nothing, in any table."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
NUMBERS_SHARE = 0.9
"""Share of a column's cells that are numbers, or dates, from which on the column is one of these."""
Decimal = Literal[".", ","]


class ColumnOptions(TypedDict, total=False):
    """What ``[data.columns]`` holds, and the argument `columns` of `FederatedData.from_frame`.

    Example:
        >>> ColumnOptions(drop=["insurer"], category=["postcode"], missing=["?", -9], decimal=",")
        {'drop': ['insurer'], 'category': ['postcode'], 'missing': ['?', -9], 'decimal': ','}
    """

    drop: Sequence[str]  # columns that are no inputs
    category: Sequence[str]  # columns of categories, however many there are
    number: Sequence[str]  # columns of numbers; cells that are none count as missing
    date: Sequence[str]  # columns of dates, likewise
    boolean: Sequence[str]  # columns of true, yes or 1 and false, no or 0, likewise
    missing: Sequence[str | float]  # what a cell says that holds nothing, beside `EMPTY`
    decimal: Decimal  # what stands before the decimals of numbers in texts


class Reading(NamedTuple):
    """How the cells of a column are read."""

    missing: tuple[str, ...] = ()
    decimal: Decimal = "."

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """The missing words that are numbers: -9 means -9.0, too."""
        return tuple(float(word) for word in self.missing if re.match(NUMBER, word))

    def is_missing(self, text: str) -> bool:
        """Return whether a text says that its cell holds nothing.

        Example:
            >>> reading = Reading(("?", "-9"))
            >>> [reading.is_missing(text) for text in ("NA", " ?", "-9.0", "9")]
            [True, True, True, False]
        """
        plain = text.strip()
        if plain in EMPTY or plain in self.missing:
            return True
        return bool(self.missing and re.match(NUMBER, plain)) and float(plain) in self.missing_numbers


AS_USUAL = Reading()


@dataclass(frozen=True)
class ColumnRules:
    """`ColumnOptions`, checked against a table.

    Example:
        >>> rules = ColumnRules.of({"drop": "insurer", "missing": [-9]}, ["age", "insurer", "ill"], {"ill": "label"})
        >>> rules.drop, rules.reading
        (('insurer',), Reading(missing=('-9',), decimal='.'))
    """

    drop: tuple[str, ...] = ()
    kinds: Mapping[str, InputKind] = field(default_factory=dict)  # by column
    reading: Reading = AS_USUAL

    @classmethod
    def of(cls, given: Any, names: Sequence[str], taken: Mapping[str, str], where: str = "columns") -> Self:
        """Check what is said of the columns of a table.

        Args:
            given: `ColumnOptions`, or None.
            names: Of the table's columns.
            taken: Columns that are no inputs anyway, and what they are: ``"client"``, ``"label"``, ``"target"``.
            where: What `given` is called, for messages.

        Raises:
            ConfigError: If a key, a column or a value cannot be meant.
        """
        given = {} if given is None else given
        known = tuple(ColumnOptions.__annotations__)
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}: must be a table with the keys {', '.join(known)}; got {given!r}.")
        for key in given:
            if key not in known:
                raise ConfigError(f"{where}.{key}: unknown key.{nearest(str(key), known)}")
        seen: dict[str, str] = {}
        for key in ("drop", *KINDS):
            for name in _texts(f"{where}.{key}", "columns", given.get(key, ())):
                if name not in names:
                    raise ConfigError(f"{where}.{key}: there is no column {name!r}.{nearest(name, names)}")
                if name in taken:
                    raise ConfigError(f"{where}.{key}: {name!r} is the {taken[name]}, and no input anyway. Remove it.")
                if name in seen:
                    raise ConfigError(f"{where}.{key}: {name!r} is in {where}.{seen[name]} already. Name it once.")
                seen[name] = key
        decimal = given.get("decimal", ".")
        if decimal not in get_args(Decimal):
            raise ConfigError(f'{where}.decimal: must be "." or ","; got {decimal!r}.')
        kinds: dict[str, InputKind] = {name: key for name, key in seen.items() if key in KINDS}
        missing = _texts(f"{where}.missing", "words or numbers", given.get("missing", ()), numbers=True)
        drop = tuple(name for name in names if seen.get(name) == "drop")
        return cls(drop, kinds, Reading(tuple(missing), decimal))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self) | {"reading": list(self.reading)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        missing, decimal = stored["reading"]
        return cls(tuple(stored["drop"]), dict(stored["kinds"]), Reading(tuple(missing), decimal))


NO_RULES = ColumnRules()


def _texts(where: str, what: str, given: Any, *, numbers: bool = False) -> list[str]:
    """Return a list of texts; a single one may be given without the list."""
    found = [given] if isinstance(given, str | Real) else given
    if not isinstance(found, Iterable) or isinstance(found, Mapping | bytes):
        raise ConfigError(f"{where}: must be a list of {what}; got {given!r}.")
    found = list(found)
    for each in found:
        is_number = numbers and not isinstance(each, bool) and isinstance(each, Real) and math.isfinite(each)
        if not (isinstance(each, str) or is_number):
            raise ConfigError(f"{where}: must be a list of {what}; got {each!r} in it.")
    return [each.strip() if numbers and isinstance(each, str) else str(each) for each in found]
