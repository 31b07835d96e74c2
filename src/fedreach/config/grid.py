"""Settings of some options: every combination of listed values, or so many drawn at random."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict

from fedreach.config.section import Positive, Section, Seed, Share
from fedreach.streams import generator

Setting = Mapping[str, Any]
"""Option -> value; options are written as for ``--set``, such as ``local.rate``."""

MOST = 1000  # settings
DIGITS = 4  # of a drawn number: enough, and few enough to be read and written again


class Range(Section):
    """What is drawn between two limits, both included: whole numbers where both are whole."""

    least: int | float
    """The lower limit."""
    most: int | float
    """The upper limit."""
    log: bool = False
    """Whether it is drawn evenly in the logarithm."""

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.least < self.most:
            raise ValueError(f"`least` must be below `most`; got {self.least} and {self.most}.")
        if self.log and self.least <= 0:
            raise ValueError(f"`least` must be above 0 where `log` is true; got {self.least}.")
        return self

    def drawn(self, rng: np.random.Generator) -> int | float:
        """Return a number from it."""
        whole = isinstance(self.least, int) and isinstance(self.most, int)
        low, high = (self.least - 0.5, self.most + 0.5) if whole else (self.least, self.most)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else float(rng.uniform(low, high))
        if whole:
            return min(max(round(value), int(self.least)), int(self.most))
        return min(max(float(f"{value:.{DIGITS}g}"), self.least), self.most)


Values = list[Any] | Range


class Grid(BaseModel):
    """Options with the values that they take; further keys than those here are options.

    Example:
        >>> grid = Grid.model_validate({"local.rate": [0.1, 0.2], "local.epochs": [1, 5]})
        >>> grid.settings()[:2]
        [{'local.rate': 0.1, 'local.epochs': 1}, {'local.rate': 0.1, 'local.epochs': 5}]
        >>> drawn = Grid.model_validate({"samples": 3, "local.rate": {"least": 0.01, "most": 1.0, "log": True}})
        >>> drawn.settings()
        [{'local.rate': 0.0958}, {'local.rate': 0.1543}, {'local.rate': 0.0164}]
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)

    samples: Positive | None = None
    """So many settings are drawn. Default: every combination."""
    seed: Seed = 0
    """Of the draw."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """Take ``local.rate``, which TOML reads as a table in a table, for the option of that name."""
        if not isinstance(value, dict):
            return value
        own = {key: inner for key, inner in value.items() if key in cls.model_fields}
        return own | dict(_options({key: inner for key, inner in value.items() if key not in own}))

    @pydantic.model_validator(mode="after")
    def _right(self) -> Self:
        if not self.values:
            raise ValueError('names no option. Say which values one takes, such as "local.rate" = [0.01, 0.1].')
        for key, values in self.values.items():
            if isinstance(values, Range) and self.samples is None:
                raise ValueError(f"{key} is a range, from which `samples` are drawn: add samples = 20, or list values.")
            if isinstance(values, list) and len({json.dumps(each, sort_keys=True) for each in values}) < len(values):
                raise ValueError(f"{key} must not repeat a value; got {values}.")
        if self.size > MOST:
            raise ValueError(f"makes {self.size} settings, and at most {MOST} are allowed. List fewer, or set samples.")
        return self

    @property
    def values(self) -> dict[str, Values]:
        """The values of each option."""
        return {key: _values(key, value) for key, value in (self.model_extra or {}).items()}

    @property
    def size(self) -> int:
        """How many settings there are, at most."""
        lists = [values for values in self.values.values() if isinstance(values, list)]
        return self.samples or math.prod(map(len, lists))

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings, the first option's value changing last; drawn ones without repetitions."""
        if self.samples is None:
            lists = [values for values in self.values.values() if isinstance(values, list)]
            return [dict(zip(self.values, some, strict=True)) for some in itertools.product(*lists)]
        rng, found = generator(self.seed, "sweep"), {}
        for _ in range(self.samples):
            setting = {
                key: values.drawn(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]
                for key, values in self.values.items()
            }
            found[json.dumps(setting, sort_keys=True)] = setting
        return [*found.values()]


class TuneSection(Grid):
    """What is chosen for each method with each seed, on data of its participants that it is not scored on."""

    validation: Share = 0.2
    """Share of each participant's training samples by which a setting is judged."""
    rounds: Positive | None = None
    """Of a run that tries a setting. Default: as in the comparison."""


def _options(table: Mapping[str, Any], prefix: str = "") -> Any:
    for key, inner in table.items():
        if isinstance(inner, dict) and not inner.keys() & Range.model_fields.keys():
            yield from _options(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _values(key: str, value: Any) -> Values:
    if isinstance(value, list) and value:
        return value
    if isinstance(value, dict):
        try:
            return Range.model_validate(value)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{key}: {where or 'range'}: {first['msg'].removeprefix('Value error, ')}") from None
    raise ValueError(
        f"{key} must list values, such as [0.01, 0.1], or be a range {{ least, most, log }}; got {value!r}."
    )


def in_words(setting: Setting) -> str:
    """Return a setting as people write it.

    Example:
        >>> in_words({"partition.alpha": 0.1, "method.selection": "full"})
        'partition.alpha = 0.1, method.selection = full'
    """
    return ", ".join(f"{key} = {value_in_words(value)}" for key, value in setting.items())


def value_in_words(value: Any) -> str:
    """Return a value as people write it: numbers as short as they are, words without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
