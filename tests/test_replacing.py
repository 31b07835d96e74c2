"""Laws of values with some of their fields changed."""

from dataclasses import dataclass, replace
from functools import cached_property

import pytest

from fedreach._util.arrays import replace_fields


@dataclass(frozen=True, kw_only=True)
class Box:
    width: int
    height: int = 2

    @cached_property
    def area(self) -> int:
        return self.width * self.height


def test_it_is_what_dataclasses_replace_gives() -> None:
    box = Box(width=3)
    assert replace_fields(box, height=5) == replace(box, height=5)
    assert box == Box(width=3), "the value itself stays"


def test_what_was_worked_out_of_the_old_fields_is_not_kept() -> None:
    box = Box(width=3)
    assert box.area == 6
    assert replace_fields(box, height=5).area == 15


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Box has no field depth"):
        replace_fields(Box(width=3), depth=1)
