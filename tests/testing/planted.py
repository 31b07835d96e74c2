"""Components with a mistake, for tests: each is noted with the check that it must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fedreach.testing.base import Check, CheckFailed, Subject
from fedreach.testing.verify import checks_of, kind_of


def noting(faults: list[Any]) -> Callable[..., Callable[[type], type]]:
    """Return a decorator that puts a faulty class into the list, with the check that it must fail.

    The first fault of each check belongs to the quick tests, further ones are marked `planted`.
    """

    def caught_by(check: str, kind: str | None = None, **options: Any) -> Callable[[type], type]:
        def note(cls: type) -> type:
            of = kind or kind_of(cls)
            is_further = any(fault.values[0] == of and fault.values[3] == check for fault in faults)
            marks = [pytest.mark.planted] if is_further else []
            faults.append(pytest.param(of, cls, options, check, id=f"{cls.__name__}-{check}", marks=marks))
            return cls

        return note

    return caught_by


def must_be_caught(kind: str, cls: type, options: Mapping[str, Any], check: str) -> None:
    """Assert that the component fails the check of its type with this name, in words that are of use."""
    must_fail([each for each in checks_of(kind) if each.name == check], kind, cls, options)


def must_fail(checks: Sequence[Check], kind: str, cls: type, options: Mapping[str, Any]) -> None:
    """Assert that the component fails one of these checks, in words that are of use."""
    assert checks, "there is no check of this name"
    subject = Subject.of(kind, cls(**options), options)
    failures = [failure for check in checks if (failure := check.failure_of(subject)) is not None]
    assert failures, f"it passes {checks[0].name!r}"
    must_have_words(cls, failures[0])


def must_have_words(cls: type, failure: CheckFailed) -> None:
    """Assert that a failure names the component and the check, and says what happened."""
    text = str(failure)
    assert text.startswith(f'{cls.__name__} fails the check "{failure.check}": ')
    assert failure.happened
    assert "Traceback" not in text
