"""Many processes train one cohort: rank 0 decides and keeps all state, the others serve it.

The groups of clients are those of the inner engine, and only who trains them depends on the ranks. Each group's numbers
are computed by the same kernels on the same values wherever that is, and rank 0 puts them where they belong before
anything is summed. (Where groups depend on the number of ranks, clients do not depend on their groups.) So the number
of ranks changes no bit of a run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.engines.engine import TorchEngine, probed
from fedreach.engines.parallel.ranks import Ranks
from fedreach.engines.protocols import NO_TERMS, Engine
from fedreach.engines.trainer import EVALUATION_BATCH
from fedreach.evaluation.predictor import Split
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.values import LocalOutputs, LocalUpdates, Outputs

FURTHER = "the run goes on with another engine"
FORGET = 0.5  # how much of what is known about the speed of the ranks is kept from round to round


class DistributedEngine(Engine):
    """The engine of rank 0: it hands out the work of an inner engine over all ranks, itself included.

    Groups of clients go, the longest first, to the rank that would finish them first, judged by how fast the ranks
    trained in the rounds before. Evaluation is cut between batches. A weighted sum and steps of the server are
    computed here. The other ranks `serve` an equal inner engine.
    """

    def __init__(self, inner: TorchEngine, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self.name, self.task, self.layout, self.initial = inner.name, inner.task, inner.layout, inner.initial
        self.solver, self.local, self.num_trainable = inner.solver, inner.local, inner.num_trainable
        self._model: Float32s | None = None  # what all ranks hold
        self._examples, self._seconds = np.zeros(ranks.size), np.zeros(ranks.size)

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, rate: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        inner = self.inner
        groups, examples = (
            inner.groups(ids, self.ranks.size),
            examples_of(self.task.data.train.sizes_of(ids), self.local),
        )
        given = shared_out([examples[group].sum() for group in groups], self._speed())
        if not any(given[1:]):
            return inner.train_groups(broadcast, ids, groups, round_, rate, terms)
        shares = [[groups[i] for i in mine] for mine in given]
        rows = [np.concatenate([*share, np.empty(0, np.int64)]).astype(np.int64) for share in shares]
        work = [
            (ids[mine], [len(group) for group in share], round_, rate, {name: t[mine] for name, t in terms.items()})
            for mine, share in zip(rows, shares, strict=True)
        ]
        update = inner.workers.array((len(ids), self.layout.size), np.float32)  # which all its processes add up
        loss, steps, finite = np.empty(len(ids)), np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        for rank, (part, seconds) in enumerate(self._together(_train_share, broadcast, work)):
            mine = rows[rank]
            update[mine], loss[mine], steps[mine], finite[mine] = part.update, part.loss, part.steps, part.finite
            self._learn(rank, examples[mine].sum(), seconds)
        return LocalUpdates(update, loss, steps, self.num_trainable, finite)

    @property
    def note(self) -> str:
        return self.inner.note

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        return self.inner.constants

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        self.inner.start_from(constants)
        for rank in range(1, self.ranks.size):
            self.ranks.send((_start_from, False, (dict(constants),)), rank)
            self.ranks.receive(rank)

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        return self.inner.weighted_sum(weights, update)

    def server_step(self, params: Float32s, index: Ints, round_: int, rate: float, step: int = 0) -> Float32s:
        return self.inner.server_step(params, index, round_, rate, step)

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, rate: float) -> Float32s:
        return self.inner.distill_step(params, index, teacher, rate)

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        shares = self._batches(split, index)
        if shares is None:
            return self.inner.predict(params, split, index)
        right, loss = zip(*self._together(TorchEngine.predict, params, shares), strict=True)
        return np.concatenate(right), np.concatenate(loss)

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        shares = self._batches(split, index)
        if shares is None:
            return self.inner.logits(params, split, index)
        return np.concatenate(self._together(TorchEngine.logits, params, shares))

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        return self.inner.answers(params, split, index, inputs=inputs)

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        return probed(self, self.inner.trainer, params, ids, parts)

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        rows = [np.array(mine, np.int64) for mine in shared_out(self.task.data.train.sizes_of(ids), self._speed())]
        if not any(len(mine) for mine in rows[1:]):
            return self.inner.outputs(broadcast, update, ids, before=before)
        answers = self._together(_outputs_share, broadcast, [(update[mine], ids[mine], before) for mine in rows])
        outputs = (output for share in answers for output in share)
        of_row = dict(zip(np.concatenate(rows).tolist(), outputs, strict=True))
        return [of_row[row] for row in range(len(ids))]

    def _batches(self, split: Split, index: Ints) -> list[tuple[Split, Ints]] | None:
        """Return which examples each rank is asked about; None where there is nothing to share."""
        batches, size = -(-len(index) // EVALUATION_BATCH), self.ranks.size
        if batches < 2 or self.inner.trainer.behaviour.mixes:  # batches of one client each are not cut
            return None
        cuts = [EVALUATION_BATCH * (batches * rank // size) for rank in range(1, size)]
        return [(split, part) for part in np.split(index, cuts)]

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


def serve(engine: TorchEngine, ranks: Ranks) -> bool:
    """Do what rank 0 hands out, until it says that the run is over; a LostRankError if it is gone before.

    Return whether the run goes on with another engine.
    """
    model = np.empty(engine.layout.size, np.float32)
    while (handed := ranks.receive(0)) is not None:
        if handed == FURTHER:
            return True
        work, new, share = handed
        if new:
            ranks.broadcast(model)
        ranks.send(work(engine, model, *share), 0)
    return False


def _train_share(
    engine: TorchEngine,
    model: Float32s,
    ids: Ints,
    sizes: list[int],
    round_: int,
    rate: float,
    terms: dict[str, Float32s],
) -> tuple[LocalUpdates, float]:
    """Train the groups of these `sizes`, which stand one after the other in `ids`; also return the seconds."""
    began = time.perf_counter()
    groups = np.split(np.arange(len(ids)), np.cumsum(sizes)[:-1]) if sizes else []
    part = engine.train_groups(model, ids, groups, round_, rate, terms)
    return part, time.perf_counter() - began if sizes else 0.0


def _start_from(engine: TorchEngine, _: Float32s, constants: dict[str, AnyArray]) -> None:
    engine.start_from(constants)


def _outputs_share(
    engine: TorchEngine, model: Float32s, update: Float32s, ids: Ints, before: bool
) -> list[LocalOutputs]:
    return engine.outputs(model, update, ids, before=before)


def examples_of(sizes: Ints, local: LocalSGD) -> Floats:
    """Return about how many examples clients with so many go through in a round.

    Example:
        >>> examples_of(np.array([10, 100]), LocalSGD(batch_size=20, epochs=2))
        array([ 20., 200.])
        >>> examples_of(np.array([10, 110]), LocalSGD(batch_size=20, drop_last=True))
        array([ 10., 100.])
        >>> examples_of(np.array([10, 100]), LocalSGD(batch_size=20, steps=3))
        array([30., 60.])
    """
    if local.steps is None:
        return local.epochs * local.examples_per_epoch(sizes).astype(np.float64)
    return local.expected_steps(sizes) * np.minimum(local.batch_size, sizes)


def shared_out(work: Sequence[float] | Ints, speed: Floats) -> list[list[int]]:
    """Return which pieces of work each rank does: the longest first, each on the rank that would be done with it first.

    Pieces are `work` (g,) large, of which a rank does `speed` (ranks,) in a second.

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
    return np.ascontiguousarray(model, np.float32).view(np.int32)
