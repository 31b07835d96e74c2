"""Many processes train one cohort: rank 0 decides and keeps all state, the others serve it.

The groups of clients are those of the inner engine, and only who trains them depends on the ranks. Each group's numbers
are computed by the same kernels on the same values wherever that is, and rank 0 puts them where they belong before
anything is summed. (Where groups depend on the number of ranks, clients do not depend on their groups.) So the number
of ranks changes no bit of a run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.engines.engine import EVALUATION_BATCH, Engine
from fedreach.engines.parallel.ranks import Ranks
from fedreach.engines.protocols import SAMPLES
from fedreach.engines.samples import Samples
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.values import LocalOutputs, LocalUpdates

FORGET = 0.5  # how much of what is known about the speed of the ranks is kept from round to round


class Distributed(Engine):
    """The engine of rank 0: it hands out the work of an inner engine over all ranks, itself included.

    Groups of clients go, the longest first, to the rank that would finish them first, judged by how fast the ranks
    trained in the rounds before. Evaluation is cut between batches. The other ranks `serve` an equal inner engine.

    Args:
        inner: Trains and evaluates on this rank; any engine. Whatever is asked for and is not told here, it answers.
        ranks: This process and the others, see `fedreach.engines.parallel.launch.joined`.
    """

    def __init__(self, inner: Engine, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        inner.at_a_time = inner.threads * ranks.size
        self._model: Float32s | None = None  # what all ranks hold
        self._examples, self._seconds = np.zeros(ranks.size), np.zeros(ranks.size)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def groups(self, ids: Ints) -> list[Ints]:
        """Return the inner engine's groups."""
        return self.inner.groups(ids)

    def train_group(self, *arguments: Any) -> tuple[Floats | list[float], Ints | list[int]]:
        """Train one group here."""
        return self.inner.train_group(*arguments)

    def train(
        self,
        broadcast: Float32s,
        ids: Ints,
        round_: int,
        rate: float,
        terms: Mapping[str, Float32s] = MappingProxyType({}),
    ) -> LocalUpdates:
        """Train each client of `ids` from the `broadcast` (d,) vector with step size `rate`."""
        groups, examples = self.inner.groups(ids), examples_of(self.inner.data.train.sizes[ids], self.inner.local)
        given = shared_out([examples[group].sum() for group in groups], self._speed())
        if not any(given[1:]):
            return self.inner.train(broadcast, ids, round_, rate, terms)
        shares = [[groups[i] for i in mine] for mine in given]
        rows = [np.concatenate([*share, np.empty(0, np.int64)]).astype(np.int64) for share in shares]
        work = [
            (ids[mine], [len(group) for group in share], round_, rate, {name: t[mine] for name, t in terms.items()})
            for mine, share in zip(rows, shares, strict=True)
        ]
        update = np.empty((len(ids), self.inner.layout.size), np.float32)
        loss, steps = np.empty(len(ids)), np.empty(len(ids), np.int64)
        for rank, (part, seconds) in enumerate(self._together(_train_share, broadcast, work)):
            mine = rows[rank]
            update[mine], loss[mine], steps[mine] = part[:3]
            self._learn(rank, examples[mine].sum(), seconds)
        return LocalUpdates(update, loss, steps, self.inner.layout.num_trainable)

    def predict(self, params: Float32s, samples: Samples, index: Ints) -> tuple[Bools, Float32s]:
        """Return, for each sample of `index`, whether the model is right and its loss in nats."""
        name = next((name for name in SAMPLES if getattr(self.inner, name) is samples), None)
        batches, size = -(-len(index) // EVALUATION_BATCH), self.ranks.size
        if name is None or batches < 2:
            return self.inner.predict(params, samples, index)
        cuts = [EVALUATION_BATCH * (batches * rank // size) for rank in range(1, size)]
        answers = self._together(_predict_share, params, [(name, part) for part in np.split(index, cuts)])
        right, loss = (np.concatenate(column) for column in zip(*answers, strict=True))
        return right, loss

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        """Return what the local models `broadcast + update` (k, d) say about their clients' training data."""
        rows = [np.array(mine, np.int64) for mine in shared_out(self.inner.data.train.sizes[ids], self._speed())]
        if not any(len(mine) for mine in rows[1:]):
            return self.inner.outputs(broadcast, update, ids, before=before)
        answers = self._together(_outputs_share, broadcast, [(update[mine], ids[mine], before) for mine in rows])
        told = dict(zip(np.concatenate(rows).tolist(), (output for share in answers for output in share), strict=True))
        return [told[row] for row in range(len(ids))]

    def server_step(self, params: Float32s, index: Ints, round_: int, rate: float) -> Float32s:
        """Return the (d,) move of one gradient step on these examples of the server's data, computed here."""
        return self.inner.server_step(params, index, round_, rate)

    def _together(self, work: Callable[..., Any], model: Float32s, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what `work` answers for each rank's share of it; the model is sent where the ranks hold another."""
        new = self._model is None or not np.array_equal(_bits(model), _bits(self._model))
        for rank, share in enumerate(shares):
            if rank:
                self.ranks.send((work, new, share), rank)
        if new:
            self._model = np.array(model, np.float32)
            self.ranks.broadcast(self._model)
        first = work(self.inner, self._model, *shares[0])
        return [first, *(self.ranks.receive(rank) for rank in range(1, self.ranks.size))]

    def _speed(self) -> Floats:
        """Return how fast each rank trains, in examples a second; one that has not trained yet as the mean."""
        known = self._seconds > 0
        if not known.any():
            return np.ones(self.ranks.size)
        speed = np.divide(self._examples, self._seconds, where=known, out=np.zeros(self.ranks.size))
        return np.where(known, speed, speed[known].mean())

    def _learn(self, rank: int, examples: float, seconds: float) -> None:
        if seconds:
            self._examples[rank] = FORGET * self._examples[rank] + examples
            self._seconds[rank] = FORGET * self._seconds[rank] + seconds


def serve(engine: Engine, ranks: Ranks) -> None:
    """Do what rank 0 hands out, until it says that the run is over.

    Raises:
        LostRankError: If rank 0 has gone.
    """
    model = np.empty(engine.layout.size, np.float32)
    while (handed := ranks.receive(0)) is not None:
        work, new, share = handed
        if new:
            ranks.broadcast(model)
        ranks.send(work(engine, model, *share), 0)


def _train_share(
    engine: Engine, model: Float32s, ids: Ints, sizes: list[int], round_: int, rate: float, terms: dict[str, Float32s]
) -> tuple[LocalUpdates, float]:
    """Train the groups of these `sizes`, which stand one after the other in `ids`; also return the seconds."""
    if not sizes:
        return LocalUpdates(np.empty((0, len(model)), np.float32), np.empty(0), np.empty(0, np.int64)), 0.0
    began = time.perf_counter()
    part = copy.copy(engine)
    groups = np.split(np.arange(len(ids)), np.cumsum(sizes)[:-1])
    vars(part)["groups"] = lambda ids: groups  # those of the whole cohort, not what the engine would make of a part
    return part.train(model, ids, round_, rate, terms), time.perf_counter() - began


def _predict_share(engine: Engine, model: Float32s, samples: str, index: Ints) -> tuple[Bools, Float32s]:
    if not len(index):
        return np.empty(0, np.bool_), np.empty(0, np.float32)
    return engine.predict(model, getattr(engine, samples), index)


def _outputs_share(engine: Engine, model: Float32s, update: Float32s, ids: Ints, before: bool) -> list[LocalOutputs]:
    return engine.outputs(model, update, ids, before=before) if len(ids) else []


def examples_of(sizes: Ints, local: LocalSGD) -> Floats:
    """Return about how many examples clients with so many go through in a round.

    Example:
        >>> examples_of(np.array([10, 100]), LocalSGD(batch_size=20, epochs=2))
        array([ 20., 200.])
        >>> examples_of(np.array([10, 100]), LocalSGD(batch_size=20, steps=3))
        array([30., 60.])
    """
    once = sizes.astype(np.float64)
    if local.steps is None:
        return local.epochs * once
    return local.steps * np.minimum(local.batch_size, once)


def shared_out(work: Sequence[float] | Ints, speed: Floats) -> list[list[int]]:
    """Return which pieces of work each rank does: the longest first, each on the rank that would be done with it first.

    Args:
        work: (g,) how much each piece is.
        speed: (ranks,) how much a rank does in a second.

    Example:
        >>> shared_out([3, 1, 2, 2], np.array([1.0, 1.0]))
        [[0, 1], [2, 3]]
        >>> shared_out([3, 1, 2, 2], np.array([3.0, 1.0]))
        [[0, 2, 1], [3]]
    """
    amounts = np.asarray(work, np.float64)
    given: list[list[int]] = [[] for _ in speed]
    load = np.zeros(len(speed))
    for piece in np.argsort(-amounts, kind="stable"):
        rank = int(np.argmin((load + amounts[piece]) / speed))
        load[rank] += amounts[piece]
        given[rank].append(int(piece))
    return given


def _bits(model: Float32s) -> Ints:
    """Return what a model is bit for bit: 0.0 equals -0.0, and nan does not equal itself."""
    bits: Ints = np.ascontiguousarray(model, np.float32).view(np.int32)
    return bits
