"""How large the broadcast model's loss on a client's examples is, large ones counting more."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.errors import PartError
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import LocalOutputs


@dataclass(frozen=True)
class LossRMS:
    """Return sqrt((1/m) sum_i l_i^2), l_i the cross-entropy of the broadcast model on the client's example i, in nats.

    Of targets that are numbers l_i is the mean squared error.

    When: the selection `oort` asks for it; or in a part of your own.

    Reference: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
    Selection", OSDI 2021, eq. (2), where the losses are those that training meets; here they are of one model.

    Example:
        >>> even = np.zeros((2, 4), np.float32)  # log 4 each
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> round(LossRMS().measure(LocalOutputs(even, np.array([0, 1]), before=even), rng), 4)
        1.3863
    """

    wants_before: ClassVar[bool] = True
    minimum: ClassVar[float] = 0.0
    name: ClassVar[str] = "loss_rms"

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        if outputs.before is None:
            raise PartError("LossRMS must be handed the broadcast model's outputs; got none.")
        if outputs.labels.dtype.kind == "f":
            off = outputs.before.astype(np.float64) - outputs.labels
            return float(np.sqrt(np.mean(np.square(off).mean(axis=1) ** 2)))
        shares = log_softmax(outputs.before.astype(np.float64))
        return float(np.sqrt(np.mean(shares[np.arange(len(outputs.labels)), outputs.labels] ** 2)))
