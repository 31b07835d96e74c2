"""What is too large by a slip is refused in words before it starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.checks import UnreadableError, read_npy
from fedreach.data.federated import FederatedData
from fedreach.data.partition import partition

from .conftest import Refused


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("engine.threads=1000000", "engine.threads must be at most 1024; got 1000000"),
        ("model={name='mlp',hidden=[1000000000000]}", "The model 'mlp' cannot be built"),
        ("model={name='mlp',hidden=[1000000000000000000]}", "The model 'mlp' cannot be built"),
        ("model={name='mlp',hidden=[0]}", "mlp: hidden must be in [1, inf); got 0"),
        ("local.epochs=9007199254740992", "must be in [1, 1e9]; got 9007199254740992"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_before_its_first_round(option: str, message: str, refused: Refused) -> None:
    assert message in refused(2, "run", "tiny.toml", "--set", option, "--out", "x")


def test_labels_that_are_ids_are_refused() -> None:
    with pytest.raises(DataError, match=r"must be at most 300000000; got 4 \* 1000000001"):
        FederatedData.from_clients({n: (np.ones((1, 2)), [label]) for n, label in enumerate([0, 10**9, 0, 1])})
    three = Partition.from_owner([0, 1, 2], 3, "iid")
    assert three.label_counts([0, 5, 999], 1000).shape == (3, 1000)
    with pytest.raises(DataError, match=r"got 3 \* 1000000000"):
        three.label_counts([0, 5, 999], 10**9)


@pytest.mark.parametrize("kind", ["dirichlet_by_class", "dirichlet_by_client", "hybrid"])
def test_clients_that_cannot_be_counted_are_refused(kind: str) -> None:
    labels, options = np.arange(100) % 4, {"alpha": 0.5, "min_size": 0} | ({"share": 0.0} if kind == "hybrid" else {})
    assert partition(kind, labels, 1000, generator(0, "partition"), **options).num_clients == 1000
    for clients in (10**9, 10**18):
        with pytest.raises(DataError, match=rf"got {clients} \*"):
            partition(kind, labels, clients, generator(0, "partition"), **options)


def test_a_header_that_promises_more_than_its_file_holds_costs_no_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4.0))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole.replace(b"(4,), }" + b" " * 12, b"(4000000000000,), }"))
    with pytest.raises(UnreadableError):
        read_npy(tmp_path / "x.npy")
