"""What the server logs, and a clock that does not wait, for the tests of Flower."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest


class SkippingClock:
    """A clock that jumps over every sleep. In one process a reply is there at once or never, so waiting is wasted."""

    def __init__(self) -> None:
        self.skipped_seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_seconds

    def sleep(self, seconds: float) -> None:
        self.skipped_seconds += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """The clock of a server in this process; servers in processes of their own have the real one."""
    pytest.importorskip("flwr")
    from fedreach.flower import clients, tables

    skipping = SkippingClock()
    for module in (clients, tables):
        monkeypatch.setattr(module, "time", skipping)
    return skipping


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is told by Flower's logger."""
    with caplog.at_level(logging.INFO, logger="flwr"):
        yield caplog
