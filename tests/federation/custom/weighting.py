"""A custom weighting: clients with varied labels count more."""

from dataclasses import dataclass

import numpy as np

import fedreach as fr


@dataclass(frozen=True)
class ByVariety(fr.Weighting):
    """Weigh clients by their number of examples and the exponential of their label entropy."""

    needs = ("label_entropy",)

    power: float = 0.5

    def raw(self, metrics):
        return metrics["num_examples"] ** self.power * np.exp(metrics["label_entropy"])

    def weights(self, state, results):
        raw = self.raw(results.metrics)
        return raw / raw.sum(), state
