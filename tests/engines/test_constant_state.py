"""Clients start from what was broadcast: no buffer, counter or batch of one client reaches another."""

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError, TrainingError
from fedreach.engines.choice import build_engine
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.state import constant_arrays
from fedreach.engines.native import Native
from fedreach.engines.protocols import Task
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

IDS = np.arange(4)
SIZES = (13, 2, 8, 6)


class Counting(nn.Module):
    """Divides by how often it was trained, by a buffer or by a plain number."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer, self.plain = how, nn.Linear(4, 3), 0
        self.register_buffer("whole", torch.zeros((), dtype=torch.long))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.register_buffer("wide", torch.zeros((), dtype=torch.double))

    def forward(self, x):
        if self.training:
            setattr(self, self.how, getattr(self, self.how, 0) + 1)
        return self.layer(x) / (1 + 0.1 * float(getattr(self, self.how, 0)))


KINDS = ["plain", "whole", "hidden", "wide", "late"]


def engine_of(module, data, kind=Sequential, threads=1, local=None):
    return TorchEngine(kind, Task(module, data, FedAvg(), local or LocalSGD(batch_size=4), seed=3), threads=threads)


@pytest.mark.parametrize("how", KINDS)
def test_a_counter_goes_on_neither_from_client_to_client_nor_from_round_to_round(how, federated):
    torch.manual_seed(0)
    engine = engine_of(Counting(how), federated(SIZES))
    together = engine.train(engine.initial, IDS, 1, 0.1).update.copy()
    for client in (3, 1):
        alone = engine.train(engine.initial, np.array([client]), 1, 0.1).update
        assert alone[0].tobytes() == together[client].tobytes()


def test_two_processes_give_what_one_gives(federated):
    torch.manual_seed(0)
    module, data = Counting("whole"), federated(SIZES)
    updates = [engine_of(module, data, threads=n).train(flat(module), IDS, 1, 0.1).update for n in (1, 2)]
    assert updates[0].tobytes() == updates[1].tobytes()


def flat(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def test_evaluation_starts_from_the_first_constants_after_training(federated):
    torch.manual_seed(0)
    engine = engine_of(Counting("whole"), federated(SIZES))
    before = engine.logits(engine.initial, "test", np.arange(5)).copy()
    engine.train(engine.initial, IDS, 1, 0.1)
    assert engine.logits(engine.initial, "test", np.arange(5)).tobytes() == before.tobytes()


@pytest.mark.parametrize("how", KINDS)
def test_what_training_counts_is_named_and_batchnorms_counter_is_not(how, federated):
    data = federated(SIZES)
    assert engine_of(Counting(how), data).trainer.behavior.counts == (how,)
    assert engine_of(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), data).trainer.behavior.note == ""


@pytest.mark.parametrize("kind", [Vmap, Manual, Native])
def test_no_other_engine_takes_a_module_that_counts(kind, federated):
    with pytest.raises(ConfigError, match=r"engine.name = "):
        engine_of(Counting("whole"), federated(SIZES), kind)


def test_looking_for_the_fastest_engine_leaves_the_module_as_it_is(federated):
    torch.manual_seed(0)
    module = Counting("whole")
    engine = build_engine("auto", Task(module, federated(SIZES), FedAvg(), LocalSGD(batch_size=4), seed=3))
    assert engine.name == "sequential"
    assert (int(module.whole), module.plain) == (0, 0)


def test_constants_of_the_run_take_the_place_of_those_that_the_constructor_drew(federated):
    class Masked(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("mask", torch.tensor(mask))

        def forward(self, x):
            return self.layer(x * self.mask)

    data, masks = federated(SIZES), ([True, False, True, True], [False, True, False, True])
    torch.manual_seed(0)
    theirs, other = Masked(masks[0]), Masked(masks[1])
    run, later = engine_of(theirs, data), engine_of(other, data, threads=2)
    later.start_from(run.constants)
    for each in (run, later):
        each.found = each.train(run.initial, IDS, 1, 0.1).update.tobytes()
    assert run.found == later.found
    assert constant_arrays(other)["mask"].tolist() == masks[1]


def test_constants_of_another_model_are_refused(federated):
    engine = engine_of(nn.Linear(4, 3), federated(SIZES))
    with pytest.raises(ConfigError, match=r"'mask' is \(4,\) in the run and absent in Linear"):
        engine.start_from({"mask": np.ones(4, bool)})


class OwnNormalization(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4, track_running_stats=False), OwnNormalization()])
@pytest.mark.parametrize("kind", [Sequential, Vmap])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_clients_outputs_do_not_depend_on_who_is_evaluated_beside_it(layer, kind, threads, federated):
    torch.manual_seed(0)
    module, data = nn.Sequential(layer, nn.Linear(4, 3)), federated((300, 9, 8, 6))
    engine = engine_of(module, data, kind, threads)
    parts = [data.train[client] for client in IDS]
    together = engine.logits(engine.initial, "train", np.concatenate(parts))
    _, loss = engine.predict(engine.initial, "train", np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    for client, part in enumerate(parts):
        own = slice(ends[client] - len(part), ends[client])
        assert engine.logits(engine.initial, "train", part).tobytes() == together[own].tobytes()
        assert engine.predict(engine.initial, "train", part)[1].tobytes() == loss[own].tobytes()
    x = torch.from_numpy(data.dataset.train_x[parts[1]])
    right = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(together[ends[0] : ends[1]], right, atol=1e-6)


def test_clients_of_a_stack_share_no_batch_that_a_layer_without_running_statistics_sees(federated):
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)), federated((9, 7, 5))
    local = LocalSGD(batch_size=3, drop_last=True)
    plain, fast = (engine_of(module, data, kind, local=local) for kind in (Sequential, Vmap))
    theirs, own = (engine.train(engine.initial, np.arange(3), 1, 0.1).update for engine in (plain, fast))
    np.testing.assert_allclose(own, theirs, atol=1e-5)


def test_a_float_buffer_that_code_replaces_is_averaged_as_one_that_it_writes_into(federated):
    class Follows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
            return self.layer(x - self.mean)

    torch.manual_seed(0)
    data = federated(SIZES)
    engine = engine_of(Follows(), data, local=LocalSGD(batch_size=99))
    update = engine.train(engine.initial, IDS, 1, 0.1).update
    for client in IDS:
        x = data.dataset.train_x[data.train[client]]
        np.testing.assert_allclose(update[client, -4:], 0.5 * x.mean(0), atol=1e-6)


def test_a_chain_with_a_frozen_layer_is_not_trained_as_one():
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(NotAChainError, match=r"0\.weight is not trained"):
        chain_of(frozen, (4,))


def test_a_client_with_a_single_example_is_refused_in_words_where_layers_go_by_the_batch(federated):
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    engine = engine_of(module, federated((9, 2)))
    with pytest.raises(TrainingError, match=r"Clients must have at least 2 examples"):
        engine.predict(engine.initial, "train", engine.task.data.train[1])
