"""What a client that never takes part does with the model before it predicts."""

from fedreach.federation.serving.plain import Plain as Plain
from fedreach.registry import NameTable

SERVINGS = NameTable(
    __name__,
    none="plain:Plain",
    label_shift="label_shift:LabelShift",
    bbse="bbse:BBSE",
    rlls="bbse:RLLS",
    batchnorm="batchnorm:BatchNormRefresh",
    few_labels="few_labels:FewLabels",
    few_shot="few_shot:FewShot",
    true_prior="true_prior:TruePrior",
)
