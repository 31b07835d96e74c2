"""FedAvg in pfl-research 0.6 (https://github.com/apple/pfl-research), set up as its documentation advises.

    python pfl_run.py --case mlp            # prints one line of JSON
    python pfl_run.py --case mlp --check    # tests the result instead
    torchrun --standalone --nnodes=1 --nproc_per_node=2 pfl_run.py --case mlp    # pfl's way to use all cores

Its fast paths are on: users' data are in-memory tensors whose `Dataset` objects, with the batches they cache, live
from round to round, on the GPU with `--device cuda`; no evaluation, no metrics output. `use_torch_compile` is left
off: pfl calls `loss` on the module inside the compiled one, so nothing that it trains would be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
from copy import deepcopy

import torch
from cases import Case
from measure import (
    Clock,
    case_of,
    in_float64,
    largest_difference,
    make_row,
    mean_loss,
    parse_arguments,
    peak_rss_mb,
    require,
)
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from plain_torch import run_round
from torch import nn


class UserModel(nn.Module):
    """The case's model with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Lap(TrainingProcessCallback):
    """Tells the clock when a central iteration is over."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.lap()
        return False, Metrics()


def train(
    net: nn.Module, case: Case, x: torch.Tensor, y: torch.Tensor, rounds: int, batch_size: int, clock: Clock
) -> None:
    """Train `net` in place for so many rounds.

    pfl evaluates in iteration 0 whatever `evaluation_frequency` is, so that the first round must be a warm-up.
    """
    module = UserModel(net)
    users = [PyTorchTensorDataset((x[i], y[i]), user_id=str(i)) for i in range(case.num_clients)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(case.num_clients)))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=case.cohort_size,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=case.learning_rate, local_batch_size=batch_size
        ),
        callbacks=[Lap(clock)],
        send_metrics_to_platform=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parse_arguments(parser)
    os.environ["PFL_PYTORCH_DEVICE"] = arguments.device
    case = case_of(arguments)
    distributed = torch.distributed.is_initialized()  # pfl did so when it was imported under torchrun
    rank, workers = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    if case.cohort_size % workers:
        # Workers that train unequal numbers of users draw from pfl's sampler unequally often and lose step.
        parser.error(f"--nproc_per_node must divide the cohort of {case.cohort_size} clients; got {workers}")
    x, y = (torch.from_numpy(array).to(arguments.device) for array in case.make_data(arguments.seed))
    net, clock = case.make_model().to(arguments.device), Clock()
    if arguments.check:
        check(case, net, x, y)
    else:
        rounds = arguments.warmup + arguments.rounds * arguments.repeats
        train(net, case, x, y, rounds, case.batch_size, clock)
        peak = torch.tensor(peak_rss_mb())
        if distributed:
            torch.distributed.all_reduce(peak)  # the sum over the workers
        row = make_row("pfl", case, arguments, clock, packages=("pfl",), peak_mb=float(peak), workers=workers)
        if rank == 0:
            print(json.dumps(row))
    if distributed:
        torch.distributed.destroy_process_group()


def check(case: Case, start: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Require that pfl and plain torch end with the same model, and that the model has learnt something.

    In float64: on `lenet` the rounding of float32 alone grows to 7e-5 in three rounds, through ReLU and max-pooling.
    What is left in float64 is pfl's own rounding: it keeps numbers in float32 between a client and the server, so that
    the error is in proportion to the largest of them (an embedding's are up to 4).
    """
    start, x = start.double(), in_float64(x)
    settings = {"one full-batch step per client": (1, case.samples), "3 rounds of batches": (3, case.batch_size)}
    for setting, (rounds, batch_size) in settings.items():
        ours, theirs = deepcopy(start), deepcopy(start)
        train(theirs, case, x, y, rounds, batch_size, Clock())
        server = deepcopy(start.state_dict())
        for round_ in range(rounds):
            server = run_round(
                server, ours, x, y, case.cohort_of(round_), batch_size=batch_size, learning_rate=case.learning_rate
            )
        moved = largest_difference(start.state_dict(), server)
        error = largest_difference(theirs.state_dict(), server)
        rounding = 1e-7 * max(1.0, *(float(value.abs().max()) for value in server.values()))
        require(
            error < rounding < moved / 1000, f"pfl is plain torch in {setting}: off by {error:.1e}, moved {moved:.1e}"
        )
    before, after = mean_loss(start, x, y), mean_loss(theirs, x, y)
    require(after < before, f"3 rounds lower the loss: {before:.4f} to {after:.4f} nats")


if __name__ == "__main__":
    main()
