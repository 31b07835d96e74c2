"""What a model's answers are scored by.

``[evaluation] metrics = ["accuracy", "loss", "auroc", "my.py:recall"]``. Columns end in the metric's name, see
`fedreach.evaluation.Evaluator`.
"""

from fedreach.evaluation.metrics.absolute_error import MeanAbsoluteError as MeanAbsoluteError
from fedreach.evaluation.metrics.accuracy import Accuracy as Accuracy
from fedreach.evaluation.metrics.auroc import AUROC as AUROC
from fedreach.evaluation.metrics.balanced_accuracy import BalancedAccuracy as BalancedAccuracy
from fedreach.evaluation.metrics.base import FunctionMetric as FunctionMetric
from fedreach.evaluation.metrics.base import Metric as Metric
from fedreach.evaluation.metrics.base import further_metrics as further_metrics
from fedreach.evaluation.metrics.base import refuse_metrics as refuse_metrics
from fedreach.evaluation.metrics.base import value_of as value_of
from fedreach.evaluation.metrics.bound_disagreement import BoundDisagreement as BoundDisagreement
from fedreach.evaluation.metrics.calibration_error import Miscalibration as Miscalibration
from fedreach.evaluation.metrics.loss import MeanLoss as MeanLoss
from fedreach.evaluation.metrics.macro_f1 import MacroF1 as MacroF1
from fedreach.evaluation.metrics.perplexity import Perplexity as Perplexity
from fedreach.evaluation.metrics.r2 import R2 as R2
from fedreach.registry import NameTable

METRICS = NameTable(
    __name__,
    accuracy="accuracy:Accuracy",
    loss="loss:MeanLoss",
    log_loss="loss:MeanLoss",
    balanced_accuracy="balanced_accuracy:BalancedAccuracy",
    macro_f1="macro_f1:MacroF1",
    auroc="auroc:AUROC",
    bound_disagreement="bound_disagreement:BoundDisagreement",
    calibration_error="calibration_error:Miscalibration",
    perplexity="perplexity:Perplexity",
    mae="absolute_error:MeanAbsoluteError",
    r2="r2:R2",
)
