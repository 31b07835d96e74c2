"""What the server says, for the tests of Flower."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is told by Flower's logger."""
    with caplog.at_level(logging.INFO, logger="flwr"):
        yield caplog
