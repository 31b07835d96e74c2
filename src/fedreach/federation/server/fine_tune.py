"""The server goes on training on its own data after the clients."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.protocols import OwnData, ServerStep
from fedreach.federation.server.average import Average
from fedreach.federation.server.batches import batches, check_inner
from fedreach.federation.values import State

When = Literal["each_round", "end"]
PLAIN = Average()


@dataclass(frozen=True)
class FineTune:
    """Take steps of stochastic gradient descent on the server's data from the aggregated model.

    Clients train in every round, and `inner` takes the step. Then, E epochs or exactly `steps` times::

        x <- x - rate * gradient of the mean loss at x over a batch of the server's examples

    after each round, so that the clients begin from the tuned model, or once, after the last one. It costs no bytes.

    It is the control to `Safari` that spends the server's data beside the clients' rounds and not in their place: use
    it to see whether the coin is worth anything. At the end only it shows what the data are worth to a model that was
    trained without them.

    When: the server holds labelled data, and every round may use them.

    Args:
        inner: What the server does with the mean update.
        when: ``"each_round"`` or ``"end"``. By a run that `evaluation.patience` may end early, ``"end"`` is refused.
        rate: Step size, positive.
        batch_size: Examples of one step, at least 1; all of the server's where it holds fewer. Drawn anew for each
            step from a stream of the round.
        steps: Exactly so many, not negative; 0 is `inner` alone, bit for bit. None: as many as `epochs` make.
        epochs: Passes over the server's data, at least 1, used where `steps` is None; the last batch of a pass may be
            smaller.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

    Reference: a control of ours for arXiv 2405.02745, Algorithm 1, with both kinds of its rounds in one.

    Example:
        >>> [FineTune(when="end").tunes(number, 3) for number in (1, 2, 3)]
        [False, False, True]
    """

    inner: ServerStep = PLAIN
    when: When = "each_round"
    rate: float = 0.1
    batch_size: int = 64
    steps: int | None = None
    epochs: int = 1

    def __post_init__(self) -> None:
        check_inner(self, self.inner)
        require(
            self,
            when=get_args(When),
            rate="(0, inf)",
            batch_size="[1, inf)",
            steps="[0, 1e9]",
            epochs="[1, 1e9]",
        )

    def tunes(self, round_: int, rounds: int) -> bool:
        return self.steps != 0 and (self.when == "each_round" or round_ == rounds)

    def learn(self, params: Float32s, state: State, own: OwnData) -> tuple[Float32s, State]:
        for batch in batches(own.rng, np.arange(own.examples), self.batch_size, self.steps, self.epochs):
            params = own.step(params, batch, self.rate)
        return params, state

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return self.inner.apply(params, state, mean_update)
