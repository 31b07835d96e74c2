"""What needs more than the machine has is refused with number and limit before it is taken; what fits is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedreach._util import limits
from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.partition import partition
from fedreach.engines.batches import batch_plans
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.native import Native
from fedreach.engines.protocols import Task
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg
from fedreach.testing.problems import tiny_data

from .conftest import Refused

GB = 10**9


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what the machine has."""

    def set_to(memory: int | None = None, processes: int | None = None) -> None:
        def yielded(value: int | None) -> Callable[[], Iterator[int]]:
            return lambda: iter([] if value is None else [value])

        monkeypatch.setattr(limits, "NEGLIGIBLE_BYTES", 0)
        monkeypatch.setattr(limits, "_memory_limits", yielded(memory))
        monkeypatch.setattr(limits, "_process_limits", yielded(processes))

    return set_to


def test_the_least_of_all_limits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 8000 kB\nMemFree: 1 kB\nSwapTotal: 2000 kB\n",
        "/proc/self/cgroup": "4:memory:/a/b\n1:cpu,pids:/p\n0::/u/v\n",
        "/proc/sys/kernel/pid_max": "4000\n",
    }
    monkeypatch.setattr(limits, "_text", lambda path: files.get(path, ""))
    monkeypatch.setattr(limits, "_user_limit", lambda name: iter(()))
    assert limits.memory_bytes() == 10_240_000
    assert limits.process_limit() == 4000
    files |= {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000000\n", "/sys/fs/cgroup/u/v/memory.max": "max\n"}
    files |= {"/sys/fs/cgroup/u/pids.max": "7\n"}
    assert (limits.memory_bytes(), limits.process_limit()) == (5_000_000, 7)
    files |= {"/sys/fs/cgroup/u/memory.max": "400\n"}
    assert limits.memory_bytes() == 400
    page = os.sysconf("SC_PAGE_SIZE")
    files |= {"/proc/self/statm": "3 1 1\n"}
    monkeypatch.setattr(limits, "_user_limit", lambda name: iter([3 * page + 50]))
    assert limits.memory_bytes() == 50  # the libraries that are loaded have addresses already
    monkeypatch.setattr(limits, "_user_limit", lambda name: iter([3]))
    assert (limits.memory_bytes(), limits.process_limit()) == (0, 3)


def test_this_machine_has_memory_and_processes() -> None:
    assert (limits.memory_bytes() or 0) > 10**8
    assert (limits.process_limit() or 10**3) > 100


def test_where_nobody_says_what_there_is_nothing_is_refused(machine: Callable[..., None]) -> None:
    machine()
    limits.check_memory("everything", 10**30, "")
    limits.check_processes("all", 10**30)


def test_what_just_fits_is_taken(machine: Callable[..., None]) -> None:
    machine(memory=1000, processes=8)
    limits.check_memory("a thing", 1000, "")
    limits.check_processes("threads", 8, process_bytes=125)
    with pytest.raises(
        ConfigError, match=r"^a thing needs at least 1 kB of memory; this process may have 1 kB\. Cut it\.$"
    ):
        limits.check_memory("a thing", 1001, "Cut it.")
    with pytest.raises(ConfigError, match="threads must be at most 8, as many processes as the system allows; got 9"):
        limits.check_processes("threads", 9, process_bytes=1)
    with pytest.raises(ConfigError, match="threads must be at most 7, as many processes as memory holds; got 8"):
        limits.check_processes("threads", 8, process_bytes=126)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "engine.threads=1000000",
            "engine.threads must be at most 1250, as many processes as memory holds; got 1000000",
        ),
        (
            "model={name='mlp',hidden=[1000000000]}",
            "The model 'mlp' of 75000000010 numbers needs at least 300 GB of memory",
        ),
        ("model={name='mlp',hidden=[1000000000000000000]}", "The model 'mlp' cannot be built"),
        ("model={name='mlp',hidden=[0]}", "mlp: hidden must be in [1, inf); got 0"),
        ("local.epochs=9007199254740992", "LocalSGD.epochs must be in [1, 1e9]; got 9007199254740992"),
        ("engine.device=meta", "engine.device is 'meta', which this torch cannot use"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_before_its_first_round(
    option: str, message: str, refused: Refused, machine: Callable[..., None]
) -> None:
    machine(memory=1250 * limits.PROCESS_BYTES, processes=10**5)
    assert message in refused(2, "run", "tiny.toml", "--set", option, "--out", "x")


def test_a_model_fits_in_as_many_bytes_as_its_numbers_take(machine: Callable[..., None]) -> None:
    for name, shape in (("mlp", (64,)), ("lenet", (1, 28, 28)), ("resnet20", (3, 32, 32)), ("lstm", (80,))):
        machine()
        size = sum(numbers.numel() for numbers in build(name, shape, 10, seed=0).state_dict().values())
        machine(memory=4 * size)
        build(name, shape, 10, seed=0)
        machine(memory=4 * size - 4 * 64)  # buffers that count batches are whole numbers
        with pytest.raises(ConfigError, match=f"The model {name!r} of "):
            build(name, shape, 10, seed=0)


def test_a_cohort_that_sends_more_than_fits_is_refused(machine: Callable[..., None]) -> None:
    data = tiny_data()
    engine = TorchEngine(Native, Task(build("linear", (2,), 2, seed=0), data, FedAvg(), LocalSGD(), 0))
    machine(memory=4 * 10**6)
    assert engine.workers.array((10, 10**5), np.float32).shape == (10, 10**5)
    with pytest.raises(ConfigError, match=r"An array of 11 x 100000 numbers needs at least 4\.4 MB"):
        engine.workers.array((11, 10**5), np.float32)


def test_the_largest_label_says_how_many_classes_there_are_and_is_held_against_memory(
    machine: Callable[..., None],
) -> None:
    machine(memory=25 * GB)
    large = from_arrays(np.ones((4, 2)), [0, 10**9, 0, 1], name="large")
    told = (
        "A table of 4 clients x 1000000001 classes needs at least 32 GB of memory; this process may have 25 GB. Lower"
    )
    with pytest.raises(DataError, match=told):
        FederatedData.from_clients({n: (np.ones((1, 2)), [label]) for n, label in enumerate([0, 10**9, 0, 1])})
    with pytest.raises(DataError, match=told):
        partition("iid", large.train_y, 4, generator(0, "partition")).label_counts(large.train_y, large.num_classes)
    three = Partition.from_owner([0, 1, 2], 3, "iid")
    machine(memory=8 * 3 * 1000)
    assert three.label_counts([0, 5, 999], 1000).shape == (3, 1000)
    with pytest.raises(DataError, match="3 clients x 1001 classes"):
        three.label_counts([0, 5, 999], 1001)


@pytest.mark.parametrize("kind", ["dirichlet_by_class", "dirichlet_by_client", "hybrid"])
def test_clients_that_cannot_be_counted_are_refused(kind: str, machine: Callable[..., None]) -> None:
    labels, options = np.arange(100) % 4, {"alpha": 0.5, "min_size": 0} | ({"share": 0.0} if kind == "hybrid" else {})
    machine(memory=8 * 3 * 4 * 1000)
    assert partition(kind, labels, 1000, generator(0, "partition"), **options).num_clients == 1000
    for clients in (1001, 10**9, 10**18):
        with pytest.raises(DataError, match=f"A table of {clients} clients x"):
            partition(kind, labels, clients, generator(0, "partition"), **options)


def test_batches_of_all_epochs_are_held_against_memory(machine: Callable[..., None]) -> None:
    parts, local = [np.arange(10)], LocalSGD(batch_size=5, epochs=100)
    machine(memory=8 * 10 * 100)
    assert batch_plans(0, 1, np.array([0]), parts, local).shape == (1, 200, 5)
    machine(memory=8 * 10 * 100 - 1)
    with pytest.raises(ConfigError, match="The batches of 1 clients in 200 steps of 5 examples needs at least"):
        batch_plans(0, 1, np.array([0]), parts, local)


def test_a_header_that_promises_more_than_its_file_holds_costs_no_memory(tmp_path: Path) -> None:
    from fedreach.data.checks import UnreadableError, read_npy

    np.save(tmp_path / "x.npy", np.arange(4.0))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole.replace(b"(4,), }" + b" " * 12, b"(4000000000000,), }"))
    with pytest.raises(
        UnreadableError, match=r"says \(4000000000000,\) float64, that is 32000000000000 bytes; 32 are there"
    ):
        read_npy(tmp_path / "x.npy")
