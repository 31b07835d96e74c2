"""A check that no planted fault fails would prove nothing: each has one."""

from __future__ import annotations

import pytest

from fedreach._util import registry
from fedreach.testing.base import options_define_the_component
from fedreach.testing.verify import checks_of

from . import (
    test_planted_adaptation,
    test_planted_allocation,
    test_planted_attack,
    test_planted_loss,
    test_planted_selection,
    test_planted_server,
    test_planted_solver,
    test_planted_weighting,
)

FAULTS = [
    fault
    for module in (
        test_planted_allocation,
        test_planted_attack,
        test_planted_loss,
        test_planted_selection,
        test_planted_server,
        test_planted_adaptation,
        test_planted_solver,
        test_planted_weighting,
    )
    for fault in module.FAULTS
]
ELSEWHERE = {("label_statistics", "entropies in range")}  # a fault below the statistics, in test_planted_server.py


@pytest.mark.parametrize("kind", registry.VERIFIED)
def test_each_check_of_a_type_has_a_fault(kind):
    names = {check.name for check in checks_of(kind) if check is not options_define_the_component}
    caught = {fault.values[3] for fault in FAULTS if fault.values[0] == kind}
    caught |= {name for of, name in ELSEWHERE if of == kind}
    assert names <= caught
    assert any(fault.values[3] == options_define_the_component.name for fault in FAULTS)
