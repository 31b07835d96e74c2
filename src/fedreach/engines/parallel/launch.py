"""How the processes of a run find each other, and how they end together."""

import os
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]  # torch does not list it

from fedreach.engines.parallel.ranks import LostRankError, Ranks
from fedreach.errors import ConfigError, FedReachError, TrainingError

SILENCE = timedelta(hours=2)  # no share of a round takes longer; a rank whose connection breaks is noticed at once
GRACE_SECONDS = 0.5  # from the moment its connections close until the process of rank 0 has ended


@contextmanager
def join() -> Iterator[Ranks]:
    """Join the other processes that torchrun started, until the block ends.

    When rank 0 leaves the block, the others, which are waiting for it, are told to end. Where it fails, it says why,
    and the others see its connections close and end silently with 1. Where another rank fails, rank 0 is told why.
    """
    many = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in many if name not in os.environ]
    if missing:
        raise ConfigError(f"The environment variable {missing[0]} is missing. Start the ranks by torchrun.")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in many)
    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store = _unwritten(next(rendezvous("env://", timeout=SILENCE))[0], rank, size)
        backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=SILENCE)
    except RuntimeError as error:
        raise LostRankError(f"Rank {rank} of {size} does not find the others: {error}") from error
    ranks = Ranks(rank, size, local_rank, local_size)
    if rank == 0:
        for other in range(1, size):
            ranks.receive(other)  # while it connects it would not notice that this rank ends
        with _one_interrupt():
            yield ranks
        for other in range(1, size):
            ranks.send(None, other)
    else:
        # Ends a rank at once, wherever it is; rank 0 then sees it go and writes the checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            ranks.send("connected", 0)
            yield ranks
        except Exception as error:
            _end_after_rank_0(ranks, error)
    dist.destroy_process_group()


def _unwritten(store: Store, rank: int, size: int) -> Store:
    """Return a part of the store that no process wrote to before.

    torchrun hands the store of ranks that died on to those that it starts in their place, with the addresses in it.
    """
    name = f"{socket.gethostname()} {os.getpid()} {time.time_ns()}"
    if rank == 0:
        for other in range(1, size):
            store.delete_key(f"hello {other}")  # of a rank that died; one that lives says it again
        for other in range(1, size):
            store.set(f"join {store.get(f'hello {other}').decode()}", name)
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
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
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
