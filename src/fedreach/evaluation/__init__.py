"""Who is evaluated, on what, and how sure the numbers are."""

from __future__ import annotations

from fedreach.evaluation.evaluator import Evaluator, Served, summarized
from fedreach.evaluation.populations import Group, Scores

__all__ = ["Evaluator", "Group", "Scores", "Served", "summarized"]
