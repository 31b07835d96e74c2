"""In some rounds the server trains on its own data, in all others clients do."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.protocols import OwnData, ServerStep
from fedreach.federation.server.average import Average
from fedreach.federation.server.batches import batches, check_inner
from fedreach.federation.values import State

PLAIN = Average()


@dataclass(frozen=True)
class Safari:
    """Correct the clients' training by the server's own data, which also know of clients that never take part.

    For each round one number u is drawn uniformly from [0, 1). If u < `client_probability`, the round is like any
    other: clients train and `inner` takes the step. Otherwise no client is asked, and the server takes one step of
    stochastic gradient descent on its own data::

        x <- x - rate * gradient of the mean loss at x over `batch_size` of the server's examples

    The coin, the choice of clients, their batches and the server's batches have a random stream each, so that
    probability 1 gives the same numbers as `inner` alone and probability 0 those of `ServerOnly`.

    The server needs data: ``[server_data]`` in an experiment file, or ``server_examples`` of
    `fedreach.data.federated.federate`. A round of the server sends no model, so compare at equal bytes as well as at
    equal rounds, and with what the paper does not compare: the server's data alone (`ServerOnly`, with early stopping),
    and the same data after the clients' rounds instead of in their place (`FineTune`, `FedDF`).

    When: the server holds some labelled data, and many clients never train.

    Args:
        inner: What the server does in the clients' rounds.
        client_probability: q of the paper, in [0, 1]. The paper leaves it open, as its bound on q needs constants that
            nobody knows (`fedreach.theory.safari.largest_share`): try 0.5, 0.8 and 0.9.
        rate: Step size of the server, positive; the paper ties it to the clients' by rate = K * client rate / 2 for
            K local steps, which Theorem 4 needs and practice does not.
        batch_size: Examples of one server step, at least 1; all of the server's where it holds fewer.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

    Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (arXiv
    2405.02745), Algorithm 1. Its clients start at x_r (``x_t`` is a misprint) and run K steps, not K + 1; its mean over
    clients is ``weighting = "equal"``.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> sum(Safari(client_probability=0.8).trains(rng) for _ in range(1000)) / 1000
        0.2...
    """

    inner: ServerStep = PLAIN
    client_probability: float = 0.8
    rate: float = 0.1
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_inner(self, self.inner)
        require(self, client_probability="[0, 1]", rate="(0, inf)", batch_size="[1, inf)")

    def trains(self, rng: np.random.Generator) -> bool:
        return not rng.random() < self.client_probability

    def learn(self, params: Float32s, state: State, own: OwnData) -> tuple[Float32s, State]:
        (batch,) = batches(own.rng, np.arange(own.examples), self.batch_size, steps=1)
        return own.step(params, batch, self.rate), state

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return self.inner.apply(params, state, mean_update)
