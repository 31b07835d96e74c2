"""Who is evaluated, on what, and how sure the numbers are."""

from fedreach.evaluation.evaluator import Evaluator as Evaluator
from fedreach.evaluation.evaluator import Served as Served
from fedreach.evaluation.evaluator import summarized as summarized
from fedreach.evaluation.populations import Group as Group
from fedreach.evaluation.populations import Scores as Scores
