"""The processes of one run, as torchrun starts them, and values that go from one to another.

A value is pickled but for its large arrays, which travel as tensors. All processes are those of one user and believe
each other, as everywhere in torch.distributed.
"""

import pickle
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedreach.arrays import Float32s
from fedreach.errors import ConfigError, FedReachError, TrainingError

LARGE_BYTES = 4096  # smaller arrays are pickled: a message of their own costs more than the copy
T = TypeVar("T")


class LostRankError(TrainingError):
    """Another process of the run has gone."""


class Ranks:
    """The processes of one run; made by `fedreach.engines.parallel.launch.join`.

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

        def pickled(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < LARGE_BYTES:
                return True
            large.append(_as_tensor(raw).to(self.wire))
            return False

        rest = pickle.dumps(value, protocol=5, buffer_callback=pickled)
        sizes = np.array([len(tensor) for tensor in large], np.int64).tobytes()
        tensors = [torch.tensor([len(sizes), len(rest)]), _as_tensor(bytearray(sizes + rest)), *large]
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
        packed = self._received(of_sizes + of_rest, rank, torch.device("cpu")).tobytes()
        sizes = np.frombuffer(packed[:of_sizes], np.int64)
        buffers = [self._received(int(size), rank, self.wire) for size in sizes]
        value = pickle.loads(packed[of_sizes:], buffers=buffers)
        if isinstance(value, FedReachError):
            raise type(value)(f"Rank {rank}: {value}")
        return value

    def broadcast(self, vector: Float32s) -> None:
        """Write rank 0's vector into that of every other rank; all of them have to call this."""
        own = torch.from_numpy(vector)
        sent = own.to(self.wire)
        self._call(0, dist.broadcast, sent, 0)
        if sent is not own:
            own.copy_(sent)

    def _received(self, size: int, rank: int, wire: torch.device) -> np.ndarray[Any, np.dtype[np.uint8]]:
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
