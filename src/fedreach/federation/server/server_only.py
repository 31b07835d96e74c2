"""The server trains on its own data in every round."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.errors import ConfigError, require
from fedreach.federation.protocols import OwnData
from fedreach.federation.server.batches import batches
from fedreach.federation.values import State


@dataclass(frozen=True)
class ServerOnly:
    """Leave the clients alone: stochastic gradient descent on the server's data, some steps a round.

    The control of whatever uses the server's data: what they are worth by themselves. No model is sent. As it is, one
    step a round, it is `Safari` without clients' rounds.

    *With early stopping*, by `held_out` and `patience`, the server holds a share of its data out, the same in every
    round, and goes on training on the rest. The model is the one of the round with the lowest mean cross-entropy (of
    numbers, squared error) on what is held out; after `patience` rounds without a lower one nothing moves any more.
    Neither the test set nor any client's data are looked at. Use it where few examples would be learnt by heart in as
    many rounds as clients need. Let `steps` times `patience` be some hundred: on few held-out examples the loss often
    rises before it falls.

    When: always beside `safari` and `fine_tune`: what the server's data are worth alone.

    Args:
        rate: Step size, positive.
        batch_size: Examples of one step, at least 1; all that are trained on where there are fewer. Drawn anew for each
            step from a stream of the round.
        steps: Of a round, at least 1.
        held_out: Share of the server's data to stop by, in (0, 1), at least one example; None: train on all.
        patience: Rounds without a lower held-out loss after which training stops, at least 1; None: never.

    Raises:
        ConfigError: If a value is outside its range, or one of `held_out` and `patience` is given without the other; in
            round 1, if the server has too few examples to hold any out.

    Reference: arXiv 2405.02745, section 4: Algorithm 1 with q = 0. Early stopping is ours.

    Example:
        >>> ServerOnly(held_out=0.2, patience=5).trains(np.random.Generator(np.random.Philox(0)))
        True
    """

    rate: float = 0.1
    batch_size: int = 64
    steps: int = 1
    held_out: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        require(
            self,
            rate="(0, inf)",
            batch_size="[1, inf)",
            steps="[1, 1e9]",
            held_out="(0, 1)",
            patience="[1, inf)",
        )
        if (self.held_out is None) != (self.patience is None):
            raise ConfigError(
                "ServerOnly.held_out and patience go together: the share of the server's data to stop by, and how many "
                f"rounds to wait for a lower loss on it; got {self.held_out} and {self.patience}. Give both or neither."
            )

    def trains(self, rng: np.random.Generator) -> bool:
        return True

    def learn(self, params: Float32s, state: State, own: OwnData) -> tuple[Float32s, State]:
        """Return the model to hand out; with early stopping the state holds where training stands.

        That is `at`, the (d,) model after the round, `loss`, the lowest one so far on what is held out, and `waited`,
        the rounds since.
        """
        if self.held_out is None or self.patience is None:
            return self._trained(params, np.arange(own.examples), own), state
        if state and state["waited"][0] >= self.patience:
            return params, state
        train, held_out = own.split(self.held_out)
        lowest = state["loss"][0] if state else own.loss(params, held_out)
        waited = state["waited"][0] if state else 0
        at = self._trained(state["at"] if state else params, train, own)
        loss = own.loss(at, held_out)
        if loss < lowest:
            params, lowest, waited = at, loss, -1
        return params, {"at": at, "loss": np.array([lowest]), "waited": np.array([waited + 1])}

    def _trained(self, params: Float32s, index: Ints, own: OwnData) -> Float32s:
        for batch in batches(own.rng, index, self.batch_size, self.steps):
            params = own.step(params, batch, self.rate)
        return params

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return params, state
