"""Cells with clients as the paper draws them, for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from fedreach._util.streams import generator
from fedreach.wireless.problem import AllocationProblem, training_cycles
from fedreach.wireless.radio import bits_per_second, path_gain, watts

MODEL_BITS = {"cifar10": 32 * 62_006, "fmnist": 32 * 44_426}  # LeNet
EXAMPLE_BITS = {"cifar10": 24_576, "fmnist": 6_272}


def cell(
    clients: int,
    seed: int = 0,
    *,
    hertz_unit: float = 1e9,
    dataset: str = "cifar10",
    share_needed: float = 0.25,
    bandwidth_hertz: float | None = None,
    num_examples: tuple[int, int] = (50, 200),
    **prices: float,
) -> tuple[AllocationProblem, int]:
    """Return clients in a cell and how many examples a round needs, a quarter of all.

    "Data Heterogeneity-Aware Client Selection", Table I: 200 to 250 m, 20 to 33 dBm, |h|^2 ~ Exp(1), 2.4 GHz, exponent
    2.7, -174 dBm/Hz, 1 to 10 cycles a bit, 10 passes; "[2, 5] MHz" is read as GHz unless `hertz_unit` is 1e6. 2 MHz are
    for 80 clients or fewer, and grow with their number above.
    """
    rng = generator(seed, "cell", client=clients)
    band = 2e6 * max(1.0, clients / 80) if bandwidth_hertz is None else bandwidth_hertz
    power = watts(rng.uniform(20.0, 33.0, clients))
    gain = path_gain(rng.uniform(200.0, 250.0, clients), 2.4e9, 2.7) * rng.exponential(1.0, clients)
    examples = rng.integers(num_examples[0], num_examples[1], clients, endpoint=True)
    cycles = training_cycles(10, examples, EXAMPLE_BITS[dataset], rng.uniform(1.0, 10.0, clients))
    problem = AllocationProblem(
        upload_seconds=MODEL_BITS[dataset] / bits_per_second(band, watts(-174.0), gain, power),
        power_watts=power,
        cycles=cycles,
        max_hertz=rng.uniform(2.0, 5.0, clients) * hertz_unit,
        num_examples=examples,
        **prices,
    )
    return problem, max(1, round(share_needed * int(examples.sum())))


def gigahertz(clients: int, seed: int = 0, **changes: float) -> tuple[AllocationProblem, int]:
    """Return the regime G: CIFAR, 2 to 5 GHz; computing costs about as much as sending."""
    return cell(clients, seed, **changes)


def megahertz(clients: int, seed: int = 0, **changes: float) -> tuple[AllocationProblem, int]:
    """Return the regime M: Fashion-MNIST, 2 to 5 MHz as printed; the slowest CPU sets the deadline."""
    return cell(clients, seed, hertz_unit=1e6, dataset="fmnist", **changes)


KINDS = (
    *("plain", "identical", "two_types", "wide", "huge", "proportional", "zeros", "no_joules", "cheap_seconds"),
    *("dear_seconds", "no_work", "everyone"),
)


def odd(kind: str, clients: int, rng: np.random.Generator) -> tuple[AllocationProblem, int]:
    """Return a problem that is made to be hard in one of twelve ways, and a demand of 5 to 90% of the examples.

    Half of them have processors of a few megahertz, where the slowest sets the deadline.
    """
    tau, power = rng.exponential(0.1, clients) + 0.02, 10 ** rng.uniform(-1, 0.3, clients)
    examples = rng.integers(50, 201, clients)
    cycles = training_cycles(10, examples, EXAMPLE_BITS["cifar10"], rng.uniform(1.0, 10.0, clients))
    hertz = rng.uniform(2.0, 5.0, clients) * (1e6 if rng.random() < 0.5 else 1e9)
    prices = dict(zip(("time_weight", "energy_weight"), 10 ** rng.uniform(-1, 1, 2), strict=True))
    if kind in ("identical", "two_types"):
        place = np.zeros(clients, int) if kind == "identical" else rng.integers(0, min(2, clients), clients)
        tau, power, cycles, hertz, examples = (values[place] for values in (tau, power, cycles, hertz, examples))
    elif kind == "wide":
        examples = (10 ** rng.uniform(0, 4, clients)).astype(np.int64)
    elif kind == "huge":
        examples = rng.integers(2**35, 2**40, clients)
    elif kind == "proportional":
        tau, power, cycles = examples * 1e-3, np.full(clients, 0.3), examples * 2e6
    elif kind == "zeros":
        examples = np.where(rng.random(clients) < 0.4, 0, examples)
        examples[0] = max(1, examples[0])
    elif kind == "no_joules":
        prices["energy_weight"] = 0.0
    elif kind in ("cheap_seconds", "dear_seconds"):
        prices["time_weight"] = 1e-4 if kind == "cheap_seconds" else 1e4
    elif kind == "no_work":
        cycles = np.where(rng.random(clients) < 0.5, 0.0, cycles)
    total = int(examples.sum())
    demand = total if kind == "everyone" else max(1, int(total * rng.uniform(0.05, 0.9)))
    return AllocationProblem(tau, power, cycles, hertz, examples, **prices), demand
