"""Checks for custom components, and small federations for tests and examples.

``check(MyPolicy())`` in a test, or ``fedreach verify my_policy.py:MyPolicy``, runs the checks that every component of a
type must pass, and describes the one that fails.
"""

from fedreach.testing.base import CheckFailed as CheckFailed
from fedreach.testing.verify import check as check
