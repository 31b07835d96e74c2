"""Faults of the kinds that once survived all quick tests: each, planted into a copy of the sources, fails its test."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from .benchmarked import benchmarks

with benchmarks("planted", folders=("faults",)) as (planted,):
    FAULTS: dict[str, Any] = {fault.name: fault for fault in planted.FAULTS}
SURVIVORS = [name for name in FAULTS if name.partition(": ")[0] in planted.SURVIVORS]


def test_every_kind_of_fault_has_edits_that_still_fit_the_sources_and_tests_that_exist() -> None:
    assert len(FAULTS) == len(planted.FAULTS)
    assert min(len(faults) for faults in planted.SURVIVORS.values()) >= 2
    for fault in FAULTS.values():
        text = (planted.ROOT / planted.SOURCES / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault.name
        ast.parse(text.replace(fault.old, fault.new))  # a file that cannot be read would fail any test
        for tests in fault.tests:
            file, _, name = tests.partition(" ")[0].partition("::")
            assert f"def {name}" in (planted.ROOT / "tests" / file).read_text(encoding="utf-8"), fault.name


@pytest.mark.planted
@pytest.mark.parametrize("name", SURVIVORS)
def test_the_test_of_a_fault_fails_where_it_is_planted(name: str) -> None:
    assert planted.catchers(FAULTS[name])
