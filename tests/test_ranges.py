"""Ranges of options are said once, by `require`: what keeps a rule, what breaks it, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, check, require


@dataclass(frozen=True)
class Part:
    value: Any
    also: Any = 1
    perhaps: int | None = 3


@pytest.mark.parametrize(
    ("rule", "kept", "broken", "words"),
    [
        ("(0, inf)", [1e-300, 5, np.float32(0.5)], [0, -1, float("nan")], "positive"),
        ("(0, inf)", [], [float("inf")], "positive and finite"),
        ("(0, inf]", [float("inf")], [0.0], "positive"),
        ("[0, inf)", [0, -0.0, 3], [-1e-9], "not negative"),
        ("[1, inf)", [1, np.int64(7), 10**400], [0, 0.999], "at least 1"),
        ("[0.001, inf)", [0.001], [float("inf")], "at least 0.001 and finite"),
        ("(1, inf)", [1.5], [1], "in (1, inf)"),
        ("[0, 1)", [0, 0.5], [1, -0.1, float("nan"), float("inf")], "in [0, 1)"),
        ("(-300, 0)", [-174.0], [0, -300], "in (-300, 0)"),
        ("[1e-9, 1]", [1e-9, 1], [0, 1.1], "in [1e-9, 1]"),
        (("mean", "median"), ["mean", "median"], ["mode", 3, None, []], "'mean' or 'median'"),
        (("a", "b", "c"), ["c"], ["d"], "'a', 'b' or 'c'"),
        (("only",), ["only"], ["other"], "'only'"),
    ],
)
def test_a_rule_lets_in_what_keeps_it_and_says_what_it_is_to_the_rest(rule, kept, broken, words):
    for value in kept:
        require(Part(value), value=rule)
    for value in broken:
        with pytest.raises(ConfigError) as refused:
            require(Part(value), value=rule)
        got = value if isinstance(rule, str) else repr(value)
        assert str(refused.value) == f"Part.value must be {words}; got {got}."


@pytest.mark.parametrize("value", ["fast", [1.0], None, object()])
def test_what_is_no_number_lies_in_no_interval(value):
    with pytest.raises(ConfigError, match=r"Part\.value must be not negative; got "):
        require(Part(value), value="[0, inf]")


def test_none_is_right_only_where_the_annotation_names_it():
    require(Part(1, perhaps=None), value="[1, 2]", perhaps="[1, inf)")
    with pytest.raises(ConfigError, match=r"Part\.perhaps must be at least 1; got 0"):
        require(Part(1, perhaps=0), perhaps="[1, inf)")
    with pytest.raises(ConfigError, match=r"Part\.also must be at least 1; got None"):
        require(Part(1, also=None), also="[1, inf)")


def test_the_first_broken_rule_is_told_with_its_advice_and_the_nearest_name():
    with pytest.raises(ConfigError, match=r"^Part\.value must be positive; got 0\. Zero is off\.$"):
        require(Part(0, also=0), value="(0, inf): Zero is off.", also="[1, inf)")
    with pytest.raises(ConfigError, match=r"got 'medain'\. Did you mean 'median'\?$"):
        require(Part("medain"), value=("mean", "median"))


def test_a_subclass_is_called_by_its_own_name():
    class Mine(Part): ...

    with pytest.raises(ConfigError, match=r"^Mine\.value must be"):
        require(Mine(0), value="[1, inf)")


def test_an_argument_of_a_function_is_named_with_it():
    check("f", "delta", 0.5, "(0, 1)")
    for value in (0.0, 1, float("nan")):
        with pytest.raises(ConfigError, match=rf"^f: delta must be in \(0, 1\); got {value}\.$"):
            check("f", "delta", value, "(0, 1)")
