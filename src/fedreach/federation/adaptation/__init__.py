"""Adaptation rules, by which an unseen client adapts the model before it predicts."""

from collections.abc import Mapping
from typing import Any

from fedreach.federation.adaptation.base import Unadapted as Unadapted
from fedreach.federation.adaptation.few_labels import FewLabels, FewShot
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BBSE, RLLS, BatchNormRefresh, OraclePrior

ADAPTATIONS: Mapping[str, Any] = {
    "none": Unadapted,
    "label_shift": LabelShift,
    "bbse": BBSE,
    "rlls": RLLS,
    "batchnorm": BatchNormRefresh,
    "few_labels": FewLabels,
    "few_shot": FewShot,
    "oracle_prior": OraclePrior,
}
