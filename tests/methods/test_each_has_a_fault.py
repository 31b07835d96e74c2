"""Checks of adaptation rules that no planted fault fails would prove nothing: each has one."""

from __future__ import annotations

from fedreach._util import registry

from . import test_planted_batchnorm, test_planted_few_labels, test_planted_few_shot, test_planted_rules
from .planted import checks_of_method

FAULTS = (
    *test_planted_batchnorm.FAULTS,
    *test_planted_few_labels.FAULTS,
    *test_planted_few_shot.FAULTS,
    *test_planted_rules.FAULTS,
)


def test_each_check_of_an_adaptation_rule_has_a_fault():
    names = {check.name for name in registry.table("adaptation") for check in checks_of_method("adaptation", name)}
    assert names == {fault.values[3] for fault in FAULTS}
