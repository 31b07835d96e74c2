"""Checks for custom components, and small federations for tests and examples.

Call ``check(MyPolicy())`` in a test, or run ``fedreach verify my_policy.py:MyPolicy``. Both run the checks that every
component of the type must pass, and report failures with their inputs.
"""

from fedreach.testing.base import CheckFailed as CheckFailed
from fedreach.testing.verify import check as check
