"""One experiment for each value of some options, in the order in which they stand."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from fedreach.config.sections import Section


class Sweep(Section):
    """The option that is varied, one panel's horizontal axis.

    A step ``*`` of `key` stands for all methods, as in ``methods.*.selection.min_examples``. A recipe with training
    sweeps over options of methods only, so that all its runs make one comparison.
    """

    key: str
    values: Annotated[list[int | float], Field(min_length=2)]
    label: str  # of the axis, with its unit
    unit: Annotated[float, Field(gt=0)] = 1.0  # of the label, in the unit of the option


def expanded(key: str, methods: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a key stands for, of these methods."""
    yield from (key.replace("*", method, 1) for method in methods) if "*" in key else (key,)


def put(table: dict[str, Any], key: str, value: float) -> None:
    """Set an option of nested tables; a part that is only named becomes a table with its name."""
    *steps, last = key.split(".")
    for step in steps:
        inner = table.get(step, {})
        table[step] = {"name": inner} if isinstance(inner, str) else inner
        table = table[step]
    table[last] = value
