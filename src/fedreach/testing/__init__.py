"""Checks for your own parts, and small federations for tests and examples.

``check_selection(MyPolicy())`` in a test, or ``fedreach verify my_policy.py:MyPolicy``, tries a part by the laws that
every part of its kind must keep, and says in words which one it breaks.

Laws of single methods name the paper and equation, or the "specification": the notes from which FedReach was built,
with numbers that were worked out by hand or by other programs before there was any code.
"""

from __future__ import annotations

from fedreach.testing.law import BrokenLaw
from fedreach.testing.trial import (
    check_allocation,
    check_label_statistics,
    check_measurement,
    check_participation,
    check_selection,
    check_server,
    check_solver,
    check_weighting,
)

__all__ = [
    "BrokenLaw",
    "check_allocation",
    "check_label_statistics",
    "check_measurement",
    "check_participation",
    "check_selection",
    "check_server",
    "check_solver",
    "check_weighting",
]
