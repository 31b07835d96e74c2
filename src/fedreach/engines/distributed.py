"""Clients of a round on several machines (torch.distributed)."""

import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]  # torch does not list it

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, FedReachError, TrainingError
from fedreach.engines.batches import examples_per_round
from fedreach.engines.engine import TorchEngine
from fedreach.engines.protocols import NO_TERMS, Split
from fedreach.engines.trainer import EVALUATION_BATCH
from fedreach.federation.types import LocalOutputs, LocalUpdates

# -------------------- The processes of one run, and messages between them
# Values are pickled. All processes belong to one user and trust each other, as always in torch.distributed.

T = TypeVar("T")


class LostRankError(TrainingError):
    """Another process of the run was lost."""


class Ranks:
    """The processes of one run, as `join` returns them.

    This process is `rank` of `size`, and `local_rank` of the `local_size` on its machine. Rank 0 decides, and the
    others do what it requests. A failure to reach another rank raises `LostRankError`.
    """

    def __init__(self, rank: int, size: int, local_rank: int = 0, local_size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size

    def device(self, name: str) -> str:
        """Return the device on which this rank trains.

        ``"cuda"`` gives each rank of a machine its own device. Any other name is used as it is: all ranks of a machine
        share ``"cuda:0"``.

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
        """Start to send a value; return the pending operations, which must be kept until the value has arrived."""
        message = torch.frombuffer(bytearray(pickle.dumps(value, protocol=5)), dtype=torch.uint8)
        return [(self._call(rank, dist.isend, part, rank), part) for part in (torch.tensor([len(message)]), message)]

    def receive(self, rank: int) -> Any:
        """Return the value that another rank sends.

        Raises:
            LostRankError: If its process has ended.
            FedReachError: If the rank failed and sent its error; the message names the rank.
        """
        size = torch.empty(1, dtype=torch.int64)
        self._call(rank, dist.recv, size, rank)
        message = torch.empty(int(size), dtype=torch.uint8)
        self._call(rank, dist.recv, message, rank)
        value = pickle.loads(message.numpy().tobytes())
        if isinstance(value, FedReachError):
            raise type(value)(f"Rank {rank}: {value}")
        return value

    def broadcast(self, vector: Float32s) -> None:
        """Write rank 0's vector into that of every other rank. All ranks must call this."""
        self._call(0, dist.broadcast, torch.from_numpy(vector), 0)

    def _call(self, rank: int, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except RuntimeError as error:
            who = f"Rank {rank}" if self.rank == 0 and rank else "Another rank"
            raise LostRankError(
                f"{who} was lost: its process ended, or its machine cannot be reached. torchrun says what it knows. "
                "The same command goes on from the last checkpoint; torchrun --max-restarts 1 repeats it by itself."
            ) from error


# -------------------- Joining and ending the processes of a run

RANK_TIMEOUT = timedelta(hours=2)  # longest share of a round; a broken connection is noticed at once
GRACE_SECONDS = 0.5  # from the end of rank 0's connections to the end of its process


@contextmanager
def join() -> Iterator[Ranks]:
    """Join the other processes that torchrun started, until the block ends.

    When rank 0 leaves the block, it tells the waiting ranks to end. If rank 0 fails, it reports why; the others see its
    connections close and exit with status 1, without a message. If another rank fails, it sends rank 0 the error.
    """
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise ConfigError(f"The environment variable {missing[0]} is missing. Start the ranks by torchrun.")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in variables)
    try:
        store = _fresh_store(next(rendezvous("env://", timeout=RANK_TIMEOUT))[0], rank, size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=RANK_TIMEOUT)
    except RuntimeError as error:
        raise LostRankError(f"Rank {rank} of {size} does not find the others: {error}") from error
    ranks = Ranks(rank, size, local_rank, local_size)
    if rank == 0:
        for peer in range(1, size):
            ranks.receive(peer)  # a rank that is still connecting would not notice that this rank ends
        with _one_interrupt():
            yield ranks
        for peer in range(1, size):
            ranks.send(None, peer)
    else:
        # Ctrl-C ends this rank at once. Rank 0 notices it and writes the checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            ranks.send("connected", 0)
            yield ranks
        except Exception as error:
            _end_after_rank_0(ranks, error)
    dist.destroy_process_group()


def _fresh_store(store: Store, rank: int, size: int) -> Store:
    """Return a part of the store that no process has written to.

    When ranks died, torchrun gives their store, with their addresses, to the ranks that it starts in their place.
    """
    name = f"{socket.gethostname()} {os.getpid()} {time.time_ns()}"
    if rank == 0:
        for peer in range(1, size):
            store.delete_key(f"hello {peer}")  # of a rank that died; a running rank writes it again
        for peer in range(1, size):
            store.set(f"join {store.get(f'hello {peer}').decode()}", name)
        return PrefixStore(name, store)
    while not store.check([f"join {name}"]):
        store.set(f"hello {rank}", name)
        time.sleep(0.02)
    return PrefixStore(store.get(f"join {name}").decode(), store)


def _end_after_rank_0(ranks: Ranks, error: Exception) -> NoReturn:
    """Send rank 0 the error, and end after rank 0: torchrun reports the first rank to fail as the cause."""
    if not isinstance(error, FedReachError):  # a bug in FedReach: add the line
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        error = TrainingError(f"{where}: {type(error).__name__}: {error}")
    with suppress(LostRankError):
        if not isinstance(error, LostRankError):
            _under_way = ranks.post(error, 0)
            while True:
                ranks.receive(0)  # messages that rank 0 sends before it reads the error
    time.sleep(GRACE_SECONDS)
    os._exit(1)  # an ordinary exit would wait for connections to lost ranks


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Treat the first SIGINT or SIGTERM as Ctrl-C and ignore later ones, which would interrupt the checkpoint.

    torchrun repeats signals to all ranks, and sends SIGTERM if another rank failed.
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
        after = [signal.SIG_IGN] * len(numbers)  # this rank must still report why it fails
        raise
    finally:
        for number, handler in zip(numbers, after, strict=True):
            signal.signal(number, handler)


# -------------------- One cohort on many processes: rank 0 decides and keeps all state
# The groups of clients are those of the inner engine; only the assignment of groups to ranks depends on the ranks. Each
# group is computed by the same kernels on the same values on any rank, and rank 0 orders the results before it sums
# them. (Where groups depend on the number of ranks, a client's result does not depend on its group.) So the number of
# ranks changes no bit of a run.

SWITCH_ENGINE = "the run goes on with another engine"
SPEED_DECAY = 0.5  # decay per round of the measured speed of ranks


class DistributedEngine(TorchEngine):
    """The engine of rank 0: it distributes the work of an engine over all ranks, including itself.

    Groups of clients are assigned, the longest first, to the rank that is expected to finish them first, by the speed
    of the ranks in earlier rounds. Evaluation is split between batches. Rank 0 computes weighted sums and server steps.
    The other ranks `serve` an equal engine.
    """

    def __init__(self, engine: TorchEngine, ranks: Ranks) -> None:
        vars(self).update(vars(engine))
        self.ranks = ranks
        self._model: Float32s | None = None  # the model that all ranks hold
        self._examples, self._seconds = np.zeros(ranks.size), np.zeros(ranks.size)

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, lr: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        groups = self.groups(ids, self.ranks.size)
        examples = examples_per_round(self.task.data.train.sizes_of(ids), self.local)
        group_indices = assign_work([examples[group].sum() for group in groups], self._speed())
        if not any(group_indices[1:]):
            return self.train_groups(broadcast, ids, groups, round_, lr, terms)
        shares = [[groups[i] for i in indices] for indices in group_indices]
        rows = [np.concatenate([*share, np.empty(0, np.int64)]).astype(np.int64) for share in shares]
        work = []
        for rank_rows, share in zip(rows, shares, strict=True):
            rank_terms = {name: values[rank_rows] for name, values in terms.items()}
            work.append((ids[rank_rows], [len(group) for group in share], round_, lr, rank_terms))
        update = self.workers.array((len(ids), self.layout.size), np.float32)  # shared by its processes for the sum
        loss, steps, finite = np.empty(len(ids)), np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        for rank, (part, seconds) in enumerate(self._run_on_ranks(_train_share, broadcast, work)):
            rank_rows = rows[rank]
            update[rank_rows], loss[rank_rows] = part.update, part.loss
            steps[rank_rows], finite[rank_rows] = part.steps, part.finite
            if seconds:
                self._examples[rank] = SPEED_DECAY * self._examples[rank] + examples[rank_rows].sum()
                self._seconds[rank] = SPEED_DECAY * self._seconds[rank] + seconds
        return LocalUpdates(update, loss, steps, self.num_trainable, finite)

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        self._run_on_ranks(_start_from, self.initial, [(dict(constants),)] * self.ranks.size)

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        shares = self._batches(split, index)
        if shares is None:
            return super().predict(params, split, index)
        right, loss = zip(*self._run_on_ranks(TorchEngine.predict, params, shares), strict=True)
        return np.concatenate(right), np.concatenate(loss)

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        shares = self._batches(split, index)
        if shares is None:
            return super().logits(params, split, index)
        return np.concatenate(self._run_on_ranks(TorchEngine.logits, params, shares))

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        positions = assign_work(self.task.data.train.sizes_of(ids), self._speed())
        rows = [np.array(rank_positions, np.int64) for rank_positions in positions]
        if not any(len(rank_rows) for rank_rows in rows[1:]):
            return super().outputs(broadcast, update, ids, before=before)
        shares = [(update[rank_rows], ids[rank_rows], before) for rank_rows in rows]
        answers = self._run_on_ranks(_outputs_share, broadcast, shares)
        outputs = (output for share in answers for output in share)
        of_row = dict(zip(np.concatenate(rows).tolist(), outputs, strict=True))
        return [of_row[row] for row in range(len(ids))]

    def _batches(self, split: Split, index: Ints) -> list[tuple[Split, Ints]] | None:
        """Return the examples of each rank, or None if there are too few to share."""
        batches, size = -(-len(index) // EVALUATION_BATCH), self.ranks.size
        if batches < 2 or self.trainer.behaviour.mixes:  # batches of one client each are not cut
            return None
        cuts = [EVALUATION_BATCH * (batches * rank // size) for rank in range(1, size)]
        return [(split, part) for part in np.split(index, cuts)]

    def _run_on_ranks(self, work: Callable[..., Any], model: Float32s, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the result of `work` for each rank's share; send the model if the ranks hold another."""
        new = self._model is None or not np.array_equal(_bits(model), _bits(self._model))
        for rank, share in enumerate(shares):
            if rank:
                self.ranks.send((work, new, share), rank)
        if new:
            self._model = np.array(model, np.float32)
            self.ranks.broadcast(self._model)
        first = work(self, self._model, *shares[0])
        return [first, *(self.ranks.receive(rank) for rank in range(1, self.ranks.size))]

    def _speed(self) -> Floats:
        """Return the speed of each rank in examples per second. A rank that has not trained yet gets the mean."""
        has_trained = self._seconds > 0
        if not has_trained.any():
            return np.ones(self.ranks.size)
        speed = np.divide(self._examples, self._seconds, where=has_trained, out=np.zeros(self.ranks.size))
        return np.where(has_trained, speed, speed[has_trained].mean())


def serve(engine: TorchEngine, ranks: Ranks) -> bool:
    """Do the work that rank 0 sends until the run ends, and return whether it continues with another engine.

    Raises:
        LostRankError: If rank 0 is lost before the run ends.
    """
    model = np.empty(engine.layout.size, np.float32)
    while (handed := ranks.receive(0)) is not None:
        if handed == SWITCH_ENGINE:
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
    lr: float,
    terms: dict[str, Float32s],
) -> tuple[LocalUpdates, float]:
    """Train groups of these `sizes`, consecutive in `ids`; return the updates and the seconds."""
    began = time.perf_counter()
    groups = np.split(np.arange(len(ids)), np.cumsum(sizes)[:-1]) if sizes else []
    part = engine.train_groups(model, ids, groups, round_, lr, terms)
    return part, time.perf_counter() - began if sizes else 0.0


def _start_from(engine: TorchEngine, _: Float32s, constants: dict[str, AnyArray]) -> None:
    TorchEngine.start_from(engine, constants)


def _outputs_share(
    engine: TorchEngine, model: Float32s, update: Float32s, ids: Ints, before: bool
) -> list[LocalOutputs]:
    return TorchEngine.outputs(engine, model, update, ids, before=before)


def assign_work(work: Sequence[float] | Ints, speed: Floats) -> list[list[int]]:
    """Assign pieces of work to ranks: the longest first, each to the rank that would finish it first.

    Args:
        work: (g,) size of each piece.
        speed: (ranks,) work per second of each rank.

    Example:
        >>> assign_work([3, 1, 2, 2], np.array([1.0, 1.0]))
        [[0, 1], [2, 3]]
        >>> assign_work([3, 1, 2, 2], np.array([3.0, 1.0]))
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
    """Return the bits of a model, to compare them exactly: 0.0 equals -0.0, and nan does not equal itself."""
    return np.ascontiguousarray(model, np.float32).view(np.int32)
