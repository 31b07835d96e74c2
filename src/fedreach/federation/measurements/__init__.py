"""Numbers that clients compute on their own data after local training, and send with their report."""

from __future__ import annotations

from fedreach.federation.measurements.disagreement import Disagreement
from fedreach.federation.measurements.wlrc import WLRC

__all__ = ["WLRC", "Disagreement"]
