"""However many ranks help an engine, and whoever trains whom, every answer has the same bytes."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.engines.batches import examples_per_round
from fedreach.engines.distributed import DistributedEngine, Ranks, assign_work
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

from ..launching import ended, start_ranks  # noqa: TID252 (tests are no package that has a name)
from .rank_program import CASES, ONE_GROUP

PROGRAM = Path(__file__).with_name("rank_program.py")


def told_by(ranks, folder):
    for code, said, errors in ended(start_ranks(ranks, PROGRAM, folder / "told.json")):
        assert (code, said, errors) == (0, "", "")
    return json.loads((folder / "told.json").read_text())


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return told_by(2, tmp_path_factory.mktemp("two"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_bytes_of_one(two_ranks, name):
    answers = two_ranks[name]
    all_trained = answers.pop("all ranks trained")
    assert all_trained == (name != ONE_GROUP) or name.startswith("engine ")
    assert len(answers) > 10
    assert [what for what, same in answers.items() if not same] == []


@pytest.mark.slow
def test_values_arrive_as_they_were_sent(two_ranks):
    assert two_ranks["echoed"]


@pytest.mark.slow
def test_so_do_four_ranks(tmp_path):
    told = told_by(4, tmp_path)
    assert told.pop("echoed")
    for answers in told.values():
        del answers["all ranks trained"]  # three stacks leave one without work
        assert [what for what, same in answers.items() if not same] == []


class Counting(Native):
    """Counts how often it adds up."""

    sums = 0

    def add_up(self, weights, update):
        self.sums += 1
        return super().add_up(weights, update)


def test_with_ranks_updates_are_added_up_by_the_trainer_as_without(federated):
    task = Task(build("linear", (4,), 3, seed=0), federated((13, 2)), FedAvg(), LocalSGD(), seed=0)
    alone = TorchEngine(Counting, task)
    helped = DistributedEngine(alone, Ranks(0, 2))
    update, weights = generator(0, "update").standard_normal((2, 15)).astype(np.float32), np.array([0.3, 0.7])
    summed = helped.weighted_sum(weights, update)
    assert alone.trainer.sums == 1
    assert summed.tobytes() == alone.weighted_sum(weights, update).tobytes()


# --------------------------------------------------------------------------------------------- who does what


@pytest.mark.parametrize("seed", range(20))
def test_every_piece_of_work_is_handed_out_once_and_evenly(seed):
    """The rank that ends last would have ended first without its last piece, which is its shortest."""
    rng = generator(seed, "work")
    work = rng.pareto(1.5, size=int(rng.integers(1, 40))) + 0.01
    given = assign_work(work, np.ones(int(rng.integers(1, 6))))
    assert sorted(piece for share in given for piece in share) == list(range(len(work)))
    load = [work[share].sum() for share in given]
    last = int(np.argmax(load))
    assert load[last] - work[given[last]].min() <= min(load) + 1e-9


def test_a_rank_three_times_as_fast_gets_three_quarters_of_equal_work():
    given = assign_work(np.ones(40), np.array([3.0, 1.0]))
    assert [len(share) for share in given] == [30, 10]


def test_only_the_ratio_of_speeds_counts():
    work = generator(0, "work").random(30)
    speed = np.array([2.0, 1.0, 0.5])
    assert assign_work(work, speed) == assign_work(work, 1024 * speed)


@pytest.mark.parametrize(
    "local", [LocalSGD(batch_size=4, epochs=3), LocalSGD(batch_size=1, steps=7), LocalSGD(batch_size=100, steps=2)]
)
def test_predicted_work_is_what_the_clients_go_through(local, federated):
    data = federated((13, 2, 8, 6))
    engine = TorchEngine(Sequential, Task(build("linear", (4,), 3, seed=0), data, FedAvg(), local, seed=0))
    ids = np.arange(4)
    gone_through = [(plan >= 0).sum() for plan in engine.trainer.plans(ids, 1)]
    assert examples_per_round(data.train.sizes[ids], local).tolist() == gone_through
