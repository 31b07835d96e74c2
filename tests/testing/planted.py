"""Careless parts, for tests: noted with the law that each must break, and judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedreach.testing import trial
from fedreach.testing.law import BrokenLaw, Subject, judge


def noting(faults: list[Any]) -> Callable[..., Callable[[type], type]]:
    """Return a decorator that puts a faulty class into the list, with the law that it must break."""

    def caught_by(law: str, kind: str | None = None, **options: Any) -> Callable[[type], type]:
        def note(cls: type) -> type:
            faults.append(pytest.param(kind or trial.kind_of(cls), cls, options, law, id=cls.__name__))
            return cls

        return note

    return caught_by


def check_caught(kind: str, cls: type, options: dict[str, Any], law: str) -> None:
    """Assert that of all laws the part breaks this one at least, and that the words about it are of use."""
    found = trial.verdict(kind, cls(**options), options=options)
    broken = {breach.law: breach for breach in found.broken}
    assert law in broken, f"broken were {sorted(broken)}"
    assert not found.skipped
    check_words(cls, broken[law])


def check_caught_alone(kind: str, cls: type, options: dict[str, Any], law: str) -> None:
    """Assert the same where judging by all laws would take long: by this one only."""
    part = cls(**options)
    (its,) = [each for each in trial.laws_of(kind, trial.like(kind, part)) if each.name == law]
    found = judge(Subject.of(kind, part), [its])
    assert found.broken, f"it keeps {law!r}"
    check_words(cls, found.broken[0])


def check_words(cls: type, breach: BrokenLaw) -> None:
    said = str(breach)
    assert said.startswith(f'{cls.__name__} breaks the law "{breach.law}": ')
    assert breach.happened
    assert "Traceback" not in said
