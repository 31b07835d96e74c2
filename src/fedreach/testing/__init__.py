"""Checks for your own parts, and small federations for tests and examples.

``check_selection(MyPolicy())`` in a test, or ``fedreach verify my_policy.py:MyPolicy``, tries a part by the laws that
every part of its kind must keep, and says in words which one it breaks.

Laws of single methods name the paper and equation, or the "specification": the notes from which FedReach was built,
with numbers that were worked out by hand or by other programs before there was any code.
"""

from fedreach.testing.law import BrokenLaw as BrokenLaw
from fedreach.testing.trial import check_allocation as check_allocation
from fedreach.testing.trial import check_label_statistics as check_label_statistics
from fedreach.testing.trial import check_measurement as check_measurement
from fedreach.testing.trial import check_participation as check_participation
from fedreach.testing.trial import check_selection as check_selection
from fedreach.testing.trial import check_server as check_server
from fedreach.testing.trial import check_solver as check_solver
from fedreach.testing.trial import check_weighting as check_weighting
