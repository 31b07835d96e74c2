"""Who else is told of a run as it goes on: tools to look at experiments, and one's own.

A tracker is a `fedreach.runs.callbacks.Callback`. It is told of the whole run: rounds that earlier commands ran come
first, from the run folder, so that a run which was killed and gone on with leaves one record without gaps, and one that
gets its tracker late a whole one. It is handed copies, and one that fails is left out: no run depends on who looks on.
"""

from fedreach.registry import NameTable
from fedreach.runs.trackers.csv_file import CSV as CSV
from fedreach.runs.trackers.mlflow import MLflow as MLflow
from fedreach.runs.trackers.tensorboard import TensorBoard as TensorBoard

TRACKERS = NameTable(
    "fedreach.runs.trackers",
    tensorboard="tensorboard:TensorBoard",
    mlflow="mlflow:MLflow",
    csv="csv_file:CSV",
)
