"""What server steps that learn from the server's own data share: their batches, and what they are not made of."""

from collections.abc import Iterator

import numpy as np

from fedreach.arrays import Ints
from fedreach.errors import ConfigError
from fedreach.federation.protocols import ServerTrains, ServerTunes


def batches(
    rng: np.random.Generator, index: Ints, batch_size: int, steps: int | None = None, epochs: int = 1
) -> Iterator[Ints]:
    """Yield which examples each step of a round sees, increasing.

    Args:
        rng: The round's stream.
        index: (s,) examples that are drawn from.
        batch_size: At most so many a step; all s where there are fewer.
        steps: How many, each drawn from all s without replacement; None: the steps of so many
        epochs: Passes over all s in random order. The last batch of a pass may be smaller.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> [len(batch) for batch in batches(rng, np.arange(7), 3, epochs=2)]
        [3, 3, 1, 3, 3, 1]
        >>> [len(batch) for batch in batches(rng, np.arange(7), 9, steps=2)]
        [7, 7]
    """
    if steps is not None:
        for _ in range(steps):
            yield np.sort(rng.choice(index, size=min(batch_size, len(index)), replace=False))
        return
    for _ in range(epochs):
        order = rng.permutation(index)
        for begin in range(0, len(order), batch_size):
            yield np.sort(order[begin : begin + batch_size])


def check_inner(part: object, inner: object) -> None:
    """Refuse a step that uses the server's data as the `inner` one of a part that does, too.

    Raises:
        ConfigError: If it does.
    """
    if isinstance(inner, ServerTrains | ServerTunes):
        raise ConfigError(
            f"{type(part).__name__}.inner must be the step of the clients' rounds; got {type(inner).__name__}, which "
            "trains on the server's data itself. Use one that does not, such as 'average'."
        )
