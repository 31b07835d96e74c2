"""How the checks of a built-in method become tests: one for each method and check.

Checks name the paper and equation, or the "specification": the notes from which FedReach was built, with numbers that
were worked out by hand or by other programs before there was any code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fedreach._util import registry
from fedreach.testing.base import Check, Subject
from fedreach.testing.problems import ToyFederation, ToyRun
from fedreach.testing.verify import EXAMPLE_OPTIONS

MethodChecks = Mapping[str, Sequence[Check]]
"""Name of a built-in component -> what theory says only of it, and of those that inherit from it."""


def each_method(kind: str, method_checks: MethodChecks) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the parametrization of a test by (kind, name, check), for all methods that have checks."""
    table = registry.table(kind)
    cases = [
        pytest.param(kind, name, check, id=f"{name}-{check.name}")
        for name, cls in table.items()
        for check in dict.fromkeys(
            check for owner, checks in method_checks.items() if issubclass(cls, table[owner]) for check in checks
        )
    ]
    return pytest.mark.parametrize(("kind", "name", "check"), cases)


def must_pass(kind: str, name: str, check: Check) -> None:
    """Assert that the built-in component of this name passes the check."""
    options: Mapping[str, Any] = EXAMPLE_OPTIONS.get((kind, name), {})
    subject = Subject.of(kind, registry.table(kind)[name](**options), options, name)
    failure = check.failure_of(subject)
    assert failure is None, str(failure)


def choice(policy: Any, world: ToyFederation, seed: int = 0) -> list[int]:
    """Return the clients that a policy selects in round 1."""
    run = ToyRun(policy, world, seed)
    chosen: list[int] = run.plan(run.start())[1].selection.ids.tolist()
    return chosen
