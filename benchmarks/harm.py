"""Harm: clients adapted by `label_shift` against the unadapted model, under shifts unknown to the safeguard.

    python benchmarks/harm.py --seeds 2                 # printed only
    python benchmarks/harm.py --seeds 10 --write        # docs/records/harm.md

For each data set and seed, FedAvg trains one model (an MLP; for CIFAR-10 also LeNet). Under each shift, clients adapt
it with and without the safeguard. There are two kinds of clients, at most 25 of each: label-shifted (unseen clients of
a Dirichlet 0.1 partition) and alike (the same examples in random order). A client's first 5, 20 or 200 inputs adapt the
model, and at most 200 further inputs score it. A cell is a data set and model, a kind of client, a shift and a number
of inputs. Its value is the mean over seeds of the clients' mean gain over the unadapted model on the same inputs.
Fashion-MNIST, MNIST and CIFAR-10 are read from FEDREACH_DATA; without them, the digits of the package are used. Images
in color are also shifted in color. One process, one thread. Rows are kept in --rows, so more seeds cost only
themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

import fedreach
from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import FedReachError
from fedreach._util.streams import generator
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData, federate
from fedreach.data.partition import dirichlet_by_class
from fedreach.data.shifts import SHIFTS, Examples, InputScale, Shift
from fedreach.engines.models.flat import Layout
from fedreach.engines.models.networks import lenet, mlp
from fedreach.engines.trainer import answers
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.base import Adaptation
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.types import Outputs, State
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import simulate
from harm_shifts import FRESH, IN_COLOR, Pixels
from harm_tables import KINDS, text
from seeds import asked, kept, tell

INPUTS = (5, 20, 200)
SCORED, FEWEST, CLIENTS, ROUNDS = 200, 20, 25, 60
LENET = ", LeNet"
RULES = {"guarded": LabelShift(), "unguarded": LabelShift(guard=False)}
OWN: Mapping[str, tuple[str, float]] = {
    "brightness +0.17": ("brightness", 0.17),
    "brightness −0.23": ("brightness", -0.23),
    "contrast 0.62": ("contrast", 0.62),
    "contrast −0.7": ("contrast", -0.7),
    "noise 0.37": ("noise", 0.37),
    "blur 1.3": ("blur", 1.3),
    "rotation 27": ("rotation", 27.0),
    "translation 3.5": ("translation", 3.5),
    "occlusion 0.13": ("occlusion", 0.13),
    "permuted_labels 0.5": ("permuted_labels", 0.5),
    "one_class": ("one_class", 1.0),
}
"""Kinds that the guard was chosen on, at strengths of their own; and the two of labels, which it was not."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, and who holds what."""

    data: FederatedData
    module: torch.nn.Module
    params: Floats

    def outputs(self, x: Any) -> Outputs:
        """Return what the model says of inputs as they are stored."""
        d = self.data.dataset
        shape = (-1, 1, 1)
        mean, std = (torch.tensor(v).view(shape) for v in (d.mean, d.std))
        inputs = (torch.from_numpy(x).float() / 255 - mean) / std
        vector = torch.from_numpy(np.array(self.params, np.float32))
        return answers(self.module, Layout.of(self.module), vector, inputs, inputs=True)


def shifts(*, in_color: bool = False) -> dict[str, Shift | None]:
    """Return the shifts by name; None is none."""
    found: dict[str, Shift | None] = {"none": None}
    found |= {name: SHIFTS[kind](strength) for name, (kind, strength) in OWN.items()}
    fresh = {**FRESH, **IN_COLOR} if in_color else FRESH
    return found | {name: Pixels(change) for name, change in fresh.items()}


def data_sets() -> dict[str, Dataset]:
    """Return Fashion-MNIST, MNIST and CIFAR-10 where they are there, or else the digits."""
    found = {}
    for name in ("fashion_mnist", "mnist", "cifar10"):
        try:
            found[name] = fedreach.load(name, download=False)
        except FedReachError:
            print(f"{name} is not in the folder FEDREACH_DATA: left out")
    return found or {"digits": fedreach.load("digits")}


def _in_color(dataset: Dataset) -> bool:
    return dataset.train_x.ndim == 4 and dataset.train_x.shape[1] == 3


def network(sample_shape: Sequence[int], num_classes: int) -> torch.nn.Module:
    """Return a dense network with a hidden layer of 100 units."""
    return mlp(sample_shape, num_classes, hidden=(100,))


def train(
    dataset: Dataset,
    seed: int,
    model: Callable[[Sequence[int], int], torch.nn.Module] = network,
    *,
    rounds: int = ROUNDS,
    epochs: int = 2,
) -> Trained:
    """Train a model by FedAvg: 100 clients, 40 of them take part, 10 a round; of small sets a fifth of that."""
    clients = 100 if len(dataset.train_y) > 10_000 else 20
    partition = dirichlet_by_class(dataset.train_y, clients, generator(seed, "partition"), alpha=0.1, min_size=10)
    data = federate(dataset, partition, participants=clients * 2 // 5, seed=seed)
    local = LocalSGD(lr=0.05, batch_size=50, epochs=epochs, clip_norm=10.0)
    federation = Federation(Uniform(), ByExamples(), FedAvg(), local, Average(), cohort_size=clients // 10, seed=seed)
    simulation = simulate(data, model, federation, rounds=rounds)
    state = simulation.start()
    for _ in range(rounds):
        state, _, _ = simulation.step(state)
    return Trained(data, model(dataset.train_x.shape[1:], dataset.num_classes), np.asarray(state.params))


def fitted(trained: Trained, rule: Adaptation) -> State:
    """Return the rule's state, fitted on the participants."""
    data, counts = trained.data, trained.data.label_counts().astype(np.float64)
    held = [(c, data.held_out[c]) for c in data.population.participants.tolist() if len(data.held_out[c])]
    d = data.dataset
    return fit(rule, [HeldOut(trained.outputs(d.train_x[i]), d.train_y[i], counts[c]) for c, i in held]).state


def holdings(data: FederatedData, seed: int) -> dict[str, list[Ints]]:
    """Return which samples each client holds, in random order: the unseen clients', and the same dealt at random."""
    rng, unseen = generator(seed, "harm"), data.population.unseen.tolist()
    own = [rng.permutation(np.concatenate([data.train[c], data.held_out[c]])) for c in unseen]
    dealt = rng.permutation(np.concatenate(own))
    size = min(INPUTS[-1] + SCORED, len(dealt) // CLIENTS)
    return dict(zip(KINDS, (own, [dealt[i * size : (i + 1) * size] for i in range(CLIENTS)]), strict=True))


def shown(trained: Trained, shift: Shift | None, held: Sequence[Ints], seed: int) -> Iterator[Examples]:
    """Yield what shifted clients have to show, those that have enough."""
    d, scale = trained.data.dataset, InputScale.of(trained.data.dataset)
    whole = shift is not None and type(shift) is SHIFTS["one_class"]  # which drops examples
    adapted = 0
    for client, index in enumerate(held):
        index = index if whole else index[: INPUTS[-1] + SCORED]
        examples = Examples(d.train_x[index], d.train_y[index], index)
        if shift is not None:
            examples = shift.shifted(examples, scale, generator(seed, "shift", client=client))
        if len(examples.y) >= INPUTS[0] + FEWEST and adapted < CLIENTS:
            adapted += 1
            yield examples.only(slice(INPUTS[-1] + SCORED))


def adapted(trained: Trained, states: Mapping[str, State], clients: Sequence[Examples]) -> Iterator[dict[str, Any]]:
    """Yield, for each number of inputs, the means over clients of plain accuracy and of what each rule gains."""
    outputs = [trained.outputs(examples.x) for examples in clients]
    for n in INPUTS:
        # Scored on the inputs after the 200th, where a client has enough for that; else on those after the n-th.
        begins = [INPUTS[-1] if len(c.y) >= INPUTS[-1] + FEWEST else n for c in clients]
        able = [i for i, c in enumerate(clients) if len(c.y) >= begins[i] + FEWEST]
        if not able:
            continue
        ends = [outputs[i].at(slice(begins[i], None)) for i in able]
        labels = [clients[i].y[begins[i] :] for i in able]
        plain = np.array([(o.logits.argmax(axis=1) == y).mean() for o, y in zip(ends, labels, strict=True)])
        row: dict[str, Any] = {"inputs": n, "clients": len(able), "unadapted": 100 * float(plain.mean())}
        for name, rule in RULES.items():
            state = states[name]
            kept = rule.update_many(state, [rule.start(state)] * len(able), [outputs[i].at(slice(n)) for i in able])
            right = [
                (rule.predict(state, own, o).argmax(axis=1) == y).mean()
                for own, o, y in zip(kept, ends, labels, strict=True)
            ]
            row[name] = 100 * float(np.mean(right - plain))
        yield row


def measure(name: str, dataset: Dataset, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one model, LeNet where the name ends with it."""
    began = time.perf_counter()
    trained = train(dataset, seed, lenet if name.endswith(LENET) else network)
    between = time.perf_counter()
    states = {rule: fitted(trained, RULES[rule]) for rule in RULES}
    for kind, held in holdings(trained.data, seed).items():
        for shift, made in shifts(in_color=_in_color(dataset)).items():
            for row in adapted(trained, states, list(shown(trained, made, held, seed))):
                yield {"kind": kind, "shift": shift, **row}
    spent = between - began, time.perf_counter() - between
    print(f"{name}, seed {seed}: {spent[0]:.0f} s of training, {spent[1]:.0f} s of adaptation", flush=True)


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/harm.jsonl", first=100)
    sets = data_sets()
    names = [*sets, *(name + LENET for name in sets if name == "cifar10")]
    models = [{"data": name, "seed": seed} for seed in seeds for name in names]
    rows = kept(file, models, lambda data, seed: measure(data, sets[data.removesuffix(LENET)], seed))
    tell("harm", text(rows), write=write)


if __name__ == "__main__":
    main()
