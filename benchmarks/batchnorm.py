"""Gain of refreshing BatchNorm statistics for unseen clients, with and without shifts of their inputs.

    python benchmarks/batchnorm.py --seeds 2                 # printed only
    python benchmarks/batchnorm.py --seeds 10 --write        # docs/records/batchnorm.md

For each seed, FedAvg trains a small convolutional network with BatchNorm. Its clients are then unadapted, adapted by
`label_shift` with and without its safeguard, or adapted by `batchnorm`, as in `harm.py`. A client's first 5, 20 or 200
inputs adapt the model, and at most 200 further inputs score it. Fashion-MNIST is read from FEDREACH_DATA. One process,
one thread. Rows are kept in --rows, so more seeds cost only themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t
from torch import nn

import fedreach
from fedreach._util.arrays import Floats
from fedreach.data.datasets import Dataset
from fedreach.data.shifts import SHIFTS, Examples, Shift
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BatchNormRefresh
from fedreach.federation.base import Adaptation
from fedreach.federation.types import State
from harm import FEWEST, INPUTS, Trained, fitted, holdings, shown, train
from harm_tables import KINDS, signed
from seeds import asked, kept, tell
from tables import table

ROUNDS = 40
RULES: Mapping[str, Adaptation] = {
    "unguarded": LabelShift(guard=False),
    "label_shift": LabelShift(),
    "batchnorm": BatchNormRefresh(),
}
OWN = {"none": None, "brightness +0.3": 0.3, "brightness −0.3": -0.3, "noise 0.3": 0.3}


def shifts() -> dict[str, Shift | None]:
    """Return the shifts by name; None is none."""
    return {name: None if size is None else SHIFTS[name.split()[0]](size) for name, size in OWN.items()}


def network(sample_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Return two convolutions with BatchNorm, and two dense layers."""
    height, width = (math.ceil(math.ceil(side / 2) / 2) for side in sample_shape[1:])
    return nn.Sequential(
        nn.Conv2d(sample_shape[0], 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * height * width, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def adapted(trained: Trained, states: Mapping[str, State], clients: Sequence[Examples]) -> Iterator[dict[str, Any]]:
    """Yield, for each number of inputs, the means over clients of plain accuracy and of what each rule gains."""
    outputs = [trained.outputs(examples.x) for examples in clients]
    for n in INPUTS:
        right: dict[str, list[float]] = {name: [] for name in ("unadapted", *RULES)}
        for whole, examples in zip(outputs, clients, strict=True):
            # Scored on the inputs after the 200th, where a client has enough for that; else on those after the n-th.
            begin = INPUTS[-1] if len(examples.y) >= INPUTS[-1] + FEWEST else n
            if len(examples.y) < begin + FEWEST:
                continue
            others, labels = whole.at(slice(begin, None)), examples.y[begin:]
            right["unadapted"].append((others.logits.argmax(axis=1) == labels).mean())
            for name, rule in RULES.items():
                client = rule.update(states[name], rule.start(states[name]), whole.at(slice(n)))
                log_p = rule.predict(states[name], client, others)
                right[name].append((log_p.argmax(axis=1) == labels).mean())
        if right["unadapted"]:
            means = {name: 100 * float(np.mean(values)) for name, values in right.items()}
            gains = {name: means[name] - means["unadapted"] for name in RULES}
            yield {"inputs": n, "clients": len(right["unadapted"]), "unadapted": means["unadapted"], **gains}


def measure(dataset: Dataset, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one model."""
    began = time.process_time()
    trained = train(dataset, seed, network, rounds=ROUNDS, epochs=1)
    between = time.process_time()
    states = {name: fitted(trained, rule) for name, rule in RULES.items()}
    for kind, held in holdings(trained.data, seed).items():
        for shift, made in shifts().items():
            for row in adapted(trained, states, list(shown(trained, made, held, seed))):
                yield {"kind": kind, "shift": shift, **row}
    spent = between - began, time.process_time() - between
    print(f"seed {seed}: {spent[0]:.0f} s of training, {spent[1]:.0f} s of adaptation", flush=True)


def half_width(values: Floats) -> float:
    """Return half a 95 % t interval of the mean over seeds."""
    n = len(values)
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else math.nan


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of the page."""
    seeds = sorted({row["seed"] for row in rows})

    def each(kind: str, shift: str, column: str) -> list[Floats]:
        """Return the values over seeds, for each number of inputs."""
        here = [row for row in rows if (row["kind"], row["shift"]) == (kind, shift)]
        return [np.array([row[column] for row in here if row["inputs"] == n]) for n in INPUTS]

    lines = []
    for kind in KINDS:
        for shift in OWN:
            guarded, refreshed = each(kind, shift, "label_shift"), each(kind, shift, "batchnorm")
            apart = [b - a for a, b in zip(guarded, refreshed, strict=True)]
            line = [kind, shift, f"{each(kind, shift, 'unadapted')[-1].mean():.1f}"]
            line += [" / ".join(signed(v.mean()) for v in each(kind, shift, rule)) for rule in RULES]
            lines.append([*line, " / ".join(f"{signed(v.mean())} ± {half_width(v):.1f}" for v in apart)])
    head = ["clients", "shift", "unadapted %", "`label_shift` without safeguard, 5 / 20 / 200 inputs", "`label_shift`"]
    head += ["`batchnorm`", "`batchnorm` − `label_shift`"]
    return "\n".join(
        [
            "```text",
            f"python benchmarks/batchnorm.py --seeds {len(seeds)} --write        # one core",
            "```",
            "",
            f"Seeds {seeds[0]} to {seeds[-1]} ({len(seeds)}); points over the unadapted model; ± is a paired 95% t "
            "interval over seeds.",
            "",
            table(head, lines, left=2),
        ]
    )


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/batchnorm.jsonl", first=0)
    dataset = fedreach.load("fashion_mnist", download=False)
    rows = kept(file, [{"seed": seed} for seed in seeds], lambda seed: measure(dataset, seed))
    tell("batchnorm", text(rows), write=write)


if __name__ == "__main__":
    main()
