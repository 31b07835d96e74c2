"""FedAvg as one writes it by hand in torch: one client at a time, no framework.

    python plain_torch.py --case mlp            # prints one line of JSON
    python plain_torch.py --case mlp --check    # tests the result instead
    torchrun --standalone --nnodes=1 --nproc_per_node=2 plain_torch.py --case mlp    # shares the cohort out

Clients take their examples in stored order, as pfl does; `--shuffle` draws a new order each time. `--channels-last`
lays images and filters out with their channels last.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from cases import Case
from measure import Clock, case_of, largest_difference, make_row, mean_loss, parse_arguments, peak_rss_mb, require
from torch import distributed, nn

State = dict[str, torch.Tensor]


def run_round(
    server: State,
    net: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    cohort: Sequence[int],
    *,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator | None = None,
) -> State:
    """Train every client of the cohort for one epoch from `server` and return the mean of their models.

    All clients hold the same number of examples m, so FedAvg's weights m_i / sum(m) are 1 / k. Under torchrun each
    process trains every so-many-th client, and all of them add up.

    Args:
        server: State dict of the model that is broadcast.
        net: The model to train in; its parameters are overwritten.
        x: Examples, (N, m, ...).
        y: Labels, (N, m).
        cohort: Ids of the k clients.
        batch_size: Examples in one step.
        learning_rate: Step size of SGD.
        rng: Shuffles each client's examples; None leaves them in stored order.
    """
    mean = {name: torch.zeros_like(value) for name, value in server.items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    rank, workers = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    for client in cohort[rank::workers]:
        net.load_state_dict(server)
        examples, labels = x[client], y[client]
        if rng is not None:
            order = torch.from_numpy(rng.permutation(len(labels))).to(labels.device)
            examples, labels = examples[order], labels[order]
        for batch, target in zip(examples.split(batch_size), labels.split(batch_size), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch), target).backward()
            optimizer.step()
        for name, value in net.state_dict().items():
            mean[name].add_(value, alpha=1 / len(cohort))
    if workers > 1:
        for value in mean.values():
            distributed.all_reduce(value)
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shuffle", action="store_true", help="shuffle each client's examples every round")
    parser.add_argument("--channels-last", action="store_true", help="lay images and filters out so")
    arguments = parse_arguments(parser)
    case = case_of(arguments)
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
    x, y = (torch.from_numpy(array).to(arguments.device) for array in case.make_data(arguments.seed))
    model = case.make_model().to(arguments.device)
    if arguments.channels_last:
        x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, x.shape[:2])
        model = model.to(memory_format=torch.channels_last)
    if arguments.check:
        check(case, model, x, y)
    else:
        time(case, model, x, y, arguments)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def time(case: Case, model: nn.Module, x: torch.Tensor, y: torch.Tensor, arguments: argparse.Namespace) -> None:
    """Train for the rounds that are asked for, and print what they took."""
    rng = np.random.default_rng(arguments.seed) if arguments.shuffle else None
    server, net, clock = deepcopy(model.state_dict()), deepcopy(model), Clock()
    for round_ in range(arguments.warmup + arguments.rounds * arguments.repeats):
        cohort = case.cohort_of(round_)
        server = run_round(
            server, net, x, y, cohort, batch_size=case.batch_size, learning_rate=case.learning_rate, rng=rng
        )
        clock.lap()
    peak, rank, workers = torch.tensor(peak_rss_mb()), 0, 1
    if distributed.is_initialized():
        rank, workers = distributed.get_rank(), distributed.get_world_size()
        distributed.all_reduce(peak)
    if rank == 0:
        peer = "plain_torch_shuffled" if arguments.shuffle else "plain_torch"
        print(json.dumps(make_row(peer, case, arguments, clock, peak_mb=float(peak), workers=workers)))


def check(case: Case, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Require that a round with one full batch per client is one gradient step on all their examples."""
    cohort, start = case.cohort_of(0), deepcopy(model.state_dict())
    averaged = run_round(
        start, deepcopy(model), x, y, cohort, batch_size=case.samples, learning_rate=case.learning_rate
    )
    central = deepcopy(model)
    nn.functional.cross_entropy(central(x[cohort].flatten(0, 1)), y[cohort].flatten()).backward()
    torch.optim.SGD(central.parameters(), lr=case.learning_rate).step()
    moved, error = largest_difference(start, averaged), largest_difference(central.state_dict(), averaged)
    require(
        error < 1e-6 < moved / 1000, f"full-batch FedAvg is one central step: off by {error:.1e}, moved {moved:.1e}"
    )

    before = mean_loss(model, x, y)
    for round_ in range(3):
        start = run_round(
            start, model, x, y, case.cohort_of(round_), batch_size=case.batch_size, learning_rate=case.learning_rate
        )
    model.load_state_dict(start)
    after = mean_loss(model, x, y)
    require(after < before, f"3 rounds lower the loss: {before:.4f} to {after:.4f} nats")


if __name__ == "__main__":
    main()
