"""Time that adapting unseen clients takes, in addition to the model's own forward passes, on one core.

    python benchmarks/adaptation.py --quick    # a smoke test, some seconds
    python benchmarks/adaptation.py            # 1000 clients with 600 inputs of 784 numbers, 10 classes, 100 features
    python benchmarks/adaptation.py --write    # the same; puts the table into docs/records/adaptation.md

Inputs are patterns and noise; the model is random layers below a linear discriminant of its 100 features. Clients draw
their label distribution from Dirichlet(0.1). None of them, every fourth or all have darker inputs, which the safeguard
corrects. Each row of the table is measured in its own process with one thread. It shows the processor time of learning
from a client's inputs and predicting them, and separately that of the model's passes: the smallest of some repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fedreach as fr
from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.streams import generator
from fedreach.evaluation.modes import Client, in_groups
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import Outputs
from page import processor, put
from tables import table

CLASSES, PIXELS, HIDDEN, FEATURES = 10, 784, 200, 100
ALPHA = 0.1  # of the clients' class shares, for each class
WAYS: dict[str, tuple[LabelShift, int]] = {  # the rule, and every how many clients have darker inputs; 0: nobody
    "guarded": (LabelShift(), 0),
    "guarded, a quarter darker": (LabelShift(), 4),
    "guarded, all darker": (LabelShift(), 1),
    "unguarded": (LabelShift(guard=False), 0),
    "unguarded, online": (LabelShift(guard=False, online=True), 0),
}

SHARES = ("unadapted", "adapted_accuracy", "repaired", "adapted")  # accuracy twice, clients twice
WORDS = """1000 unseen clients with 600 inputs of 784 numbers, 10 classes and 100 features learn from all their inputs
and predict them; processor time, the smallest of three. An intensity correction queries the model again, three times to
choose it and once to predict; clients that no correction could help skip it. The model is three matrix products."""


@dataclass(eq=False)
class Model(fr.Metric):
    """Two random layers with rectifiers and a linear discriminant; it notes the seconds that it takes."""

    patterns: Float32s  # (C, PIXELS)
    layers: tuple[Float32s, Float32s]
    weights: Float32s = field(init=False)  # (FEATURES, C)
    bias: Float32s = field(init=False)  # (C,)
    seconds: float = 0.0
    passes: int = 0  # clients' inputs that went through it

    def __post_init__(self) -> None:
        rng = generator(0, "discriminant")
        labels = rng.integers(CLASSES, size=20_000)
        features = self._features(self.drawn(labels, rng)).astype(np.float64)
        means = np.stack([features[labels == c].mean(axis=0) for c in range(CLASSES)])
        within = np.cov((features - means[labels]).T)
        weights = np.linalg.solve(within, means.T)
        self.weights = weights.astype(np.float32)
        self.bias = (-0.5 * (means * weights.T).sum(axis=1)).astype(np.float32)

    def drawn(self, labels: Ints, rng: np.random.Generator) -> Float32s:
        """Return (m, PIXELS) inputs of these classes."""
        inputs = rng.standard_normal((len(labels), PIXELS), dtype=np.float32)
        inputs += self.patterns[labels]
        return inputs

    def of(self, inputs: Float32s) -> Outputs:
        """Return what a guard looks at, too."""
        began = time.process_time()
        features = self._features(inputs)
        logits = features @ self.weights + self.bias
        self.seconds += time.process_time() - began
        self.passes += 1
        return Outputs(logits, features, inputs, self.of)

    def _features(self, inputs: Float32s) -> Float32s:
        hidden: Float32s = inputs
        for layer in self.layers:
            hidden = np.maximum(hidden @ layer, 0)
        return hidden


def made() -> Model:
    """Return a model that is right about 9 times in 10."""
    rng = generator(0, "model")
    layers = [
        rng.standard_normal((a, b), dtype=np.float32) * np.sqrt(2 / a).astype(np.float32)
        for a, b in ((PIXELS, HIDDEN), (HIDDEN, FEATURES))
    ]
    patterns = 0.5 + 0.25 * rng.standard_normal((CLASSES, PIXELS), dtype=np.float32)
    return Model(patterns, (layers[0], layers[1]))


def measured(name: str, clients: int, inputs: int) -> dict[str, Any]:
    """Return what adaptation all clients once costs, and how well they were adapted."""
    (rule, dark), model = WAYS[name], made()
    state = fit(rule, _participants(model)).state
    model.seconds, model.passes = 0.0, 0
    seconds, right, plain, repaired, adapted = 0.0, 0.0, 0.0, 0.0, 0.0
    for group in in_groups(_clients(model, clients, inputs, dark)):  # as an evaluation adapts them
        outputs = [client.outputs for client in group]
        forward, began = model.seconds, time.process_time()
        kept = rule.update_many(state, [rule.start(state)] * len(group), outputs)
        predicted = [rule.predict(state, own, one) for own, one in zip(kept, outputs, strict=True)]
        seconds += time.process_time() - began - (model.seconds - forward)
        for own, log_p, client in zip(kept, predicted, group, strict=True):
            right += float((log_p.argmax(axis=1) == client.labels).mean()) / clients
            plain += float((client.outputs.logits.argmax(axis=1) == client.labels).mean()) / clients
            repaired += float(own["repaired"][0]) if "repaired" in own else 0.0
            adapted += float(own["adapted"][0]) if "adapted" in own else 1.0
    return {
        "seconds": seconds,
        "forward": model.seconds,
        "passes": model.passes / clients,
        "unadapted": plain,
        "adapted_accuracy": right,
        "repaired": repaired / clients,
        "adapted": adapted / clients,
    }


def _participants(model: Model) -> Iterator[HeldOut]:
    rng = generator(0, "participants")
    for share in rng.dirichlet(np.full(CLASSES, ALPHA), 40):
        labels = rng.choice(CLASSES, 100, p=share)
        counts: Floats = np.bincount(rng.choice(CLASSES, 400, p=share), minlength=CLASSES).astype(np.float64)
        yield HeldOut(model.of(model.drawn(labels, rng)), labels, counts)


def _clients(model: Model, clients: int, inputs: int, dark: int) -> Iterator[Client]:
    rng = generator(0, "clients")
    for client in range(clients):
        labels = rng.choice(CLASSES, inputs, p=rng.dirichlet(np.full(CLASSES, ALPHA)))
        seen = model.drawn(labels, rng)
        yield Client(client, model.of(seen * np.float32(0.5) if dark and client % dark == 0 else seen), labels)


def row(name: str, quick: bool, repeats: int) -> list[str]:
    """Measure one way in processes of their own."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, str(Path(__file__)), "--measure", name, *(["--quick"] if quick else [])]
    found: list[dict[str, float]] = []
    for _ in range(repeats):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **one_thread})
        found.append(json.loads(done.stdout))
    least = {key: min(one[key] for one in found) for key in found[0]}
    seconds = [f"{least[key]:.2f}" for key in ("seconds", "forward", "passes")]
    return [name, *seconds, *(f"{100 * least[key]:.1f}" for key in SHARES)]


def main() -> None:
    """Measure what was asked for, and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--measure", choices=list(WAYS), help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args()
    clients, inputs = (40, 100) if given.quick else (1000, 600)
    if given.measure:
        print(json.dumps(measured(given.measure, clients, inputs)))
        return
    lines = []
    for name in given.ways:
        lines.append(row(name, given.quick, 1 if given.quick else given.repeats))
        print("\t".join(lines[-1]), flush=True)
    head = "`label_shift`, adaptation s, model s, passes per client, unadapted %, adapted %, corrected clients %"
    text = table([*head.split(", "), "adapted clients %"], lines, left=1)
    if given.write:
        versions = f"numpy {np.__version__}, python {platform.python_version()}"
        made_by = f"Made by `python benchmarks/adaptation.py --write` on one core of {processor()}:\n{versions}."
        put("adaptation", f"{made_by} {WORDS}\n\n{text}")


if __name__ == "__main__":
    main()
