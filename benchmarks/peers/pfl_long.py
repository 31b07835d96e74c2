"""A long workload in pfl-research 0.6: a folder of arrays, rounds, and central evaluation every so many of them.

    python pfl_long.py --folder DATA --case flute_lr --rounds 100 --every 20    # prints one line of JSON
    torchrun --standalone --nnodes=1 --nproc_per_node=2 pfl_long.py ...         # pfl's way to use all cores

`long.py` writes the folder. Clients are those of the folder, without the one example that FedReach holds out; model,
cohort, batch and learning rate are those of the case. Cohorts are uniform. Images are scaled as FedReach scales them,
when a client is asked for: all of them as floats would be four times the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import CASES
from measure import CORES, versions
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl_run import UserModel

EVALUATED = 1000  # examples at a time; 10,000, as in pfl's benchmark of CIFAR-10, take 12 GB


class Evaluation(CentralEvaluationCallback[PyTorchModel]):
    """Notes how long each evaluation takes."""

    def __init__(self, dataset: PyTorchTensorDataset, every: int, times: list[float]) -> None:
        super().__init__(dataset, NNEvalHyperParams(EVALUATED), every)
        self.times = times

    def _eval(self, model: PyTorchModel) -> tuple[bool, Metrics]:
        began = time.perf_counter()
        found: tuple[bool, Metrics] = super()._eval(model)
        self.times.append(time.perf_counter() - began)
        return found


class Rounds(TrainingProcessCallback[PyTorchModel]):
    """Notes how long each round takes, evaluation left out: it is told before `Evaluation`, and after it."""

    def __init__(self, times: list[float], evaluations: list[float]) -> None:
        self.times, self.evaluations = times, evaluations
        self.began, self.evaluated = 0.0, 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.began, self.evaluated = time.perf_counter(), 0
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        self.times.append(now - self.began - sum(self.evaluations[self.evaluated :]))
        self.began, self.evaluated = now, len(self.evaluations)
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--case", required=True, choices=list(CASES))
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of weights and cohorts; default: %(default)s")
    arguments = parser.parse_args()
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    distributed = torch.distributed.is_initialized()  # pfl did so when it was imported under torchrun
    workers = torch.distributed.get_world_size() if distributed else 1
    torch.set_num_threads(max(1, CORES // workers))
    torch.manual_seed(arguments.seed)
    np.random.seed(arguments.seed)  # noqa: NPY002  # pfl draws cohorts by it, alike in all processes
    case = CASES[arguments.case]
    arrays = {name: np.load(arguments.folder / f"{name}.npy", "r") for name in ("x", "y", "client", "x_test", "y_test")}
    offsets = np.searchsorted(arrays["client"], np.arange(arrays["client"][-1] + 2))
    channels = (0, *range(2, arrays["x"].ndim))
    some = arrays["x"][:: max(1, len(arrays["x"]) // 10_000)] / 255
    mean, std = (some.mean(channels), some.std(channels))

    def dataset(x: Any, y: Any, user: str | None = None) -> PyTorchTensorDataset:
        pixels = torch.from_numpy(np.array(x)).float()
        shift, scale = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (mean, std))
        inputs = ((pixels / 255 - shift) / scale).reshape(len(x), *case.example_shape)
        return PyTorchTensorDataset((inputs, torch.from_numpy(np.array(y))), user_id=user)

    def user(number: int) -> PyTorchTensorDataset:
        own = slice(offsets[number] + 1, offsets[number + 1])
        return dataset(arrays["x"][own], arrays["y"][own], str(number))

    module = UserModel(case.make_model())
    clients = FederatedDataset(user, get_user_sampler("random", range(len(offsets) - 1)))
    test = dataset(arrays["x_test"], arrays["y_test"])
    rounds: list[float] = []
    evaluations: list[float] = []
    FederatedAveraging().run(
        backend=SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),  # as FedAvg does
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.rounds,
            evaluation_frequency=arguments.rounds + 1,
            train_cohort_size=case.cohort_size,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=case.learning_rate, local_batch_size=case.batch_size
        ),
        callbacks=[Rounds(rounds, evaluations), Evaluation(test, arguments.every, evaluations)],
        send_metrics_to_platform=False,
    )
    if not distributed or torch.distributed.get_rank() == 0:
        x, y = test.raw_data
        with torch.inference_mode():
            right = torch.cat([module.net.eval()(part).argmax(1) for part in x.split(1000)]) == y
        row = {"rounds": rounds, "evaluations": evaluations, "accuracy": float(right.float().mean())}
        print(json.dumps(row | {"versions": versions("pfl")}))
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
