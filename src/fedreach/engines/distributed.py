"""Clients of a round on several machines (torch.distributed)."""

import os
import pickle
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, FedReachError, TrainingError
from fedreach.engines.engine import TorchEngine, probed
from fedreach.engines.protocols import NO_TERMS, Engine, Split
from fedreach.engines.trainer import EVALUATION_BATCH
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.types import LocalOutputs, LocalUpdates, Outputs

# -------------------- The processes of one run, as torchrun starts them, and values that go from one to another
# A value is pickled but for its large arrays, which travel as tensors. All processes are those of one user and believe
# each other, as everywhere in torch.distributed.

LARGE_BYTES = 4096  # smaller arrays are pickled: a message of their own costs more than the copy
T = TypeVar("T")


class LostRankError(TrainingError):
    """Another process of the run has gone."""


class Ranks:
    """The processes of one run; made by `fedreach.engines.distributed.join`.

    A failure to reach another rank is a `LostRankError`. This one is `rank` of `size`, and `local_rank` of the
    `local_size` on its machine; rank 0 decides and the others serve it.
    """

    def __init__(self, rank: int, size: int, local_rank: int = 0, local_size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.wire = torch.device("cpu")  # where tensors lie when they are sent

    def device(self, name: str) -> str:
        """Return the device on which this rank trains: of ``"cuda"``, one of its own, and NCCL carries the tensors.

        Any other name stands for itself: ``"cuda:0"`` is shared by all ranks of a machine.

        Raises:
            ConfigError: If this machine has fewer devices than ranks.

        Example:
            >>> Ranks(rank=1, size=2, local_rank=1).device("cpu")
            'cpu'
        """
        if name != "cuda" or not torch.cuda.is_available():
            return name
        if self.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"engine.device 'cuda' gives each rank on a machine a device of its own; there are {self.local_size} "
                f"ranks on this machine and {torch.cuda.device_count()} devices. Lower --nproc-per-node, or let the "
                "ranks share one device by --device cuda:0."
            )
        if dist.is_nccl_available():
            self.wire = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    def send(self, value: object, rank: int) -> None:
        """Send a value to another rank, and wait until it was received.

        Raises:
            LostRankError: If its process has ended.
        """
        for work, _ in self.post(value, rank):
            self._call(rank, work.wait)

    def post(self, value: object, rank: int) -> list[tuple[Any, Tensor]]:
        """Begin to send a value; return what is under way, which has to be kept until it arrived."""
        large: list[Tensor] = []

        def keep_in_pickle(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < LARGE_BYTES:
                return True
            large.append(_as_tensor(raw).to(self.wire))
            return False

        message = pickle.dumps(value, protocol=5, buffer_callback=keep_in_pickle)
        sizes = np.array([len(tensor) for tensor in large], np.int64).tobytes()
        tensors = [torch.tensor([len(sizes), len(message)]), _as_tensor(bytearray(sizes + message)), *large]
        return [(self._call(rank, dist.isend, tensor, rank), tensor) for tensor in tensors]

    def receive(self, rank: int) -> Any:
        """Return the value that another rank sends.

        Raises:
            LostRankError: If its process has ended.
            FedReachError: If it sends one, because it failed; the message then names the rank.
        """
        lengths = torch.empty(2, dtype=torch.int64)
        self._call(rank, dist.recv, lengths, rank)
        of_sizes, of_rest = lengths.tolist()
        packed = self._receive_bytes(of_sizes + of_rest, rank, torch.device("cpu")).tobytes()
        sizes = np.frombuffer(packed[:of_sizes], np.int64)
        buffers = [self._receive_bytes(int(size), rank, self.wire) for size in sizes]
        value = pickle.loads(packed[of_sizes:], buffers=buffers)
        if isinstance(value, FedReachError):
            raise type(value)(f"Rank {rank}: {value}")
        return value

    def broadcast(self, vector: Float32s) -> None:
        """Write rank 0's vector into that of every other rank; all of them have to call this."""
        tensor = torch.from_numpy(vector)
        sent = tensor.to(self.wire)
        self._call(0, dist.broadcast, sent, 0)
        if sent is not tensor:
            tensor.copy_(sent)

    def _receive_bytes(self, size: int, rank: int, wire: torch.device) -> np.ndarray[Any, np.dtype[np.uint8]]:
        tensor = torch.empty(size, dtype=torch.uint8, device=wire)
        self._call(rank, dist.recv, tensor, rank)
        return tensor.cpu().numpy()

    def _call(self, rank: int, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except RuntimeError as error:
            who = f"Rank {rank}" if self.rank == 0 and rank else "Another rank"
            raise LostRankError(
                f"{who} was lost: its process ended, or its machine cannot be reached. torchrun says what it knows. "
                "The same command goes on from the last checkpoint; torchrun --max-restarts 1 repeats it by itself."
            ) from error


def _as_tensor(raw: memoryview | bytearray) -> Tensor:
    with warnings.catch_warnings():
        # Memory may be read-only, and torch says so; what is sent is not written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(np.frombuffer(raw, np.uint8))


# -------------------- How the processes of a run find each other, and how they end together

SILENCE = timedelta(hours=2)  # no share of a round takes longer; a rank whose connection breaks is noticed at once
GRACE_SECONDS = 0.5  # from the moment its connections close until the process of rank 0 has ended


@contextmanager
def join() -> Iterator[Ranks]:
    """Join the other processes that torchrun started, until the block ends.

    When rank 0 leaves the block, the others, which are waiting for it, are told to end. Where it fails, it says why,
    and the others see its connections close and end silently with 1. Where another rank fails, rank 0 is told why.
    """
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise ConfigError(f"The environment variable {missing[0]} is missing. Start the ranks by torchrun.")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in variables)
    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store = _fresh_store(next(rendezvous("env://", timeout=SILENCE))[0], rank, size)
        backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=SILENCE)
    except RuntimeError as error:
        raise LostRankError(f"Rank {rank} of {size} does not find the others: {error}") from error
    ranks = Ranks(rank, size, local_rank, local_size)
    if rank == 0:
        for peer in range(1, size):
            ranks.receive(peer)  # while it connects it would not notice that this rank ends
        with _one_interrupt():
            yield ranks
        for peer in range(1, size):
            ranks.send(None, peer)
    else:
        # Ends a rank at once, wherever it is; rank 0 then sees it go and writes the checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            ranks.send("connected", 0)
            yield ranks
        except Exception as error:
            _end_after_rank_0(ranks, error)
    dist.destroy_process_group()


def _fresh_store(store: Store, rank: int, size: int) -> Store:
    """Return a part of the store that no process wrote to before.

    torchrun hands the store of ranks that died on to those that it starts in their place, with the addresses in it.
    """
    name = f"{socket.gethostname()} {os.getpid()} {time.time_ns()}"
    if rank == 0:
        for peer in range(1, size):
            store.delete_key(f"hello {peer}")  # of a rank that died; one that lives says it again
        for peer in range(1, size):
            store.set(f"join {store.get(f'hello {peer}').decode()}", name)
        return PrefixStore(name, store)
    while not store.check([f"join {name}"]):
        store.set(f"hello {rank}", name)
        time.sleep(0.02)
    return PrefixStore(store.get(f"join {name}").decode(), store)


def _end_after_rank_0(ranks: Ranks, error: Exception) -> NoReturn:
    """Tell rank 0 why, and end once it has ended: torchrun takes the first to fail for the cause."""
    if not isinstance(error, FedReachError):  # a mistake of ours: told with its place
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        error = TrainingError(f"{where}: {type(error).__name__}: {error}")
    with suppress(LostRankError):
        if not isinstance(error, LostRankError):
            _under_way = ranks.post(error, 0)
            while True:
                ranks.receive(0)  # what rank 0 has to say before it listens
    time.sleep(GRACE_SECONDS)
    os._exit(1)  # an ordinary exit would wait for connections to ranks that have gone


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Take the first SIGINT or SIGTERM as Ctrl-C and no other, which would cut off the checkpoint that it leads to.

    torchrun sends what it gets to all ranks once more, and SIGTERM where another rank failed.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(number: int, frame: Any) -> None:
        for signal_number in numbers:
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt

    after = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    except BaseException:
        after = [signal.SIG_IGN] * len(numbers)  # why this rank fails is still to be told
        raise
    finally:
        for number, handler in zip(numbers, after, strict=True):
            signal.signal(number, handler)


# -------------------- Many processes train one cohort: rank 0 decides and keeps all state, the others serve it
# The groups of clients are those of the inner engine, and only who trains them depends on the ranks. Each group's
# numbers
# are computed by the same kernels on the same values wherever that is, and rank 0 puts them where they belong before
# anything is summed. (Where groups depend on the number of ranks, clients do not depend on their groups.) So the number
# of ranks changes no bit of a run.

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
        group_indices = shared_out([examples[group].sum() for group in groups], self._speed())
        if not any(group_indices[1:]):
            return inner.train_groups(broadcast, ids, groups, round_, rate, terms)
        shares = [[groups[i] for i in indices] for indices in group_indices]
        rows = [np.concatenate([*share, np.empty(0, np.int64)]).astype(np.int64) for share in shares]
        work = [
            (
                ids[rank_rows],
                [len(group) for group in share],
                round_,
                rate,
                {name: t[rank_rows] for name, t in terms.items()},
            )
            for rank_rows, share in zip(rows, shares, strict=True)
        ]
        update = inner.workers.array((len(ids), self.layout.size), np.float32)  # which all its processes add up
        loss, steps, finite = np.empty(len(ids)), np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        for rank, (part, seconds) in enumerate(self._run_on_ranks(_train_share, broadcast, work)):
            rank_rows = rows[rank]
            update[rank_rows], loss[rank_rows], steps[rank_rows], finite[rank_rows] = (
                part.update,
                part.loss,
                part.steps,
                part.finite,
            )
            self._record_speed(rank, examples[rank_rows].sum(), seconds)
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
        right, loss = zip(*self._run_on_ranks(TorchEngine.predict, params, shares), strict=True)
        return np.concatenate(right), np.concatenate(loss)

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        shares = self._batches(split, index)
        if shares is None:
            return self.inner.logits(params, split, index)
        return np.concatenate(self._run_on_ranks(TorchEngine.logits, params, shares))

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        return self.inner.answers(params, split, index, inputs=inputs)

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        return probed(self, self.inner.trainer, params, ids, parts)

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        rows = [
            np.array(positions, np.int64) for positions in shared_out(self.task.data.train.sizes_of(ids), self._speed())
        ]
        if not any(len(rank_rows) for rank_rows in rows[1:]):
            return self.inner.outputs(broadcast, update, ids, before=before)
        answers = self._run_on_ranks(
            _outputs_share, broadcast, [(update[rank_rows], ids[rank_rows], before) for rank_rows in rows]
        )
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

    def _run_on_ranks(self, work: Callable[..., Any], model: Float32s, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
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
        has_trained = self._seconds > 0
        if not has_trained.any():
            return np.ones(self.ranks.size)
        speed = np.divide(self._examples, self._seconds, where=has_trained, out=np.zeros(self.ranks.size))
        return np.where(has_trained, speed, speed[has_trained].mean())

    def _record_speed(self, rank: int, examples: float, seconds: float) -> None:
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
    pieces: list[list[int]] = [[] for _ in speed]
    load = np.zeros(len(speed))
    for piece in np.argsort(-amounts, kind="stable"):
        rank = int(np.argmin((load + amounts[piece]) / speed))
        load[rank] += amounts[piece]
        pieces[rank].append(int(piece))
    return pieces


def _bits(model: Float32s) -> Ints:
    """Return what a model is bit for bit: 0.0 equals -0.0, and nan does not equal itself."""
    return np.ascontiguousarray(model, np.float32).view(np.int32)
