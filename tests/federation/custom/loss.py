"""A custom loss: the focal loss of Lin et al. (2017)."""

from dataclasses import dataclass

import torch

import fedreach as fr


@dataclass(frozen=True)
class Focal(fr.Loss):
    """Cross-entropy times (1 - p)^gamma, p the probability of the true class."""

    needs_classes = True

    gamma: float = 2.0

    def per_example(self, outputs, targets):
        log_p = torch.log_softmax(outputs, dim=1).gather(1, targets[:, None])[:, 0]
        return -((1 - log_p.exp()) ** self.gamma) * log_p
