"""What each rank of `test_distributed` runs: rank 0 compares an engine alone with one that all ranks help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s, Ints
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData, federate
from fedreach.engines import vmap
from fedreach.engines.choice import ENGINES
from fedreach.engines.distributed import DistributedEngine, Ranks, join, serve
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Split, Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.trainer import GroupTrainer
from fedreach.engines.vmap import Vmap
from fedreach.federation.base import LocalSolver
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold

CLIENTS, SAMPLES = 9, 520  # three batches of evaluation
ALL = LocalSGD(batch_size=16, epochs=2, momentum=0.9, weight_decay=0.01, clip_norm=0.5)


def data(shape: tuple[int, ...], kind: str, num_classes: int) -> FederatedData:
    """Return clients of very different sizes; the smallest hold a few samples."""
    rng = generator(0, "distributed")
    if kind == "features":
        x = rng.standard_normal((2 * SAMPLES, *shape)).astype(np.float32)
    else:
        x = rng.integers(num_classes if kind == "tokens" else 256, size=(2 * SAMPLES, *shape)).astype(np.uint8)
    y = rng.integers(num_classes, size=2 * SAMPLES)
    half = slice(SAMPLES), slice(SAMPLES, None)
    dataset = from_arrays(x[half[0]], y[half[0]], x[half[1]], y[half[1]], kind=kind, num_classes=num_classes)
    share = np.arange(1, CLIENTS + 1) ** 2.0
    owner = rng.choice(CLIENTS, size=SAMPLES, p=share / share.sum())
    partition = Partition.from_owner(owner, CLIENTS, kind="natural")
    return federate(dataset, partition, participants=CLIENTS, noise={"kind": "symmetric", "rate": 0.3})


def mlp() -> nn.Module:
    return build("mlp", (5,), 3, seed=1, options={"hidden": [10, 5]})


def resnet() -> nn.Module:
    return build("resnet20", (1, 8, 8), 3, seed=1, options={"width": 2, "norm": "batch"})


def lstm() -> nn.Module:
    return build("lstm", (6,), 12, seed=1, options={"embedding": 3, "hidden": 5})


def dropout() -> nn.Module:
    """Return a model whose training draws random numbers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3))


class Interleaved(Vmap):
    """Makes other groups of a part of a cohort than of the whole; with dropout, that is another result."""

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        return [np.arange(len(ids))[first::4] for first in range(min(4, len(ids)))]


Case = tuple[type[GroupTrainer], Callable[[], nn.Module], tuple[tuple[int, ...], str, int], LocalSolver, LocalSGD, int]
FEATURES, IMAGE, TOKENS = ((5,), "features", 3), ((1, 16, 16), "image", 3), ((6,), "tokens", 12)
vmap.STACK_BYTES = 4000  # so that small models make several stacks
ONE_GROUP = "one stack"
CASES: dict[str, Case] = {
    "one client at a time": (Sequential, mlp, FEATURES, FedProx(mu=0.3), ALL, 1),
    "on two threads": (Sequential, lambda: build("lenet", (1, 16, 16), 3, seed=1), IMAGE, FedAvg(), LocalSGD(), 2),
    "buffers": (Sequential, resnet, ((1, 8, 8), "image", 3), FedAvg(), LocalSGD(steps=2), 1),
    "stacks": (Vmap, mlp, FEATURES, FedProx(mu=0.3), ALL, 1),
    "exact steps": (Vmap, mlp, FEATURES, FedAvg(), LocalSGD(steps=3), 2),
    "recurrent stacks": (Vmap, lstm, TOKENS, FedAvg(), LocalSGD(batch_size=64), 1),
    "dropout": (Sequential, dropout, FEATURES, FedAvg(), LocalSGD(), 1),
    "dropout in stacks": (Vmap, dropout, FEATURES, FedAvg(), LocalSGD(), 1),
    "groups of another kind": (Interleaved, dropout, FEATURES, FedAvg(), LocalSGD(), 1),
    "control variates": (Sequential, mlp, FEATURES, Scaffold(), LocalSGD(), 1),
    "terms in stacks": (Vmap, mlp, FEATURES, FedDyn(alpha=0.3), LocalSGD(), 1),
    ONE_GROUP: (Vmap, lambda: build("linear", (5,), 3, seed=1), FEATURES, FedAvg(), LocalSGD(), 1),
    **{f"engine {name}": (kind, mlp, FEATURES, FedAvg(), ALL, 2) for name, kind in ENGINES.items()},
}


def made(case: Case) -> TorchEngine:
    kind, module, of, solver, local, threads = case
    return TorchEngine(kind, Task(module(), data(*of), solver, local, seed=3), threads=threads)


def compared(alone: TorchEngine, helped: DistributedEngine) -> dict[str, bool]:
    """Return of everything that is asked of an engine whether both answer with the same bytes."""
    same: dict[str, bool] = {}
    start = alone.initial
    for number, ids in ((1, np.arange(CLIENTS)), (2, np.array([1, 4, 7]))):
        terms = prepared(alone, ids)
        one, other = (engine.train(start, ids, number, 0.05, terms) for engine in (alone, helped))
        same[f"train {number}"] = all(map(equal, one[:3], other[:3])) and one.trainable == other.trainable
        for before in (True, False)[: 3 - number]:
            told = [engine.outputs(start, one.update, ids, before=before) for engine in (alone, helped)]
            same[f"outputs {number} {before}"] = all(
                all(map(equal, (a.logits, a.labels), (b.logits, b.labels)))
                and (equal(a.before, b.before) if before else b.before is None)
                for a, b in zip(*told, strict=True)
            )
        losses = [engine.training_loss(start, ids) for engine in (alone, helped)]
        same[f"training loss {number}"] = equal(*losses)
        same[f"all processes add up {number}"] = helped.threads == 1 or helped.workers.shares(other.update)
        weights = generator(number, "weights").random(len(ids))
        same[f"sum {number}"] = equal(*(engine.weighted_sum(weights, one.update) for engine in (alone, helped)))
        start = start + one.update.mean(axis=0)
    splits: tuple[tuple[Split, int], ...] = (("train", SAMPLES), ("true", SAMPLES), ("test", 300), ("test", 5))
    for split, size in splits:
        answers = [engine.predict(start, split, np.arange(size)) for engine in (alone, helped)]
        same[f"predict {split} {size}"] = all(map(equal, *answers))
        same[f"logits {split} {size}"] = equal(*(e.logits(start, split, np.arange(size)) for e in (alone, helped)))
    same["the model moved"] = not equal(start, alone.initial)
    return same | {"all ranks trained": bool((helped._seconds > 0).all())}


def prepared(engine: TorchEngine, ids: Ints) -> Mapping[str, Float32s]:
    if isinstance(engine.solver, FedAvg | FedProx):
        return {}
    rng = generator(5, "memory")
    memory = rng.standard_normal((CLIENTS, engine.num_trainable)).astype(np.float32)[ids] * 0.1
    state = {"c": rng.standard_normal(engine.num_trainable) * 0.1}
    return engine.solver.prepare(memory, state, np.linspace(0.5, 2.0, len(ids)))


def equal(a: AnyArray, b: AnyArray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def echoed(ranks: Ranks) -> bool:
    """Return whether what rank 0 sends comes back as it was."""
    if ranks.rank:
        ranks.send(ranks.receive(0), 0)
        return True
    fixed = np.arange(10_000.0).reshape(100, 100)
    fixed.flags.writeable = False
    arrays = [fixed, fixed[:, ::3], fixed.T, np.empty((0, 5)), np.ones(2_000_000, np.int8), np.array(7)]
    same = True
    for rank in range(1, ranks.size):
        ranks.send({"arrays": arrays, "words": ("a", None, 1.5)}, rank)
        answer = ranks.receive(rank)
        same &= answer["words"] == ("a", None, 1.5) and all(map(equal, arrays, answer["arrays"]))
    return same


def main(out: Path) -> None:
    found: dict[str, Any] = {}
    with join() as ranks:
        found["echoed"] = echoed(ranks)
        for number, (name, case) in enumerate(CASES.items()):
            inner = made(case)
            if ranks.rank:
                serve(inner, ranks)
                continue
            found[name] = compared(made(case), DistributedEngine(inner, ranks))
            if number < len(CASES) - 1:  # leaving the block ends the last one
                for other in range(1, ranks.size):
                    ranks.send(None, other)
    if not ranks.rank:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
