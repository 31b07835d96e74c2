"""The model of a finished run, whole: from raw images, tables or tokens to names of classes, here and elsewhere."""

from fedreach.trained.model import TrainedModel as TrainedModel
from fedreach.trained.saved import load as load
