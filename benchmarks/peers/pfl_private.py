"""FedAvg with differential privacy of clients in pfl-research 0.6, with the conventions of FedReach's `dp_fedavg`.

pfl's accountants assume Poisson sampling, but its samplers draw cohorts of a fixed size, and it divides the noisy sum
by the number of replies. Here the cohorts are given, and the noisy sum is divided by the expected cohort size.
Clipping, noise, accounting and training are pfl's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.context import CentralContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant
from pfl.stats import WeightedStatistics
from pfl_run import UserModel
from torch import nn

from fedreach.federation.local_sgd import LocalSGD

Examples = tuple[torch.Tensor, torch.Tensor]


class GivenCohorts(FederatedDataset):
    """The examples of the users of each round, and the processor time at the beginning and end of each round."""

    def __init__(self, rounds: Iterable[Sequence[Examples]]) -> None:
        super().__init__(lambda user: None, lambda: None)  # neither is called
        self.rounds, self.begins, self.ends = iter(rounds), list[float](), list[float]()

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[PyTorchTensorDataset, int]]:
        if self.begins:
            self.ends.append(time.process_time())
        users = [PyTorchTensorDataset(examples, user_id=str(i)) for i, examples in enumerate(next(self.rounds))]
        self.begins.append(time.process_time())
        for user in users:
            yield user, self._get_seed()


class ExpectedSize(Postprocessor[WeightedStatistics]):
    """Makes pfl divide the sum by the expected cohort size instead of the number of replies."""

    def postprocess_server(
        self, *, stats: WeightedStatistics, central_context: CentralContext, aggregate_metrics: Metrics
    ) -> tuple[WeightedStatistics, Metrics]:
        stats.weight = central_context.cohort_size
        return stats, Metrics()


@lru_cache
def noise_of(epsilon: float, delta: float, q: float, rounds: int) -> float:
    """Return the noise multiplier that pfl's accountant computes for Poisson sampling with probability q.

    Example:
        >>> round(noise_of(2.0, 1e-5, q=1.0, rounds=1), 2)  # Balle and Wang, ICML 2018, Algorithm 1: 1.9938
        1.99
    """
    accountant = PLDPrivacyAccountant(
        num_compositions=rounds, sampling_probability=q, mechanism="gaussian", epsilon=epsilon, delta=delta
    )
    return float(accountant.cohort_noise_parameter)


def train(
    net: nn.Module,
    rounds: Iterable[Sequence[Examples]],
    *,
    num_rounds: int,
    cohort_size: int,
    clip: float,
    noise: float | None,
    local: LocalSGD,
    seed: int,
) -> float:
    """Train `net` in place, and return the median processor time of a round without the creation of its datasets.

    Args:
        net: Model with its initial weights.
        rounds: Inputs and labels of the users of each round, in the order of their batches.
        num_rounds: Number of rounds, at least 2.
        cohort_size: Expected cohort size.
        clip: Clipping norm.
        noise: Noise multiplier. None: neither clipping nor noise, and division by the number of replies.
        local: Learning rate and batch size of the users, which train for one epoch.
        seed: Seed of the noise.
    """
    np.random.seed(seed)  # noqa: NPY002  # pfl derives the seeds of its noise from it
    module, data = UserModel(net), GivenCohorts(rounds)
    private = [ExpectedSize(), CentrallyAppliedPrivacyMechanism(GaussianMechanism(clip, noise))] if noise else []
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=private),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=num_rounds,
            evaluation_frequency=num_rounds + 1,
            train_cohort_size=cohort_size,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=local.lr, local_batch_size=local.batch_size
        ),
        send_metrics_to_platform=False,
    )
    return float(np.median(np.array(data.ends) - data.begins[:-1]))  # the last round has no end
