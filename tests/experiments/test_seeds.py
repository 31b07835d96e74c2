"""`partition.seed`, `population.seed` and `model.seed` draw apart what one seed draws together, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import Command, exact, rows

from fedreach.data.federated import FederatedData
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load

BUSY = [
    "noise={name='symmetric', rate=0.3}",
    "shift={name='brightness', strength=0.2, share=0.5}",
    "server_data.examples=50",
    "partition={name='iid', clients=12}",
    "population.participants=6",
    "model={name='mlp', hidden=[8]}",
    "engine.name=sequential",
    "method.cohort_size=3",
]
"""Whatever a seed has a say in before the first round; it draws whole numbers only, but for the weights."""


class Drawn(NamedTuple):
    """What a run begins with, and whom and on what it trains in the first rounds."""

    digest: str
    holdings: tuple[bytes, ...]  # assignment, training and held-out part, the server's share
    labels: bytes  # as clients see them
    participants: list[int]
    shifted: list[int]
    initial: bytes
    cohorts: list[tuple[int, ...]]
    trained: bytes


def drawn(seed: int, *pinned: str) -> Drawn:
    builder = Builder(load(None, [*BUSY, *pinned]).resolved("uniform"), Path())
    data = builder.federated(builder.dataset(), seed)
    simulation = builder.simulation(data, seed)
    state, cohorts = simulation.start(), []
    for _ in range(3):
        state, result, _ = simulation.step(state)
        cohorts.append(result.cohort)
    return Drawn(
        data.digest()[:12],
        _holdings(data),
        data.labels.tobytes(),
        data.population.participants.tolist(),
        [] if data.shift is None else data.shift.clients.tolist(),
        simulation.engine.initial.tobytes(),
        cohorts,
        state.params.tobytes(),
    )


def _holdings(data: FederatedData) -> tuple[bytes, ...]:
    assert data.server is not None
    ranges = (data.partition, data.train, data.held_out)
    return (*(array.tobytes() for part in ranges for array in (part.order, part.offsets)), data.server.y.tobytes())


def same(one: Drawn, other: Drawn) -> set[str]:
    """Return the names of what two runs have in common."""
    return {name for name, a, b in zip(Drawn._fields, one, other, strict=True) if a == b}


DIGESTS = ["0eb0c769c079", "7e95fb7cc326"]


def test_without_pins_a_seed_draws_what_it_always_drew() -> None:
    """The digests are those that the code had before a partition and a model could have seeds of their own."""
    assert [drawn(seed).digest for seed in (0, 1)] == DIGESTS
    assert drawn(5, "population.seed=1").digest == DIGESTS[1]


def test_pinned_to_the_seed_of_the_run_nothing_changes() -> None:
    assert drawn(1, "partition.seed=1", "population.seed=1", "model.seed=1") == drawn(1)


@pytest.mark.parametrize(
    ("pinned", "kept"),
    [
        ("partition.seed=7", {"holdings", "labels"}),
        ("model.seed=7", {"initial"}),
        ("population.seed=7", {"holdings", "labels", "digest", "participants", "shifted"}),
    ],
)
def test_what_is_pinned_stays_for_every_seed_and_all_else_is_drawn_anew(pinned: str, kept: set[str]) -> None:
    assert same(drawn(0, pinned), drawn(1, pinned)) == kept
    assert same(drawn(0), drawn(1)) == set()


@pytest.mark.parametrize(
    ("pinned", "moved"),
    [
        ("partition.seed", {"digest", "holdings", "labels", "trained"}),
        ("population.seed", {"digest", "participants", "shifted", "cohorts", "trained"}),
        ("model.seed", {"initial", "trained"}),
    ],
)
def test_a_seed_moves_its_own_part_only(pinned: str, moved: set[str]) -> None:
    others = [f"{name}=3" for name in ("partition.seed", "population.seed", "model.seed") if name != pinned]
    one, other = (drawn(3, *others, f"{pinned}={seed}") for seed in (3, 4))
    assert set(Drawn._fields) - same(one, other) == moved


def test_the_seed_of_the_run_alone_moves_who_is_chosen_and_the_batches() -> None:
    pins = ["partition.seed=1", "population.seed=2", "model.seed=3"]
    assert set(Drawn._fields) - same(drawn(0, *pins), drawn(1, *pins)) == {"cohorts", "trained"}


def test_two_runs_that_differ_in_the_batches_alone_are_two_runs(fedreach: Command, home: Path) -> None:
    pins = [word for pin in ("partition.seed=1", "population.seed=2", "model.seed=3") for word in ("--set", pin)]
    for seed in (0, 1):
        assert fedreach("run", "tiny.toml", *pins, "--seed", seed, "--out", seed, "-q").exit_code == 0
    one, other = exact(home / "0"), exact(home / "1")
    assert one["federation.json"] == other["federation.json"]
    assert one["last.safetensors"] != other["last.safetensors"]
    assert [rows(home / str(seed))[0]["unseen_loss"] for seed in (0, 1)] == [rows(home / "0")[0]["unseen_loss"]] * 2


@pytest.mark.parametrize("pinned", ["partition.seed", "model.seed"])
def test_a_folder_knows_what_its_run_was_pinned_to(fedreach: Command, home: Path, pinned: str) -> None:
    assert fedreach("run", "tiny.toml", "--set", f"{pinned}=1", "--out", "x", "-q").exit_code == 0
    again = fedreach("run", "tiny.toml", "--set", f"{pinned}=2", "--out", "x", "-q")
    assert again.exit_code == 3
    assert f"has results of another experiment. config.{pinned}: stored 1, now 2" in again.stderr
    assert fedreach("run", "tiny.toml", "--set", f"{pinned}=1", "--out", "x", "-q").exit_code == 0


def test_the_command_partition_shows_what_a_run_is_made_of(fedreach: Command, home: Path) -> None:
    pins = ["--set", "partition.seed=4", "--set", "population.seed=5", "--seed", "6"]
    shown = json.loads(fedreach("partition", "tiny.toml", *pins, "--json").stdout)
    assert fedreach("run", "tiny.toml", *pins, "--out", "x", "-q").exit_code == 0
    assert json.loads((home / "x" / "federation.json").read_text())["hash"] == shown["hash"]
    other = json.loads(fedreach("partition", "tiny.toml", *pins, "--set", "population.seed=7", "--json").stdout)
    assert other["label_counts"] == shown["label_counts"]
    assert other["participants"] != shown["participants"]


@pytest.mark.parametrize("key", ["partition.seed", "model.seed"])
@pytest.mark.parametrize(("value", "rule"), [("-1", "greater than or equal to 0"), ("0.5", "integer")])
def test_what_is_no_seed_is_refused_by_name(fedreach: Command, key: str, value: str, rule: str) -> None:
    refused = fedreach("run", "tiny.toml", "--set", f"{key}={value}")
    assert refused.exit_code == 2
    assert f"{key}: must be" in refused.stderr
    assert rule in refused.stderr
