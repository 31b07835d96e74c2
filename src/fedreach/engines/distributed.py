"""Training of a cohort on several machines with torch.distributed."""

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

# -------------------- The processes of a run, and messages between them
# Values are pickled. All processes must trust each other, as torch.distributed requires.

T = TypeVar("T")


class LostRankError(TrainingError):
    """Error for a lost connection to another process of the run."""


class Ranks:
    """Processes (ranks) of a run, as `join` returns them; rank 0 sends work to all other ranks.

    Args:
        rank: Number of this process, from 0 to `size` - 1.
        size: Number of processes.
        local_rank: Number of this process among the processes on its machine, from 0.
        local_size: Number of processes on this machine.
    """

    def __init__(self, rank: int, size: int, local_rank: int = 0, local_size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size

    def device(self, name: str) -> str:
        """Return the device on which this rank trains.

        Args:
            name: Device. With ``"cuda"``, each rank of a machine uses a different GPU. With any other name, such as
                ``"cuda:0"``, the ranks of a machine share the device.

        Raises:
            ConfigError: If this machine has fewer GPUs than ranks.

        Example:
            >>> Ranks(rank=1, size=2, local_rank=1).device("cpu")
            'cpu'
        """
        if name != "cuda" or not torch.cuda.is_available():
            return name
        if self.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"engine.device 'cuda' requires one GPU per rank; got {self.local_size} ranks and "
                f"{torch.cuda.device_count()} GPUs on this machine. Lower --nproc-per-node, or share one GPU with "
                "--device cuda:0."
            )
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    def send(self, value: object, rank: int) -> None:
        """Send a value to another rank, and wait until that rank has received it.

        Raises:
            LostRankError: If that rank's process has ended.
        """
        for work, _ in self.post(value, rank):
            self._call(rank, work.wait)

    def post(self, value: object, rank: int) -> list[tuple[Any, Tensor]]:
        """Start to send a value; return the pending operations, which must remain referenced until they complete."""
        message = torch.frombuffer(bytearray(pickle.dumps(value, protocol=5)), dtype=torch.uint8)
        return [(self._call(rank, dist.isend, part, rank), part) for part in (torch.tensor([len(message)]), message)]

    def receive(self, rank: int) -> Any:
        """Return the next value from another rank.

        Raises:
            LostRankError: If that rank's process has ended.
            FedReachError: If that rank failed and sent its error. The message contains the number of the rank.
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
        """Copy rank 0's vector into the vector of every other rank; all ranks must call this method."""
        self._call(0, dist.broadcast, torch.from_numpy(vector), 0)

    def _call(self, rank: int, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except RuntimeError as error:
            who = f"Rank {rank}" if self.rank == 0 and rank else "Another rank"
            raise LostRankError(
                f"{who} does not respond: its process ended, or its machine is unreachable. See the output of "
                "torchrun, then rerun the command to resume from the last checkpoint. To rerun it automatically, use "
                "torchrun --max-restarts 1."
            ) from error


# -------------------- Joining and ending the processes of a run

RANK_TIMEOUT = timedelta(hours=2)  # longest work of a rank in a round; broken connections raise immediately
GRACE_SECONDS = 0.5  # time between the end of rank 0's connections and the end of its process


@contextmanager
def join() -> Iterator[Ranks]:
    """Connect this process to all processes that torchrun started, until the block ends.

    When rank 0 leaves the block, the other ranks end. If rank 0 fails, it reports the error, and the other ranks exit
    with status 1 without a message. If another rank fails, it sends the error to rank 0.

    Raises:
        ConfigError: If torchrun did not start this process.
        LostRankError: If another rank cannot be found.
    """
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise ConfigError(f"The environment variable {missing[0]} must be set. Start the ranks with torchrun.")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in variables)
    try:
        store = _fresh_store(next(rendezvous("env://", timeout=RANK_TIMEOUT))[0], rank, size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=RANK_TIMEOUT)
    except RuntimeError as error:
        raise LostRankError(f"Rank {rank} of {size} cannot find the other ranks: {error}") from error
    ranks = Ranks(rank, size, local_rank, local_size)
    if rank == 0:
        for peer in range(1, size):
            ranks.receive(peer)  # wait: a rank that is still connecting would not notice the end of this rank
        with _one_interrupt():
            yield ranks
        for peer in range(1, size):
            ranks.send(None, peer)
    else:
        # Ctrl-C ends this rank immediately. Rank 0 detects this and writes the checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            ranks.send("connected", 0)
            yield ranks
        except Exception as error:
            _end_after_rank_0(ranks, error)
    dist.destroy_process_group()


def _fresh_store(store: Store, rank: int, size: int) -> Store:
    """Return an empty section of torch's key-value store, for this start of the ranks.

    After a failure, torchrun starts new ranks with the old store, which still contains the addresses of the old ranks.
    """
    name = f"{socket.gethostname()} {os.getpid()} {time.time_ns()}"
    if rank == 0:
        for peer in range(1, size):
            store.delete_key(f"hello {peer}")  # may be from an old rank; a running rank writes it again
        for peer in range(1, size):
            store.set(f"join {store.get(f'hello {peer}').decode()}", name)
        return PrefixStore(name, store)
    while not store.check([f"join {name}"]):
        store.set(f"hello {rank}", name)
        time.sleep(0.02)
    return PrefixStore(store.get(f"join {name}").decode(), store)


def _end_after_rank_0(ranks: Ranks, error: Exception) -> NoReturn:
    """Send the error to rank 0, and end after rank 0, because torchrun reports the first rank to end as the cause."""
    if not isinstance(error, FedReachError):  # a bug in FedReach: add the line of code
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        error = TrainingError(f"{where}: {type(error).__name__}: {error}")
    with suppress(LostRankError):
        if not isinstance(error, LostRankError):
            _under_way = ranks.post(error, 0)
            while True:
                ranks.receive(0)  # messages that rank 0 sends before it reads the error
    time.sleep(GRACE_SECONDS)
    os._exit(1)  # sys.exit would wait for connections to lost ranks


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Treat the first SIGINT or SIGTERM as Ctrl-C, and ignore later ones, which would interrupt the checkpoint.

    torchrun sends signals repeatedly to all ranks, and SIGTERM if another rank failed.
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
        after = [signal.SIG_IGN] * len(numbers)  # this rank must still report its error
        raise
    finally:
        for number, handler in zip(numbers, after, strict=True):
            signal.signal(number, handler)


# -------------------- A cohort on several processes: rank 0 makes all decisions and has all state
# The number of ranks does not change any result. The inner engine forms the groups of clients. Any rank computes a
# group with the same kernels on the same values, and rank 0 sorts the results before it sums them. In engines whose
# groups depend on the number of ranks, a client's result does not depend on its group.

SWITCH_ENGINE = "the run continues with another engine"
SPEED_DECAY = 0.5  # factor per round for old measurements of the ranks' speed


class DistributedEngine(TorchEngine):
    """Engine of rank 0, which distributes the work of an engine among all ranks, including rank 0.

    Rank 0 assigns groups of clients, the largest first, to the rank that should finish the group first. Its estimate
    uses the speed of the ranks in earlier rounds. In an evaluation, each rank evaluates different batches. Only rank 0
    computes weighted sums and server steps. The other ranks call `serve` with an equal engine.

    Args:
        engine: Engine of this rank.
        ranks: Processes of the run.
    """

    def __init__(self, engine: TorchEngine, ranks: Ranks) -> None:
        vars(self).update(vars(engine))
        self.ranks = ranks
        self._model: Float32s | None = None  # the model that all ranks have
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
        update = self.workers.array((len(ids), self.layout.size), np.float32)  # in shared memory, for `weighted_sum`
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
        """Return the examples that each rank evaluates; None if rank 0 evaluates all."""
        batches, size = -(-len(index) // EVALUATION_BATCH), self.ranks.size
        if batches < 2 or self.trainer.behavior.mixes:  # a model that mixes examples needs one batch per client
            return None
        cuts = [EVALUATION_BATCH * (batches * rank // size) for rank in range(1, size)]
        return [(split, part) for part in np.split(index, cuts)]

    def _run_on_ranks(self, work: Callable[..., Any], model: Float32s, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the result of `work` for each rank's share; send the model if the ranks have another one."""
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
        """Return the speed of each rank in examples per second; ranks that have not trained yet get the mean."""
        has_trained = self._seconds > 0
        if not has_trained.any():
            return np.ones(self.ranks.size)
        speed = np.divide(self._examples, self._seconds, where=has_trained, out=np.zeros(self.ranks.size))
        return np.where(has_trained, speed, speed[has_trained].mean())


def serve(engine: TorchEngine, ranks: Ranks) -> bool:
    """Execute the work that rank 0 sends, until the run ends or continues with another engine.

    Args:
        engine: Engine that is equal to the engine of rank 0.
        ranks: Processes of the run.

    Returns:
        Whether the run continues with another engine.

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
    """Train consecutive groups of `ids` with these `sizes`; return the updates and the time in seconds."""
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
    """Assign pieces of work to ranks, the largest first, each to the rank that would finish it first.

    Args:
        work: (g,) size of each piece.
        speed: (r,) speed of each of r ranks, in the unit of work per second.

    Returns:
        Indices of the pieces that are assigned to each rank.

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
    """Return the bits of a model for exact comparison, because 0.0 == -0.0 and NaN != NaN."""
    return np.ascontiguousarray(model, np.float32).view(np.int32)
