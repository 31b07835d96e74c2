"""Training of every module of the tests' zoo on a device and on the CPU, for `gpu.py --zoo`.

The zoo, `tests/engines/zoo.py`, has small modules of many kinds. Tests compare each with plain torch on the CPU. Here
the engines on the device are compared with the engine `sequential` on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from fedreach._util.arrays import Float32s
from fedreach._util.errors import ConfigError
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, federate
from fedreach.engines.choice import build_engine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg
from tables import table

ENGINES_TRIED = ("sequential", "auto")
SIZES = (13, 8, 7)
LOCAL, ROUND, RATE, SEED = LocalSGD(batch_size=4, epochs=2), 3, 0.05, 5
TOLERANCE = 1e-4  # of each number of an update; kernels of a GPU add up in another order


class Outcome(NamedTuple):
    """What became of a module with an engine on the device."""

    member: str
    engine: str  # the one that trained
    distance: float | None  # largest difference of a number from the CPU's; None: it did not train
    words: str  # why it did not, or what is wrong; empty where all is right
    is_wrong: bool


def data_of(member: Any, classes: int) -> FederatedData:
    """Return three clients with random examples of the shape and kind that a module takes."""
    rng, n = np.random.default_rng(SEED), sum(SIZES)
    if member.kind == "features":
        x: Any = rng.standard_normal((n, *member.shape)).astype(np.float32)
    else:
        x = rng.integers(256 if member.kind == "image" else classes, size=(n, *member.shape)).astype(np.uint8)
    y = rng.integers(classes, size=n)
    partition = Partition.from_owner(np.repeat(np.arange(len(SIZES)), SIZES), len(SIZES), "natural")
    return federate(from_arrays(x, y, kind=member.kind, num_classes=classes), partition, held_out=1e-9)


def trained(member: Any, data: FederatedData, classes: int, engine: str, device: str) -> tuple[str, Float32s]:
    """Return the engine that trained, and the update of each client."""
    options = {"p": 0.0} if member.drops else {}  # devices draw other masks
    module = build(partial(member.make, **options), member.shape, classes, seed=1)
    made = build_engine(engine, Task(module, data, FedAvg(), LOCAL, SEED), device)
    return made.name, made.train(made.initial, np.arange(len(SIZES)), ROUND, RATE).update


def outcome(name: str, member: Any, classes: int, engine: str, device: str) -> Outcome:
    """Return what becomes of a module. One that draws random numbers is compared with itself, trained twice."""
    data = data_of(member, classes)
    reference = (engine, device) if member.draws else ("sequential", "cpu")
    _, expected = trained(member, data, classes, *reference)
    try:
        used, update = trained(member, data, classes, engine, device)
    except ConfigError as error:  # in words, before the first round
        return Outcome(name, engine, None, f"rejected: {error}".splitlines()[0], is_wrong=False)
    except Exception as error:
        return Outcome(name, engine, None, f"FAILED: {type(error).__name__}: {error}".splitlines()[0], is_wrong=True)
    distance = float(np.abs(update - expected).max())
    is_wrong = not distance <= TOLERANCE
    return Outcome(name, used, distance, "FAILED: it trains otherwise" if is_wrong else "", is_wrong)


def zoo_outcomes(device: str, names: Sequence[str] | None = None) -> Iterable[Outcome]:
    """Yield what becomes of each module of the zoo with each engine."""
    import tests.engines.zoo_families  # noqa: F401 (adds its members to the zoo)
    from tests.engines.zoo import CLASSES, ZOO

    for name in ZOO if names is None else names:
        for engine in ENGINES_TRIED:
            yield outcome(name, ZOO[name], CLASSES, engine, device)


def zoo_table(outcomes: Sequence[Outcome], device: str) -> str:
    """Return a summary, and a line for each module that is rejected or wrong."""
    right = [each for each in outcomes if each.distance is not None and not each.is_wrong]
    wrong = sum(each.is_wrong for each in outcomes)
    largest = max((each.distance for each in right if each.distance is not None), default=0.0)
    summary = (
        f"{len(outcomes)} trainings of the zoo's modules on {device}: {len(right)} as on the CPU (largest difference "
        f"{largest:.1e}), {len(outcomes) - len(right) - wrong} rejected, {wrong} wrong."
    )
    lines = [
        [each.member, each.engine, "-" if each.distance is None else f"{each.distance:.1e}", each.words]
        for each in outcomes
        if each.words
    ]
    return "\n\n".join(
        [summary, table(["module", "engine", "difference", "what"], lines, left=2)] if lines else [summary]
    )
