"""The server's model learns what the clients' models say together of the server's inputs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.protocols import OwnData, ServerStep
from fedreach.federation.server.average import Average
from fedreach.federation.server.batches import batches, check_inner
from fedreach.federation.values import State

PLAIN = Average()


@dataclass(frozen=True)
class FedDF:
    """Distil the mean of the clients' logits into the averaged model, on the server's inputs without their labels.

    Clients train in every round, and `inner` takes the step. From there on, `steps` times::

        x <- x - rate * gradient at x, over a batch, of KL(softmax(1/r sum_k f(x_k)) || softmax(f(x)))

    with the logits f and the local models x_k of the r clients whose reports count, each as much as any other (there,
    AVGLOGITS, at temperature 1). With several models, one a cluster, each is taught by those of its clients that took
    part in the round. Where all x_k are x, it stays; so it does, with equal weights, where the model is linear in its
    parameters, as the mean of linear models is their ensemble.

    Use it where the server has inputs like the clients' and no labels (write any, such as 0), and clients' models
    differ so much that their mean is worse than their vote. Against `FineTune` it shows what the labels are worth. It
    reads single clients' updates, and so does not go with secure sums; it runs each local model once over the inputs.

    The paper's experiments take Adam with a rate of 1e-3 that falls as a cosine, and stop early by labels that the
    server has; here it is the plain gradient step of its eq. 1, without labels. The authors' student has dropout and
    BatchNorm in training mode; here both rest, as in the teachers, so that a teacher like it teaches it nothing.

    When: the server holds inputs without labels.

    Args:
        inner: What the server does with the mean update; the student starts there.
        rate: Step size, positive.
        batch_size: Inputs of one step, at least 1; all of the server's where it holds fewer. Drawn anew for each step
            from a stream of the round. The paper has 128.
        steps: Exactly so many, not negative; 0 is `inner` alone, bit for bit. The paper has 10 000.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

    Reference: Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning" (NeurIPS
    2020, arXiv 2006.07242), Algorithm 1 and eq. 1.

    Example:
        >>> FedDF(steps=5).tunes(1, 10), FedDF(steps=0).tunes(1, 10)
        (True, False)
    """

    reads_updates: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True  # a softmax of what is predicted

    inner: ServerStep = PLAIN
    rate: float = 0.1
    batch_size: int = 64
    steps: int = 20

    def __post_init__(self) -> None:
        check_inner(self, self.inner)
        require(self, rate="(0, inf)", batch_size="[1, inf)", steps="[0, 1e9]")

    def tunes(self, round_: int, rounds: int) -> bool:
        return self.steps > 0

    def learn(self, params: Float32s, state: State, own: OwnData) -> tuple[Float32s, State]:
        drawn = list(batches(own.rng, np.arange(own.examples), self.batch_size, self.steps))
        seen = np.unique(np.concatenate(drawn))
        logits, clients = np.zeros(()), 0
        for local in own.local_models():
            logits, clients = logits + own.logits(local, seen), clients + 1  # in float64
        if clients == 0:
            return params, state
        teacher = (logits / clients).astype(np.float32)
        for batch in drawn:
            params = own.distill(params, batch, teacher[np.searchsorted(seen, batch)], self.rate)
        return params, state

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return self.inner.apply(params, state, mean_update)
